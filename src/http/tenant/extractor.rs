//! The trait of tenant extractors, and how to chain them.
//!
//! An extractor only reads the request: it neither fails nor blocks.

use std::sync::Arc;

use crate::{descriptor::TenantRef, http::RequestHead};

/// Identifies the tenant of a request.
///
/// ```
/// use tower_ratelimit::{descriptor::TenantRef, http::{RequestHead, tenant::TenantExtractor}};
///
/// /// `acme.api.example` is the tenant `acme`.
/// struct Subdomain;
///
/// impl TenantExtractor for Subdomain {
///     fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
///         let host = request.headers().get("host")?.to_str().ok()?;
///         Some(TenantRef::name(host.strip_suffix(".api.example")?))
///     }
/// }
/// ```
pub trait TenantExtractor: Send + Sync + 'static {
    /// The request's tenant, borrowed from the request if possible. `None` if
    /// there is none.
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>>;

    /// Asks `other` if this one finds no tenant.
    fn or<E: TenantExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or { first: self, second: other }
    }
}

impl<E: TenantExtractor + ?Sized> TenantExtractor for Arc<E> {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        (**self).extract(request)
    }
}

impl<E: TenantExtractor + ?Sized> TenantExtractor for Box<E> {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        (**self).extract(request)
    }
}

/// One extractor, and a second choice: see [`TenantExtractor::or`].
#[derive(Clone, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A: TenantExtractor, B: TenantExtractor> TenantExtractor for Or<A, B> {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        self.first.extract(request).or_else(|| self.second.extract(request))
    }
}
