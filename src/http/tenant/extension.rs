//! Tenants from the request's extensions, set by an outer layer.

use std::{fmt, marker::PhantomData};

use super::extractor::TenantExtractor;
use crate::{
    descriptor::{Tenant, TenantRef},
    http::RequestHead,
};

/// An extension that names a tenant: a [`Tenant`], any text, or a type that
/// implements this.
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

/// The `T` in the request's extensions, if an outer layer has set one.
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
    Extension { marker: PhantomData }
}

/// Extracts a tenant from an extension: see [`extension`].
pub struct Extension<T> {
    marker: PhantomData<fn() -> T>,
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self { marker: PhantomData }
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
