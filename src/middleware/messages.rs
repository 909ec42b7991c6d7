//! Charges the messages of a gRPC stream one by one: [`MessageLimiter`].
//!
//! It reads only the five bytes in front of each message, however HTTP frames
//! split them. It never reads a payload.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::Frame;
use tokio::time::Instant;

use crate::{
    decision::RateLimited,
    limiter::{Admission, Driving, Lease},
    policy::Messages,
};

/// Admits the messages of one direction of a call. The first one was charged
/// with the request.
pub(super) struct MessageLimiter {
    lease: Arc<Lease>,
    messages: Messages,
    max_wait: Duration,
    deadline: Option<Instant>,
    position: Position,
    is_started: bool,
    /// Whether the message that begins at `position` has been admitted.
    is_admitted: bool,
    /// The wait of that message. The mutex only makes the type `Sync`; it is
    /// never locked.
    wait: Option<Mutex<Driving>>,
    rejected: Option<RateLimited>,
    /// Bytes that have not been admitted.
    buffered: Bytes,
}

/// The position of the next byte in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// In the prefix: a flag, and four bytes of length. The bytes seen so far,
    /// and the length as far as it is known.
    Prefix { seen: u8, length: u32 },
    /// In the payload.
    Payload { left: u32 },
}

const START: Position = Position::Prefix { seen: 0, length: 0 };

impl MessageLimiter {
    pub(super) fn new(lease: &Arc<Lease>, messages: Messages, max_wait: Duration, time_left: Duration) -> Self {
        Self {
            lease: Arc::clone(lease),
            messages,
            max_wait,
            deadline: Instant::now().checked_add(time_left),
            position: START,
            is_started: false,
            is_admitted: false,
            wait: None,
            rejected: None,
            buffered: Bytes::new(),
        }
    }

    /// Keeps the data of a frame until it is admitted. Returns any other frame.
    pub(super) fn buffer<D: Buf>(&mut self, frame: Frame<D>) -> Option<Frame<D>> {
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
    pub(super) fn poll_admitted(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RateLimited>>> {
        if self.buffered.is_empty() {
            return Poll::Ready(None);
        }
        let bytes = self.buffered.clone();
        Poll::Ready(Some(ready!(self.poll_bytes(cx, &bytes)).map(|admitted| self.buffered.split_to(admitted))))
    }

    /// The number of these bytes that are admitted, at least one.
    fn poll_bytes(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, RateLimited>> {
        if let Some(rejected) = self.rejected.take() {
            return Poll::Ready(Err(rejected));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.position == START && !self.is_admitted {
                let admitted = bytes.len() - rest.len();
                match self.poll_message(cx) {
                    Poll::Ready(Ok(())) => self.is_admitted = true,
                    Poll::Ready(Err(rejected)) if admitted == 0 => return Poll::Ready(Err(rejected)),
                    Poll::Pending if admitted == 0 => return Poll::Pending,
                    // The messages before it do not wait for it.
                    Poll::Ready(Err(rejected)) => {
                        self.rejected = Some(rejected);
                        return Poll::Ready(Ok(admitted));
                    }
                    Poll::Pending => return Poll::Ready(Ok(admitted)),
                }
            }
            (self.position, rest) = self.position.advance(rest);
            if self.position == START {
                self.is_admitted = false;
            }
        }
        Poll::Ready(Ok(bytes.len()))
    }

    /// Charges the message that begins here.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RateLimited>> {
        if !std::mem::replace(&mut self.is_started, true) {
            return Poll::Ready(Ok(()));
        }
        let mut wait = match self.wait.take() {
            Some(wait) => wait,
            None => {
                let left = self.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
                let (decision, admission) = self.lease.charge_message(self.messages, self.max_wait.min(left));
                match admission {
                    None if !decision.is_allowed() => return Poll::Ready(Err(RateLimited::new(decision))),
                    Some(admission) if !admission.is_done() => Mutex::new(admission.drive(decision)),
                    admission => {
                        drop(admission.map(Admission::take_lease));
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        };
        match wait.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(cx) {
            Poll::Ready((decision, admission)) if decision.is_allowed() => {
                drop(admission.take_lease());
                Poll::Ready(Ok(()))
            }
            Poll::Ready((decision, _)) => Poll::Ready(Err(RateLimited::new(decision))),
            Poll::Pending => {
                self.wait = Some(wait);
                Poll::Pending
            }
        }
    }
}

impl Position {
    /// Advances to the end of the message, or of the bytes.
    fn advance(self, bytes: &[u8]) -> (Self, &[u8]) {
        match (self, bytes) {
            (Self::Prefix { seen, length }, [byte, rest @ ..]) => {
                // The four bytes that follow shift the flag out.
                let length = length << 8 | u32::from(*byte);
                let position = match seen {
                    4 if length == 0 => START,
                    4 => Self::Payload { left: length },
                    _ => Self::Prefix { seen: seen + 1, length },
                };
                (position, rest)
            }
            (Self::Payload { left }, bytes) => {
                let taken = bytes.len().min(left as usize);
                let (_, rest) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
                // `taken` is at most `left`, which has 32 bits.
                let position = match left - taken as u32 {
                    0 => START,
                    left => Self::Payload { left },
                };
                (position, rest)
            }
            (position, []) => (position, &[]),
        }
    }
}

impl fmt::Debug for MessageLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLimiter")
            .field("messages", &self.messages)
            .field("position", &self.position)
            .finish_non_exhaustive()
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
    pub(super) fn new(limiter: MessageLimiter) -> Self {
        Self(Arc::new(Mutex::new(vec![limiter])))
    }

    /// Adds the limiters of an outer layer.
    pub(super) fn inside(self, outer: &Self) -> Self {
        let mut limiters = outer.take();
        limiters.append(&mut self.take());
        Self(Arc::new(Mutex::new(limiters)))
    }

    pub(super) fn take(&self) -> Vec<MessageLimiter> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_frames_split_them() {
        // Three messages: 3 bytes, 0 bytes and 300 bytes.
        let mut stream = vec![0, 0, 0, 0, 3, 7, 7, 7, 1, 0, 0, 0, 0, 0, 0, 0, 1, 44];
        stream.extend([9; 300]);
        for size in 1..=stream.len() {
            let (mut position, mut starts, mut at) = (START, Vec::new(), 0);
            for chunk in stream.chunks(size) {
                let mut rest = chunk;
                while !rest.is_empty() {
                    if position == START {
                        starts.push(at + chunk.len() - rest.len());
                    }
                    (position, rest) = position.advance(rest);
                }
                at += chunk.len();
            }
            assert_eq!((starts, position), (vec![0, 8, 13], START), "chunks of {size}");
        }
    }
}
