//! Charges the messages of a gRPC stream one by one: [`MessageLimiter`], for those of a server in
//! the response's body, and of a client in the request's.
//!
//! It reads only the five bytes in front of each message, however HTTP frames
//! split them. It never reads a payload. The invariant: no byte of a message passes
//! before the message is admitted.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use tokio::time::Instant;

use crate::{
    decision::RateLimited,
    limiter::{Driving, Lease, Next},
    policy::Messages,
    sync::lock,
};

/// Admits the messages of one direction of a call. The first one was charged
/// with the request.
pub(super) struct MessageLimiter {
    lease: Arc<Lease>,
    messages: Messages,
    max_wait: Duration,
    deadline: Option<Instant>,
    position: Position,
    /// The message that `position` is in, or that begins there.
    message: Message,
    /// Bytes that have not been admitted.
    buffered: Bytes,
}

/// The state of a message.
enum Message {
    /// Not yet charged.
    New,
    /// The mutex only makes the type `Sync`; it is never locked.
    Waits(Mutex<Driving>),
    Admitted,
    Rejected(RateLimited),
}

/// The position of the next byte in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    /// The bytes of the prefix, up to here: a flag, and four bytes of length.
    seen: u8,
    /// The length as far as it is known, and behind the prefix what is left of it.
    left: u32,
}

const START: Position = Position { seen: 0, left: 0 };

/// The length of a message's prefix.
const PREFIX: u8 = 5;

/// Why a stream of messages stopped.
pub(super) enum Stopped<E> {
    /// A message was rejected.
    Rejected(RateLimited),
    /// The body has failed.
    Failed(E),
}

type NextFrame<B> = Option<Result<Frame<<B as Body>::Data>, Stopped<<B as Body>::Error>>>;

impl MessageLimiter {
    pub(super) fn new(lease: &Arc<Lease>, messages: Messages, max_wait: Duration, time_left: Duration) -> Self {
        Self {
            lease: Arc::clone(lease),
            messages,
            max_wait,
            deadline: Instant::now().checked_add(time_left),
            position: START,
            message: Message::Admitted,
            buffered: Bytes::new(),
        }
    }

    /// The next frame of `body`, once the messages in it are admitted.
    pub(super) fn poll_frame<B>(&mut self, mut body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<NextFrame<B>>
    where
        B: Body<Data: From<Bytes>>,
    {
        loop {
            if let Some(admitted) = ready!(self.poll_admitted(cx)) {
                let frame = admitted.map(|bytes| Frame::data(B::Data::from(bytes)));
                return Poll::Ready(Some(frame.map_err(Stopped::Rejected)));
            }
            match ready!(body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Some(frame) = self.buffer(frame) {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                end => return Poll::Ready(end.map(|frame| frame.map_err(Stopped::Failed))),
            }
        }
    }

    /// Keeps the data of a frame until it is admitted. Returns any other frame.
    fn buffer<D: Buf>(&mut self, frame: Frame<D>) -> Option<Frame<D>> {
        match frame.into_data() {
            Ok(mut data) if data.has_remaining() => {
                self.buffered = data.copy_to_bytes(data.remaining());
                None
            }
            Ok(empty) => Some(Frame::data(empty)),
            Err(frame) => Some(frame),
        }
    }

    pub(super) fn has_buffered(&self) -> bool {
        !self.buffered.is_empty()
    }

    /// The next buffered bytes, once they are admitted. `None` if there are none.
    fn poll_admitted(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RateLimited>>> {
        let mut admitted = 0;
        while admitted < self.buffered.len() && self.poll_message(cx).is_ready() {
            if let Message::Rejected(_) = self.message {
                break;
            }
            let (position, rest) = self.position.advance(&self.buffered[admitted..]);
            admitted = self.buffered.len() - rest.len();
            self.position = position;
            if position == START {
                self.message = Message::New;
            }
        }
        // The messages in front of one that waits or is rejected do not wait for it.
        if admitted > 0 {
            return Poll::Ready(Some(Ok(self.buffered.split_to(admitted))));
        }
        match &self.message {
            Message::Rejected(rejection) => Poll::Ready(Some(Err(rejection.clone()))),
            _ if self.buffered.is_empty() => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }

    /// Ready once the message is admitted or rejected.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Message::New = self.message {
            self.message = self.charge();
        }
        if let Message::Waits(driving) = &mut self.message {
            let driving = driving.get_mut().unwrap_or_else(PoisonError::into_inner);
            let (decision, admission) = ready!(driving.as_mut().poll(cx));
            self.message = if decision.is_allowed() {
                drop(admission.take_lease());
                Message::Admitted
            } else {
                Message::Rejected(RateLimited::new(decision))
            };
        }
        Poll::Ready(())
    }

    /// Charges the next message.
    fn charge(&self) -> Message {
        let left = self.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        let (decision, next) = self.lease.charge_message(self.messages, self.max_wait.min(left));
        match next {
            Next::Wait(admission) => Message::Waits(Mutex::new(admission.drive(decision))),
            Next::Done(_) if decision.is_allowed() => Message::Admitted,
            Next::Done(_) => Message::Rejected(RateLimited::new(decision)),
        }
    }
}

impl Position {
    /// Advances to the end of the message, or of the bytes.
    fn advance(mut self, mut bytes: &[u8]) -> (Self, &[u8]) {
        while let [byte, rest @ ..] = bytes
            && self.seen < PREFIX
        {
            // The four bytes that follow shift the flag out.
            self.left = self.left << 8 | u32::from(*byte);
            self.seen += 1;
            bytes = rest;
        }
        if self.seen < PREFIX {
            return (self, bytes);
        }
        let taken = bytes.len().min(self.left as usize);
        // `taken` is at most `left`, which has 32 bits.
        self.left -= taken as u32;
        (if self.left == 0 { START } else { self }, &bytes[taken..])
    }
}

impl fmt::Debug for MessageLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLimiter").field("position", &self.position).finish_non_exhaustive()
    }
}

/// The limiters of the messages that a client streams, on their way to the
/// request's body. With the feature `tonic`, `charge_client_messages` takes
/// them from the request's extensions.
#[derive(Clone, Debug)]
pub struct ClientMessages(
    /// One per layer, the outermost first.
    Arc<Mutex<Vec<MessageLimiter>>>,
);

impl ClientMessages {
    /// Inside of the limiters of outer layers.
    pub(super) fn new(limiter: MessageLimiter, outer: Option<Self>) -> Self {
        let mut limiters = outer.map(|outer| outer.take()).unwrap_or_default();
        limiters.push(limiter);
        Self(Arc::new(Mutex::new(limiters)))
    }

    fn take(&self) -> Vec<MessageLimiter> {
        std::mem::take(&mut *lock(&self.0))
    }
}

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
#[cfg(feature = "tonic")]
#[must_use]
pub fn charge_client_messages(mut request: http::Request<tonic::body::Body>) -> http::Request<tonic::body::Body> {
    let limiters = request.extensions_mut().remove::<ClientMessages>();
    let limiters = limiters.map(|limiters| limiters.take()).unwrap_or_default();
    limiters.into_iter().fold(request, |request, messages| {
        request.map(|inner| tonic::body::Body::new(LimitedBody { inner, messages, is_rejected: false }))
    })
}

/// A body whose messages are admitted one by one. It ends with the first rejected one.
#[cfg(feature = "tonic")]
struct LimitedBody {
    inner: tonic::body::Body,
    messages: MessageLimiter,
    is_rejected: bool,
}

#[cfg(feature = "tonic")]
impl Body for LimitedBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
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

#[cfg(test)]
mod tests;
