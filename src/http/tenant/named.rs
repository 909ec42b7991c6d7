//! Tenants by the name that a request carries, in a header, an extension or its URI.
//!
//! It verifies no name. The invariant: of a header that is sent more than once no value counts, unless the
//! application chooses one: the choice would be the caller's.

use std::borrow::Cow;

use base64::Engine as _;
use http::{Extensions, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use super::extractor::TenantExtractor;
use crate::{
    descriptor::{Tenant, TenantRef, grpc::BASE64},
    http::{RequestHead, request_head::header_name},
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
/// A name that ends in `-bin` is that of binary gRPC metadata, whose value is in
/// base64. The tenant's name is then the base64 of its bytes without padding, the
/// same for all spellings of them. A value that is not base64 is no tenant.
///
/// # Panics
///
/// If the name is not a valid header name, such as one with a space. A constant
/// [`HeaderName`] is always valid.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::{self, TenantExtractor}};
///
/// let by_key = tenant::header("x-api-key");
/// let request = Request::get("/").header("x-api-key", "k-123").body(()).unwrap();
/// assert_eq!(by_key.extract(&RequestHead::new(&request)), Some(TenantRef::name("k-123")));
/// ```
#[track_caller]
pub fn header(name: impl TryInto<HeaderName>) -> HeaderTenant {
    let name = header_name("tenant::header", name);
    let is_binary = name.as_str().ends_with("-bin");
    HeaderTenant { name, is_binary, repeated: Repeated::Ambiguous }
}

/// Extracts a header's value: see [`header`].
#[derive(Clone, Debug)]
#[must_use]
pub struct HeaderTenant {
    name: HeaderName,
    is_binary: bool,
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
        let headers = request.headers();
        let value = match self.repeated {
            Repeated::Ambiguous => request.single_value(&self.name)?,
            Repeated::First => headers.get(&self.name)?,
            Repeated::Last => headers.get_all(&self.name).iter().next_back()?,
        };
        self.encoded(value).map(TenantRef::name)
    }

    fn is_ambiguous(&self, request: &RequestHead<'_>) -> bool {
        let mut values = request.headers().get_all(&self.name).iter();
        let is_list = |value: &HeaderValue| self.is_binary && value.as_bytes().contains(&b',');
        self.repeated == Repeated::Ambiguous && (values.next().is_some_and(is_list) || values.next().is_some())
    }
}

impl HeaderTenant {
    /// The name that stands for a value.
    fn encoded<'r>(&self, value: &'r HeaderValue) -> Option<Cow<'r, str>> {
        const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
        if self.is_binary {
            return self.repeated.of_binary(value.as_bytes().trim_ascii());
        }
        // Nearly all values are ASCII. To look for UTF-8 takes twice the instructions.
        if let Ok(text) = value.to_str() {
            let text = text.trim_ascii();
            return (!text.is_empty()).then_some(text.into());
        }
        let bytes = value.as_bytes().trim_ascii();
        // No UTF-8 value can start with this byte: headers exclude it.
        let encoded = || format!("\0{}", percent_encode(bytes, ENCODED)).into();
        Some(str::from_utf8(bytes).map_or_else(|_| encoded(), Cow::Borrowed))
    }
}

impl Repeated {
    /// The bytes of a binary value, as their one base64 without padding. gRPC
    /// may join the values of repeated metadata by commas.
    fn of_binary(self, value: &[u8]) -> Option<Cow<'_, str>> {
        let mut values = value.split(|byte| *byte == b',');
        let value = match self {
            Self::Ambiguous => value,
            Self::First => values.next()?,
            Self::Last => values.next_back()?,
        };
        let value = str::from_utf8(value).ok()?.trim_ascii();
        let name = BASE64.encode(BASE64.decode(value).ok().filter(|bytes| !bytes.is_empty())?);
        Some(if name == value { Cow::Borrowed(value) } else { Cow::Owned(name) })
    }
}

/// An extension that names a tenant: a [`Tenant`], any text, or a type that
/// implements this.
///
/// ```
/// use tower_ratelimit::{descriptor::TenantRef, tenant::AsTenant};
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
/// use tower_ratelimit::{RequestHead, Tenant, descriptor::TenantRef, tenant::{self, TenantExtractor}};
///
/// let request = Request::get("/").extension(Tenant::new("acme").plan("pro")).body(()).unwrap();
/// let caller = tenant::extension::<Tenant>().extract(&RequestHead::new(&request));
/// assert_eq!(caller, Some(TenantRef::name("acme").plan("pro")));
/// ```
#[must_use]
pub fn extension<T: AsTenant + Send + Sync + 'static>() -> Extension {
    Extension { find: |extensions| extensions.get::<T>().map(AsTenant::as_tenant) }
}

/// Extracts a tenant from an extension: see [`extension`].
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    find: fn(&Extensions) -> Option<TenantRef<'_>>,
}

impl TenantExtractor for Extension {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        (self.find)(request.extensions())
    }
}

/// The tenant on a client by default: the host that the request is sent to, since each
/// host has its own limits.
#[derive(Clone, Debug)]
pub(in crate::http) struct UpstreamHost;

impl TenantExtractor for UpstreamHost {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        let host = request.uri().host().filter(|host| !host.is_empty())?;
        // Host names are case-insensitive.
        let has_upper = host.bytes().any(|byte| byte.is_ascii_uppercase());
        Some(TenantRef::name(if has_upper { Cow::Owned(host.to_ascii_lowercase()) } else { Cow::Borrowed(host) }))
    }
}
