//! Tenant extractors: how to identify the tenant of a request.
//!
//! | extractor | tenant |
//! |---|---|
//! | [`header`] | the value of a header, such as an API key |
//! | [`peer_ip`] | the address of the socket |
//! | [`client_ip`] | the client's address according to trusted proxies |
//! | [`extension`] | an extension set by an outer layer, such as the signed-in user |
//! | `client_certificate` | the fingerprint of the client's TLS certificate, with the features `tonic` and `tls` |
//! | [`from_fn`] | the result of a closure |
//!
//! A server's default is [`peer_ip`], a client's the host that is called. An extension
//! is read only where an extractor asks for it.
//!
//! [`or`](TenantExtractor::or) adds a second choice. A request that sends the
//! header twice is rejected with 400, see [`header`]. A header's value is
//! whatever the caller sent: unless something in front verifies it, a caller
//! gets new counters by inventing values.
//!
//! ```
//! use http::Request;
//! use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::{self, PeerAddr, TenantExtractor}};
//!
//! let by_key_or_address = tenant::header("x-api-key").or(tenant::peer_ip());
//!
//! let peer = PeerAddr("[2001:db8::1:2:3]:4711".parse().unwrap());
//! let request = Request::get("/").extension(peer).header("x-api-key", "k-123").body(()).unwrap();
//! assert_eq!(by_key_or_address.extract(&RequestHead::new(&request)), Some(TenantRef::name("k-123")));
//!
//! let request = Request::get("/").extension(peer).body(()).unwrap();
//! let network = "2001:db8::".parse().unwrap();
//! assert_eq!(by_key_or_address.extract(&RequestHead::new(&request)), Some(TenantRef::address(network)));
//! ```

use std::{borrow::Cow, fmt, net::IpAddr, sync::Arc};

use base64::Engine as _;
use http::{Extensions, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

pub use super::client_ip::{PeerAddr, TrustedProxies};
use super::{RequestHead, client_ip::Ipv6Prefix, header_name};
use crate::descriptor::{Tenant, TenantRef, grpc::BASE64};

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
#[doc(hidden)]
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

/// `or` as an inherent method, so that no trait has to be imported for it.
macro_rules! chain {
    ($($extractor:ident $(<$($parameter:ident),+>)?),+ $(,)?) => {$(
        impl$(<$($parameter),+>)? $extractor$(<$($parameter),+>)?
        where
            Self: TenantExtractor,
        {
            /// Asks `other` if this one finds no tenant and the request is not
            /// ambiguous.
            #[must_use]
            pub fn or<E: TenantExtractor>(self, other: E) -> Or<Self, E> {
                TenantExtractor::or(self, other)
            }
        }
    )+};
}

#[cfg(all(feature = "tonic", feature = "tls"))]
chain!(ClientCertificate);
chain!(ClientIp, Extension, HeaderTenant, Or<A, B>, TenantFn<F>);

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
#[doc(hidden)]
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
#[doc(hidden)]
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
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    find: fn(&Extensions) -> Option<TenantRef<'_>>,
}

impl TenantExtractor for Extension {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        (self.find)(request.extensions())
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
#[doc(hidden)]
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

/// The address of the socket that the request came from: [`PeerAddr`], or the
/// connection info of axum or tonic, with the feature `axum`, `tonic` or
/// `tls`. Behind a proxy this is the proxy's address: see [`client_ip`].
///
/// IPv6 addresses are cut to their /64, those of NAT64 and 6to4 to the IPv4 address in
/// them. Exceptions for addresses are compared with the whole one.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::{self, PeerAddr, TenantExtractor}};
///
/// let by_site = tenant::peer_ip().ipv6_prefix(48);
/// let peer = PeerAddr("[2001:db8:1:2::3]:4711".parse().unwrap());
/// let request = Request::get("/").extension(peer).body(()).unwrap();
/// let site = "2001:db8:1::".parse().unwrap();
/// assert_eq!(by_site.extract(&RequestHead::new(&request)), Some(TenantRef::address(site)));
/// ```
#[must_use]
pub fn peer_ip() -> ClientIp {
    client_ip(TrustedProxies::none())
}

/// The client's address, as far as trusted proxies vouch for it: see
/// [`TrustedProxies`].
///
/// IPv6 addresses are cut as by [`peer_ip`].
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::{self, PeerAddr, TenantExtractor, TrustedProxies}};
///
/// let by_client = tenant::client_ip(TrustedProxies::cidrs(["10.0.0.0/8"])?);
/// let request = Request::get("/")
///     .extension(PeerAddr("10.0.0.1:50123".parse().unwrap()))
///     .header("x-forwarded-for", "6.6.6.6, 192.0.2.7, 10.0.0.2")
///     .body(())
///     .unwrap();
/// // Entries left of the first untrusted address are ignored.
/// let caller = by_client.extract(&RequestHead::new(&request));
/// assert_eq!(caller, Some(TenantRef::address([192, 0, 2, 7].into())));
/// # Ok::<(), tower_ratelimit::ConfigError>(())
/// ```
#[must_use]
pub fn client_ip(proxies: TrustedProxies) -> ClientIp {
    ClientIp { proxies, prefix: Ipv6Prefix::default() }
}

