//! The HTTP side: what the limiter needs to know of a request, and what a
//! refusal looks like.
//!
//! 1. **Who pays** is found by a [`TenantExtractor`], see [`tenant`]. Where
//!    none is found the layer's [`MissingTenant`](crate::MissingTenant)
//!    decides; it is never an error of the server's.
//! 2. **Addresses** come from the socket, unless [`TrustedProxies`] says whose
//!    word counts. IPv6 addresses are cut to a prefix.
//! 3. **The path** is the one that the client sent. With the feature `axum`
//!    that holds in nested routers too, and rules can name axum's route.
//! 4. **CORS preflights** are not counted on a server: a browser sends them on
//!    its own, and a refused one looks to the page like a network failure.
//!    Whoever wants to can send as many of them, so
//!    [`exempt_preflight(false)`](crate::RateLimitLayer::exempt_preflight) is
//!    for services that do work on `OPTIONS`.
//! 5. **What it costs** is 1, unless the layer's [`cost`](crate::RateLimitLayer::cost)
//!    says otherwise; what it really did cost can be settled afterwards by its
//!    [`Charge`](crate::Charge).
//! 6. **A refusal** is a response: 429, or 503 where a backend gave no answer
//!    and the rule fails closed, or 401 where a tenant is wanted and missing.
//!    It is problem details (RFC 9457), is not to be stored (RFC 6585), and
//!    carries the [`RateLimited`](crate::RateLimited) in its extensions for
//!    outer layers.

mod address;
mod client_ip;
pub mod cost;
mod describe;
mod forwarded;
pub(crate) mod problem;
mod request_head;
pub mod tenant;

pub use self::{
    address::PeerAddr, client_ip::TrustedProxies, describe::Http, request_head::RequestHead, tenant::TenantExtractor,
};
