//! Messages of gRPC streams that are charged one by one. Of a stream only the
//! five bytes in front of each message are looked at, wherever the frames of
//! HTTP cut it.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    decision::RateLimited,
    limiter::{Admission, Driving, Lease},
    policy::Messages,
};

/// Lets the messages of one direction of a call through as they are admitted.
/// The first has been charged with the request.
pub(super) struct Meter {
    hold: Arc<Lease>,
    messages: Messages,
    max_wait: Duration,
    deadline: Option<Instant>,
    place: Place,
    started: bool,
    /// The message that begins here may go.
    admitted: bool,
    /// It waits for its turn. Locked by nobody: it makes what holds it `Sync`.
    waits: Option<Mutex<Driving>>,
    rejected: Option<RateLimited>,
}

/// Where in a message the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// So many bytes into what stands in front of it: a flag, and four bytes of
    /// its length, as far as they are known.
    Prefix { seen: u8, length: u32 },
    /// So many bytes from its end.
    Payload { left: u32 },
}

const START: Place = Place::Prefix { seen: 0, length: 0 };

/// What becomes of bytes that want through.
#[derive(Debug)]
pub(super) enum Passage {
    /// So many of them may go now.
    Goes(usize),
    /// None, and nothing after them.
    Rejected(RateLimited),
}

impl Meter {
    pub(super) fn new(hold: &Arc<Lease>, messages: Messages, max_wait: Duration, time_left: Duration) -> Self {
        Self {
            hold: Arc::clone(hold),
            messages,
            max_wait,
            deadline: Instant::now().checked_add(time_left),
            place: START,
            started: false,
            admitted: false,
            waits: None,
            rejected: None,
        }
    }

    /// How many of these bytes may go; each that does is to be taken away
    /// before it is asked again.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Passage> {
        if let Some(rejected) = self.rejected.take() {
            return Poll::Ready(Passage::Rejected(rejected));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.place == START && !self.admitted {
                let gone = bytes.len() - rest.len();
                match self.poll_admitted(cx) {
                    Poll::Ready(Ok(())) => self.admitted = true,
                    Poll::Ready(Err(rejected)) if gone == 0 => return Poll::Ready(Passage::Rejected(rejected)),
                    Poll::Pending if gone == 0 => return Poll::Pending,
                    // What stands before it need not wait for it.
                    Poll::Ready(Err(rejected)) => {
                        self.rejected = Some(rejected);
                        return Poll::Ready(Passage::Goes(gone));
                    }
                    Poll::Pending => return Poll::Ready(Passage::Goes(gone)),
                }
            }
            (self.place, rest) = self.place.take(rest);
            if self.place == START {
                self.admitted = false;
            }
        }
        Poll::Ready(Passage::Goes(bytes.len()))
    }

    fn poll_admitted(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RateLimited>> {
        if !std::mem::replace(&mut self.started, true) {
            return Poll::Ready(Ok(()));
        }
        let mut waits = match self.waits.take() {
            Some(waits) => waits,
            None => {
                let left = self.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
                let (decision, admission) = self.hold.charge_message(self.messages, self.max_wait.min(left));
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
        match waits.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(cx) {
            Poll::Ready((decision, admission)) if decision.is_allowed() => {
                drop(admission.take_lease());
                Poll::Ready(Ok(()))
            }
            Poll::Ready((decision, _)) => Poll::Ready(Err(RateLimited::new(decision))),
            Poll::Pending => {
                self.waits = Some(waits);
                Poll::Pending
            }
        }
    }
}

impl Place {
    /// Goes on to the end of the message, or of the bytes.
    fn take(self, bytes: &[u8]) -> (Self, &[u8]) {
        match (self, bytes) {
            (Self::Prefix { seen, length }, [byte, rest @ ..]) => {
                // The flag is shifted out by the four bytes that follow.
                let length = length << 8 | u32::from(*byte);
                let place = match seen {
                    4 if length == 0 => START,
                    4 => Self::Payload { left: length },
                    _ => Self::Prefix { seen: seen + 1, length },
                };
                (place, rest)
            }
            (Self::Payload { left }, bytes) => {
                let taken = bytes.len().min(left as usize);
                let (_, rest) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
                // No more than `left`, which is 32 bits.
                let place = match left - taken as u32 {
                    0 => START,
                    left => Self::Payload { left },
                };
                (place, rest)
            }
            (place, []) => (place, &[]),
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("messages", &self.messages).field("place", &self.place).finish_non_exhaustive()
    }
}

/// The meter of what a client streams, on its way to the request's body: taken
/// up by `metered`, with the feature `tonic`.
#[derive(Clone, Debug)]
pub struct ClientMessages(
    /// One for each layer around, the outermost first.
    Arc<Mutex<Vec<Meter>>>,
);

impl ClientMessages {
    pub(super) fn new(meter: Meter) -> Self {
        Self(Arc::new(Mutex::new(vec![meter])))
    }

    /// The same, inside of another layer's.
    pub(super) fn inside(self, outer: &Self) -> Self {
        let mut meters = outer.take();
        meters.append(&mut self.take());
        Self(Arc::new(Mutex::new(meters)))
    }

    pub(super) fn take(&self) -> Vec<Meter> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_wherever_they_are_cut() {
        // Three messages: of 3 bytes, of none, and of 300.
        let mut stream = vec![0, 0, 0, 0, 3, 7, 7, 7, 1, 0, 0, 0, 0, 0, 0, 0, 1, 44];
        stream.extend([9; 300]);
        for size in 1..=stream.len() {
            let (mut place, mut starts, mut at) = (START, Vec::new(), 0);
            for chunk in stream.chunks(size) {
                let mut rest = chunk;
                while !rest.is_empty() {
                    if place == START {
                        starts.push(at + chunk.len() - rest.len());
                    }
                    (place, rest) = place.take(rest);
                }
                at += chunk.len();
            }
            assert_eq!((starts, place), (vec![0, 8, 13], START), "chunks of {size}");
        }
    }
}
