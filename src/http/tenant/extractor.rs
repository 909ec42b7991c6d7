//! The trait of tenant extractors, how to chain them, and how to make one of a
//! closure.
//!
//! An extractor only reads the request: it neither fails nor blocks.

use std::{fmt, sync::Arc};

use crate::{
    descriptor::TenantRef,
    http::{RequestHead, client_ip::TrustedProxies},
};

/// Identifies the tenant of a request.
///
/// ```
/// use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::TenantExtractor};
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

    /// Whether the request names more than one tenant, so that none was found.
    /// Rules that count per tenant reject such a request with 400, and
    /// [`or`](Self::or) does not ask its second extractor. Asked only if
    /// [`extract`](Self::extract) has found none.
    fn is_ambiguous(&self, request: &RequestHead<'_>) -> bool {
        let _ = request;
        false
    }

    /// The proxies that it trusts, where it reads the peer's address.
    #[doc(hidden)]
    fn proxies(&self) -> Option<&TrustedProxies> {
        None
    }

    /// Asks `other` if this one finds no tenant and the request is not
    /// ambiguous.
    fn or<E: TenantExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or { first: self, second: other }
    }
}

macro_rules! extract_by_pointee {
    ($($pointer:ident),+) => {$(
        impl<E: TenantExtractor + ?Sized> TenantExtractor for $pointer<E> {
            fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
                (**self).extract(request)
            }

            fn is_ambiguous(&self, request: &RequestHead<'_>) -> bool {
                (**self).is_ambiguous(request)
            }

            fn proxies(&self) -> Option<&TrustedProxies> {
                (**self).proxies()
            }
        }
    )+};
}

extract_by_pointee!(Arc, Box);

/// One extractor, and a second choice: see [`TenantExtractor::or`].
#[derive(Clone, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A: TenantExtractor, B: TenantExtractor> TenantExtractor for Or<A, B> {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        self.first.extract(request).or_else(|| match self.first.is_ambiguous(request) {
            true => None,
            false => self.second.extract(request),
        })
    }

    fn is_ambiguous(&self, request: &RequestHead<'_>) -> bool {
        self.first.is_ambiguous(request) || self.second.is_ambiguous(request)
    }

    fn proxies(&self) -> Option<&TrustedProxies> {
        let either = [self.first.proxies(), self.second.proxies()];
        either.into_iter().flatten().reduce(|one, other| if one.trust_any() { one } else { other })
    }
}

/// The result of `find`: a `Tenant`, a name or an address.
///
/// The tenant cannot borrow from the request. To borrow, implement
/// [`TenantExtractor`].
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::{self, TenantExtractor}};
///
/// let by_agent = tenant::from_fn(|request: &RequestHead<'_>| {
///     let agent = request.headers().get("user-agent")?.to_str().ok()?;
///     Some(agent.split('/').next()?.to_ascii_lowercase())
/// });
/// let request = Request::get("/").header("user-agent", "Curl/8.5").body(()).unwrap();
/// assert_eq!(by_agent.extract(&RequestHead::new(&request)), Some(TenantRef::name("curl")));
/// ```
pub fn from_fn<F, T>(find: F) -> TenantFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<T> + Send + Sync + 'static,
    T: Into<TenantRef<'static>>,
{
    TenantFn { find }
}

/// Extracts a tenant by a closure: see [`from_fn`].
#[derive(Clone, Copy)]
pub struct TenantFn<F> {
    find: F,
}

impl<F, T> TenantExtractor for TenantFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<T> + Send + Sync + 'static,
    T: Into<TenantRef<'static>>,
{
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        (self.find)(request).map(Into::into)
    }
}

impl<F> fmt::Debug for TenantFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantFn")
    }
}
