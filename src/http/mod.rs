//! The HTTP side: what the limiter needs to know of a request, and what a
//! rejection looks like.
//!
//! 1. **Who pays** is found by a [`TenantExtractor`], see [`tenant`]. Where
//!    none is found the layer's [`MissingTenant`](crate::MissingTenant)
//!    decides; it is never an error of the server's.
//! 2. **Addresses** come from the socket, unless [`TrustedProxies`] says whose
//!    word counts. IPv6 addresses are cut to a prefix.
//! 3. **The path** is the one that the client sent. With the feature `axum`
//!    that holds in nested routers too, and rules can name axum's route.
//! 4. **CORS preflights** are not counted on a server: a browser sends them on
//!    its own, and a rejected one looks to the page like a network failure.
//!    Whoever wants to can send as many of them, so
//!    [`exempt_preflight(false)`](crate::RateLimitLayer::exempt_preflight) is
//!    for services that do work on `OPTIONS`, as tonic's do: on tonic's own
//!    server they are counted.
//! 5. **What it costs** is 1, unless the layer's [`cost`](crate::RateLimitLayer::cost)
//!    says otherwise; what it really did cost can be settled afterwards by its
//!    [`Charge`](crate::Charge).
//! 6. **A rejection** is a response: 429, or 503 where a backend gave no answer
//!    and the rule fails closed, or 401 where a tenant is wanted and missing.
//!    It is problem details (RFC 9457), is not to be stored (RFC 6585), and
//!    carries the [`RateLimited`](crate::RateLimited) in its extensions for
//!    outer layers.
//! 7. **gRPC** and gRPC-Web calls are known by their content type. Their path
//!    is `/package.Service/Method`; `/package.Service/*` is all of a service.
//!    Their method is POST; tonic serves them whatever it is, so that a rule
//!    for tonic's services is to name no method: another one would pass by it.
//!    A rejection is a status in headers alone (Trailers-Only), with HTTP's 200:
//!    clients read a bare 429 as `UNAVAILABLE`, and come back at once. It is
//!    `RESOURCE_EXHAUSTED`, or `UNAVAILABLE` where the others answer 503, or
//!    `UNAUTHENTICATED` for 401, with `google.rpc.RetryInfo` and
//!    `google.rpc.QuotaFailure` as details. What stands in headers elsewhere
//!    is metadata. No wait is longer than what `grpc-timeout` leaves; one that
//!    is malformed counts as none.

mod address;
mod client_ip;
pub mod cost;
mod describe;
mod forwarded;
pub(crate) mod grpc;
pub(crate) mod problem;
mod protocol;
mod request_head;
pub mod tenant;

pub use self::{
    address::PeerAddr, client_ip::TrustedProxies, describe::Http, protocol::Protocol, request_head::RequestHead,
    tenant::TenantExtractor,
};
