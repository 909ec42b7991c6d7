//! The tower middleware: [`RateLimitLayer`] and [`RateLimit`].
//!
//! One [`Service`](tower_service::Service) implementation serves every use. It
//! has two seams: [`Describe`] describes a request to the limiter, [`Answer`]
//! turns decisions into what the caller sees.

mod answer;
mod body;
mod charge;
#[cfg(feature = "tonic")]
mod client_messages;
mod connection;
mod describe;
mod feedback;
mod future;
mod http_answer;
mod layer;
mod messages;
mod rejection;
mod service;

#[cfg(feature = "tonic")]
pub use self::client_messages::charge_client_messages;
pub use self::{
    answer::{AdmissionContext, Answer, ErrorAnswer, RejectionContext},
    body::Body,
    charge::{ChargeHandle, InFlightGuard},
    connection::ConnectionPermit,
    describe::{Describe, Keyed},
    feedback::{CooldownScope, UpstreamFeedback},
    future::ResponseFuture,
    http_answer::HttpAnswer,
    layer::RateLimitLayer,
    messages::ClientMessages,
    rejection::Rejection,
    service::RateLimit,
};
