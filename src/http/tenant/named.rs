//! Tenants by the name that a request carries, in a header or an extension.
//!
//! Of a repeated header no value counts: the choice would be the caller's.

use std::{borrow::Cow, fmt, marker::PhantomData};

use http::HeaderName;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use super::extractor::TenantExtractor;
use crate::{
    descriptor::{Tenant, TenantRef},
    http::RequestHead,
};

/// The value of the header `name`, as the tenant's name.
///
/// An empty value is no tenant, and neither is a repeated header: the caller
/// would choose which value counts. A value that is not UTF-8 is
/// percent-encoded.
///
/// An invalid header name is never found. A constant [`HeaderName`] is always
/// valid.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{descriptor::TenantRef, http::{RequestHead, tenant::{self, TenantExtractor}}};
///
/// let by_key = tenant::header("x-api-key");
/// let request = Request::get("/").header("x-api-key", "k-123").body(()).unwrap();
/// assert_eq!(by_key.extract(&RequestHead::new(&request)), Some(TenantRef::name("k-123")));
/// ```
pub fn header(name: impl TryInto<HeaderName>) -> HeaderTenant {
    HeaderTenant { name: name.try_into().ok() }
}

/// Extracts a header's value: see [`header`].
#[derive(Clone, Debug)]
pub struct HeaderTenant {
    name: Option<HeaderName>,
}

impl TenantExtractor for HeaderTenant {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
        let value = request.single_header(self.name.as_ref()?)?;
        let name = match str::from_utf8(value) {
            Ok(text) => Cow::Borrowed(text),
            // No UTF-8 value can start with this byte: headers exclude it.
            Err(_) => format!("\0{}", percent_encode(value, ENCODED)).into(),
        };
        Some(TenantRef::name(name))
    }
}

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
