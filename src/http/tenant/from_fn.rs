//! Tenants by a closure.

use std::fmt;

use super::extractor::TenantExtractor;
use crate::{descriptor::TenantRef, http::RequestHead};

/// The result of `find`: a `Tenant`, a name or an address.
///
/// The tenant cannot borrow from the request. To borrow, implement
/// [`TenantExtractor`].
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{descriptor::TenantRef, http::{RequestHead, tenant::{self, TenantExtractor}}};
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
