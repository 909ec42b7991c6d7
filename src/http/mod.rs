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

mod address;
mod checks;
mod client_ip;
pub mod cost;
mod describe;
mod forwarded;
pub(crate) mod grpc;
pub mod priority;
pub(crate) mod problem;
mod protocol;
mod request_head;
pub mod tenant;

#[cfg(feature = "admin")]
pub(crate) use self::address::peer;
pub(crate) use self::describe::may_have_content;
pub(crate) use self::tenant::TenantExtractor;
pub use self::{describe::Http, protocol::Protocol, request_head::RequestHead};
