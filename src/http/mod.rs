//! The HTTP side: how requests are described, and how rejections are answered.
//!
//! 1. **The tenant** is identified by a [`TenantExtractor`], see [`tenant`]. If
//!    there is none, the layer's [`MissingTenant`](crate::MissingTenant)
//!    decides. It is never a server error. A request that names its tenant
//!    twice is rejected with 400: see [`tenant::header`].
//! 2. **Addresses** come from the socket, unless [`TrustedProxies`](crate::tenant::TrustedProxies) are set.
//!    IPv6 addresses are cut to a prefix.
//! 3. **The path** is the one that the client sent. With the feature `axum`
//!    this holds in nested routers too, and rules can match axum's route.
//! 4. **CORS preflights** are not counted on a server: a browser sends them
//!    unasked, and a rejected one looks like a network failure to the page. A
//!    caller can send any number of them, but a request with content is none.
//!    Over HTTP/2 no header need announce it, so the layer asks the body: those
//!    of axum, tonic and hyper (features of these names). A preflight over
//!    HTTP/2 with a body of another type is counted. Services that do work on
//!    `OPTIONS` set
//!    [`exempt_preflight(false)`](crate::RateLimitLayer::exempt_preflight). On
//!    tonic's own server, where every call does work, preflights are counted.
//! 5. **The cost** is 1, unless the layer's
//!    [`cost`](crate::RateLimitLayer::cost) says otherwise.
//!    [`ChargeHandle`](crate::ChargeHandle) settles the actual cost afterwards.
//!    How much it matters is [`Priority::Normal`](crate::Priority::Normal), unless its
//!    [`priority`](crate::RateLimitLayer::priority), its tenant or its plan says
//!    otherwise.
//! 6. **A rejection** is a response: 429, or 503 if the backend failed and the
//!    rule fails closed, 401 if a required tenant is missing, or 400 if it is
//!    ambiguous. It has problem details (RFC 9457), must not be stored (RFC
//!    6585), and carries the [`RateLimited`](crate::RateLimited) in its
//!    extensions for outer layers.
//! 7. **gRPC** and gRPC-Web calls are recognized by content type. Their path is
//!    `/package.Service/Method`; `/package.Service/*` matches a whole service.
//!    Their method is POST, but tonic serves any method, so a rule for tonic's
//!    services must not name one: another method would evade it. A rejection is
//!    a status in headers alone (trailers-only), with HTTP status 200, because
//!    clients read a bare 429 as `UNAVAILABLE` and retry at once. The code is
//!    `RESOURCE_EXHAUSTED` for 429, `UNAVAILABLE` for 503, `UNAUTHENTICATED`
//!    for 401 and `INVALID_ARGUMENT` for 400, with `google.rpc.RetryInfo` and
//!    `google.rpc.QuotaFailure` as details. Rate limit headers become metadata.
//!    No wait exceeds the time left in `grpc-timeout`; a malformed timeout is
//!    ignored.

mod client_ip;
pub mod cost;
mod describe;
pub mod priority;
pub(crate) mod rejection;
pub mod tenant;

#[cfg(test)]
mod tests;

use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version,
    header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING},
    request::Parts,
};

#[cfg(feature = "admin")]
pub(crate) use self::client_ip::peer;
pub use self::describe::Http;
pub(crate) use self::{describe::may_have_content, tenant::TenantExtractor};
use crate::descriptor::grpc;

/// A request without its body, as extractors see it.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::RequestHead;
///
/// let request = Request::get("https://api.example/v1?page=2").body("any body").unwrap();
/// let head = RequestHead::new(&request);
/// assert_eq!(head.method(), "GET");
/// assert_eq!(head.uri().path(), "/v1");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
    version: Version,
}

