use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use tonic::{Status, body::Body};

use super::{
    ClientMessages,
    messages::{Meter, Passage},
};

/// Charges the messages that a client streams, where a rule wants it by
/// [`Rule::per_message`](crate::Rule::per_message): to stand right inside of the
/// layer, or of the innermost of several, which cannot reach into a request's
/// body by itself. Other requests pass as they are.
///
/// A message that is over the limit is the end of the handler's stream, as a
/// status: `RESOURCE_EXHAUSTED`, which it may hand on.
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
///     .layer(MapRequestLayer::new(middleware::metered));
/// # let _ = server;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[must_use]
pub fn metered(mut request: Request<Body>) -> Request<Body> {
    let messages = request.extensions_mut().remove::<ClientMessages>();
    let meters = messages.map(|messages| messages.take()).unwrap_or_default();
    meters.into_iter().fold(request, |request, meter| {
        request.map(|inner| Body::new(Metered { inner, meter, rest: Bytes::new(), ended: false }))
    })
}

/// A body whose messages are let through one by one.
struct Metered {
    inner: Body,
    meter: Meter,
    /// What the inner body gave last that has not gone.
    rest: Bytes,
    ended: bool,
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { inner, meter, rest, ended } = &mut *self;
        loop {
            if *ended {
                return Poll::Ready(None);
            }
            if !rest.is_empty() {
                return Poll::Ready(Some(match ready!(meter.poll(cx, rest)) {
                    Passage::Goes(bytes) => Ok(Frame::data(rest.split_to(bytes.min(rest.len())))),
                    Passage::Rejected(rejection) => {
                        *ended = true;
                        Err(rejection.to_status())
                    }
                }));
            }
            match ready!(Pin::new(&mut *inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => *rest = data,
                    Ok(empty) => return Poll::Ready(Some(Ok(Frame::data(empty)))),
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return Poll::Ready(other),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.rest.is_empty() && self.inner.is_end_stream()
    }
}

impl fmt::Debug for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metered").field("meter", &self.meter).finish_non_exhaustive()
    }
}
