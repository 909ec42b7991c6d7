//! Tenants by the name that a request carries, in a header or an extension.
//!
//! Of a header that is sent more than once no value counts, unless the
//! application chooses one: the choice would be the caller's.

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
/// An empty value is no tenant. A value that is not UTF-8 is percent-encoded.
///
/// A request that sends the header more than once is ambiguous: rules that count
/// per tenant reject it with 400. Otherwise a caller could escape the limit of
/// its key, by another extractor's tenant or as the anonymous one.
/// [`first`](HeaderTenant::first) and [`last`](HeaderTenant::last) choose a value
/// instead.
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
    HeaderTenant { name: name.try_into().ok(), repeated: Repeated::Ambiguous }
}

/// Extracts a header's value: see [`header`].
#[derive(Clone, Debug)]
#[must_use]
pub struct HeaderTenant {
    name: Option<HeaderName>,
    repeated: Repeated,
}

/// What a header that is sent more than once means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeated {
    Ambiguous,
    First,
    Last,
}

impl HeaderTenant {
    /// Of a header that is sent more than once, takes the first value. Choose
    /// the one by which the service identifies the caller.
    pub fn first(self) -> Self {
        Self { repeated: Repeated::First, ..self }
    }

    /// Of a header that is sent more than once, takes the last value, such as
    /// the one that a proxy has added.
    pub fn last(self) -> Self {
        Self { repeated: Repeated::Last, ..self }
    }
}

impl TenantExtractor for HeaderTenant {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
        let name = self.name.as_ref()?;
        let mut values = request.headers().get_all(name).iter();
        let value = match self.repeated {
            Repeated::Ambiguous => request.single_header(name)?,
            Repeated::First => values.next()?.as_bytes().trim_ascii(),
            Repeated::Last => values.next_back()?.as_bytes().trim_ascii(),
        };
        if value.is_empty() {
            return None;
        }
        let name = match str::from_utf8(value) {
            Ok(text) => Cow::Borrowed(text),
            // No UTF-8 value can start with this byte: headers exclude it.
            Err(_) => format!("\0{}", percent_encode(value, ENCODED)).into(),
        };
        Some(TenantRef::name(name))
    }

    fn is_ambiguous(&self, request: &RequestHead<'_>) -> bool {
        let is_repeated = |name| request.headers().get_all(name).iter().nth(1).is_some();
        self.repeated == Repeated::Ambiguous && self.name.as_ref().is_some_and(is_repeated)
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