impl<'r> RequestHead<'r> {
    /// The head of `request`.
    #[must_use]
    pub fn new<B>(request: &'r Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
            version: request.version(),
        }
    }

    /// The head whose parts these are.
    #[must_use]
    pub fn of_parts(parts: &'r Parts) -> Self {
        let Parts { method, uri, headers, extensions, version, .. } = parts;
        Self { method, uri, headers, extensions, version: *version }
    }

    /// The request's method.
    #[must_use]
    pub fn method(&self) -> &'r Method {
        self.method
    }

    /// The request's URI, as this layer sees it.
    #[must_use]
    pub fn uri(&self) -> &'r Uri {
        self.uri
    }

    /// The request's headers.
    #[must_use]
    pub fn headers(&self) -> &'r HeaderMap {
        self.headers
    }

    /// The extensions, which outer layers have set.
    #[must_use]
    pub fn extensions(&self) -> &'r Extensions {
        self.extensions
    }

    /// The same head with the headers and extensions that were taken from it.
    pub(crate) fn with_taken<'a>(self, headers: &'a HeaderMap, extensions: &'a Extensions) -> RequestHead<'a>
    where
        'r: 'a,
    {
        RequestHead { headers, extensions, ..self }
    }

    /// Whether a response that is sent before the request's body was read leaves
    /// the connection unusable. That is so over HTTP/1, where a server reads on for
    /// at most some kilobytes.
    pub(crate) fn ends_connection_unread(&self) -> bool {
        const SHORT: u64 = 8_192;
        let length = || str::from_utf8(self.single_header(&CONTENT_LENGTH)?).ok()?.parse::<u64>().ok();
        self.version <= Version::HTTP_11
            && (self.headers.contains_key(TRANSFER_ENCODING) || length().is_some_and(|length| length > SHORT))
    }

    /// The trimmed value of a header that was sent once and is not empty.
    fn single_header(&self, name: &HeaderName) -> Option<&'r [u8]> {
        let value = self.single_value(name)?.as_bytes().trim_ascii();
        (!value.is_empty()).then_some(value)
    }

    /// The value of a header that was sent once.
    fn single_value(&self, name: &HeaderName) -> Option<&'r HeaderValue> {
        let headers = self.headers;
        // Not looked up: that takes 236 instructions for `x-tenant`, and to compare six names 185.
        let (_, value) = headers.iter().find(|(own, _)| *own == name)?;
        let is_repeated = headers.len() > headers.keys_len() && headers.get_all(name).iter().nth(1).is_some();
        (!is_repeated).then_some(value)
    }
}

/// The header of this name. Extractors are made when a program starts, and one
/// with an invalid name would never find anything.
#[track_caller]
fn header_name(made: &str, name: impl TryInto<HeaderName>) -> HeaderName {
    // Not in a closure, whose panic would name this line.
    let Ok(name) = name.try_into() else { panic!("{made}: the name is not a valid header name") };
    name
}

/// The protocol in which a rejection has to be answered.
///
/// ```
/// use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
/// use tower_ratelimit::middleware::Protocol;
///
/// let mut headers = HeaderMap::new();
/// headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
/// assert!(matches!(Protocol::of(&headers), Protocol::Grpc { .. }));
///
/// headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpcfoo"));
/// assert_eq!(Protocol::of(&headers), Protocol::Other);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Plain HTTP, or anything else.
    #[default]
    Other,
    /// gRPC or gRPC-Web.
    Grpc {
        /// The request's content type, which the response repeats.
        content_type: HeaderValue,
    },
}

impl Protocol {
    /// Detects the protocol by content type: `application/grpc`,
    /// `application/grpc-web` or `application/grpc-web-text`, with an optional
    /// suffix (`+proto`) and parameters.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        match headers.get(CONTENT_TYPE).filter(|content_type| grpc::is_grpc(content_type.as_bytes())) {
            Some(content_type) => Self::Grpc { content_type: content_type.clone() },
            None => Self::Other,
        }
    }

    /// Whether bodies frame messages as gRPC does. gRPC-Web may encode them.
    pub(crate) fn frames_messages(&self) -> bool {
        matches!(self, Self::Grpc { content_type } if !grpc::is_web(content_type))
    }
}