/// Extracts an address: see [`peer_ip`] and [`client_ip`].
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct ClientIp {
    proxies: TrustedProxies,
    prefix: Ipv6Prefix,
}

impl ClientIp {
    /// The number of bits of an IPv6 address that distinguish callers: 64 by
    /// default, clamped to 32 to 128.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefix: Ipv6Prefix::new(bits), ..self }
    }
}

impl TenantExtractor for ClientIp {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        self.proxies.client(request).map(|address| TenantRef::address_in(address, self.prefix.cut(address)))
    }

    fn proxies(&self) -> Option<&TrustedProxies> {
        Some(&self.proxies)
    }
}

/// The tenant that a text stands for, such as an argument of a command: by its address,
/// counted as by [`peer_ip`], if the text reads as one, else by its name.
#[doc(hidden)]
pub fn named_or_address(text: &str) -> TenantRef<'_> {
    let Ok(address) = text.parse().map(|address: IpAddr| address.to_canonical()) else { return TenantRef::name(text) };
    TenantRef::address_in(address, Ipv6Prefix::default().cut(address))
}

/// The SHA-256 of the client's TLS certificate, in lower-case hexadecimal
/// digits, if tonic's server has requested one. `openssl x509 -noout
/// -fingerprint -sha256` prints the same digits in upper case and with colons.
/// With the features `tonic` and `tls`.
///
/// A reissued certificate is another tenant. To use what the certificate says
/// of its holder, read tonic's `TlsConnectInfo` by [`from_fn`].
///
/// ```
/// use tower_ratelimit::tenant;
///
/// let by_certificate = tenant::client_certificate().or(tenant::peer_ip());
/// # let _ = by_certificate;
/// ```
#[cfg(all(feature = "tonic", feature = "tls"))]
#[must_use]
pub fn client_certificate() -> ClientCertificate {
    ClientCertificate {}
}

/// Extracts the client's certificate: see [`client_certificate`].
#[cfg(all(feature = "tonic", feature = "tls"))]
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientCertificate {}

#[cfg(all(feature = "tonic", feature = "tls"))]
impl TenantExtractor for ClientCertificate {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        use sha2::{Digest, Sha256};
        use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

        let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>()?;
        let chain = connection.peer_certs()?;
        let digest = Sha256::digest(chain.first()?);
        let digit = |nibble: u8| char::from_digit(nibble.into(), 16);
        let hex: String = digest.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).flatten().collect();
        Some(TenantRef::name(hex))
    }
}

/// The tenant on a client by default: the host that the request is sent to, since each
/// host has its own limits.
#[derive(Clone, Debug)]
pub(super) struct UpstreamHost;

impl TenantExtractor for UpstreamHost {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        let host = request.uri().host().filter(|host| !host.is_empty())?;
        // Host names are case-insensitive.
        let has_upper = host.bytes().any(|byte| byte.is_ascii_uppercase());
        Some(TenantRef::name(if has_upper { Cow::Owned(host.to_ascii_lowercase()) } else { Cow::Borrowed(host) }))
    }
}

#[cfg(test)]
mod tests;
