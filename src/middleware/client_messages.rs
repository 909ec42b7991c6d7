//! Charges the messages that a client streams, in the request's body.
//!
//! The layer leaves the limiters in the request's extensions; the function here
//! puts them around tonic's body. The invariant: a stream ends with its first rejected
//! message.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use tonic::{Status, body::Body};

use super::messages::{ClientMessages, MessageLimiter, Stopped};

/// Charges the messages that a client streams, for rules with
/// [`Rule::per_message`](crate::Rule::per_message). The layer cannot reach into
/// a request's body, so this function is mapped over requests directly inside
/// of it, or of the innermost of several. Other requests pass unchanged.
///
/// A message over the limit ends the handler's stream with the status
/// `RESOURCE_EXHAUSTED`, which the handler may return.
///
/// ```
/// use tonic::transport::Server;
/// use tower::util::MapRequestLayer;
/// use tower_ratelimit::{Quota, Policy, RateLimitLayer, RateLimiter, Rule, middleware, policy::Messages};
///
/// let import = Rule::new("import")
///     .path("/shop.v1.Products/Import")
///     .tier(Quota::per_second(100))
///     .per_message(Messages::Client);
/// let limiter = RateLimiter::new(Policy::new().rule(import))?;
/// let server = Server::builder()
///     .layer(RateLimitLayer::new(limiter))
///     .layer(MapRequestLayer::new(middleware::charge_client_messages));
/// # let _ = server;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[must_use]
pub fn charge_client_messages(mut request: Request<Body>) -> Request<Body> {
    let limiters = request.extensions_mut().remove::<ClientMessages>();
    let limiters = limiters.map(|limiters| limiters.take()).unwrap_or_default();
    limiters.into_iter().fold(request, |request, messages| {
        request.map(|inner| Body::new(LimitedBody { inner, messages, is_rejected: false }))
    })
}

/// A body whose messages are admitted one by one.
struct LimitedBody {
    inner: Body,
    messages: MessageLimiter,
    is_rejected: bool,
}

impl http_body::Body for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { inner, messages, is_rejected } = &mut *self;
        if *is_rejected {
            return Poll::Ready(None);
        }
        let frame = ready!(messages.poll_frame(Pin::new(inner), cx));
        *is_rejected = matches!(frame, Some(Err(Stopped::Rejected(_))));
        Poll::Ready(frame.map(|frame| {
            frame.map_err(|stopped| match stopped {
                Stopped::Rejected(rejection) => rejection.to_status(),
                Stopped::Failed(error) => error,
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.is_rejected || !self.messages.has_buffered() && self.inner.is_end_stream()
    }
}
