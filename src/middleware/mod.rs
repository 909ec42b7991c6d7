//! The tower middleware: [`RateLimitLayer`] and [`RateLimit`].
//!
//! It decides nothing: [`RateLimiter`](crate::RateLimiter) does. One
//! [`Service`](tower_service::Service) implementation serves every use. It has two
//! seams: [`Describe`] describes a request to the limiter, [`Answer`] turns decisions
//! into what the caller sees. The invariant: a request that waits or is rejected
//! occupies no capacity of the inner service.

mod answer;
mod body;
mod charge;
#[cfg(feature = "tonic")]
mod client_messages;
mod describe;
mod feedback;
mod future;
mod http_answer;
mod layer;
mod messages;
mod service;

#[cfg(feature = "tonic")]
pub use self::client_messages::charge_client_messages;
pub use self::{
    charge::{ChargeHandle, ConnectionPermit},
    feedback::{CooldownScope, ResponseHead, UpstreamFeedback},
    http_answer::Rejection,
    layer::RateLimitLayer,
    service::RateLimit,
};
// The machinery of the layer. It has names only where a type has to be written out.
#[doc(hidden)]
pub use self::{
    answer::{AdmissionContext, Answer, ErrorAnswer, RejectionContext},
    body::Body,
    charge::InFlightGuard,
    describe::{Describe, HttpRequest, Keyed},
    future::ResponseFuture,
    http_answer::HttpAnswer,
    messages::ClientMessages,
};
#[doc(hidden)]
pub use crate::http::Http;
pub use crate::http::Protocol;
