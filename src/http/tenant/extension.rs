use std::{fmt, marker::PhantomData};

use super::TenantExtractor;
use crate::{
    descriptor::{Tenant, TenantRef},
    http::RequestHead,
};

/// What can stand in a request's extensions and name the tenant: a [`Tenant`],
/// anything that is text, and what implements this.
///
/// ```
/// use tower_ratelimit::{descriptor::TenantRef, http::tenant::AsTenant};
///
/// struct Account { id: String, paying: bool }
///
/// impl AsTenant for Account {
///     fn as_tenant(&self) -> TenantRef<'_> {
///         TenantRef::name(&*self.id).plan(if self.paying { "pro" } else { "free" })
///     }
/// }
/// ```
pub trait AsTenant {
    /// The tenant, borrowed.
    fn as_tenant(&self) -> TenantRef<'_>;
}

impl AsTenant for Tenant {
    fn as_tenant(&self) -> TenantRef<'_> {
        self.as_ref()
    }
}

impl<T: AsRef<str> + ?Sized> AsTenant for T {
    fn as_tenant(&self) -> TenantRef<'_> {
        TenantRef::name(self.as_ref())
    }
}

/// The `T` in the request's extensions, where an outer layer put one.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Tenant, descriptor::TenantRef, http::{RequestHead, tenant::{self, TenantExtractor}}};
///
/// let request = Request::get("/").extension(Tenant::new("acme").plan("pro")).body(()).unwrap();
/// let caller = tenant::extension::<Tenant>().extract(&RequestHead::new(&request));
/// assert_eq!(caller, Some(TenantRef::name("acme").plan("pro")));
/// ```
#[must_use]
pub fn extension<T: AsTenant + Send + Sync + 'static>() -> Extension<T> {
    Extension { found: PhantomData }
}

/// Finds an extension: see [`extension`].
pub struct Extension<T> {
    found: PhantomData<fn() -> T>,
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self { found: PhantomData }
    }
}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Extension").field(&std::any::type_name::<T>()).finish()
    }
}

impl<T: AsTenant + Send + Sync + 'static> TenantExtractor for Extension<T> {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        request.extensions().get::<T>().map(AsTenant::as_tenant)
    }
}
