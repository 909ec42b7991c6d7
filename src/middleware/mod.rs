//! The tower middleware: [`RateLimitLayer`] and [`RateLimit`].
//!
//! One [`Service`](tower_service::Service) implementation serves every use,
//! over two seams: [`Describe`] says what the limiter needs to know of a
//! request, [`Answer`] turns decisions into what the caller sees.

mod answer;
mod body;
mod charge;
mod describe;
mod feedback;
mod future;
mod layer;
mod messages;
#[cfg(feature = "tonic")]
mod metered;
mod service;

#[cfg(feature = "tonic")]
pub use self::metered::metered;
pub use self::{
    answer::{Answer, Fail, Respond},
    body::Body,
    charge::{ChargeHandle, InFlightGuard},
    describe::{Describe, Keyed},
    feedback::UpstreamFeedback,
    future::ResponseFuture,
    layer::RateLimitLayer,
    messages::ClientMessages,
    service::RateLimit,
};
