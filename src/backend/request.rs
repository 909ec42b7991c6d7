//! The request to a backend, [`AcquireRequest`], and its reply, [`Acquire`].

use std::{fmt, future::Future, pin::Pin, time::Duration};

use super::outcome::Outcome;
use crate::{error::BackendError, policy::charge::Charge, time::Timestamp};

/// The charges of one request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AcquireRequest<'a> {
    /// One for each rule that applies; their keys differ.
    pub charges: &'a [Charge<'a>],
    /// The time of the request. Backends with a clock of their own may use
    /// theirs.
    pub now: Timestamp,
    /// The longest wait that the caller accepts for the whole request. Each
    /// charge has a bound of its own as well: see [`Charge::max_wait`].
    pub max_wait: Duration,
    /// The earliest time at which the request may be admitted: a key of it is
    /// cooling down until then. At `now` or earlier without a cooldown. The
    /// limiter asks only a backend of this crate that decides in this process
    /// for a later time; any other is asked once the time has come.
    pub not_before: Timestamp,
}

impl<'a> AcquireRequest<'a> {
    pub(crate) fn new(charges: &'a [Charge<'a>], now: Timestamp, max_wait: Duration) -> Self {
        Self { charges, now, max_wait, not_before: Timestamp::from_nanos(0) }
    }

    pub(crate) fn not_before(self, not_before: Timestamp) -> Self {
        Self { not_before, ..self }
    }

    /// Nanoseconds until its cooldown ends.
    pub(super) fn cooldown_left(&self) -> u64 {
        self.not_before.as_nanos().saturating_sub(self.now.as_nanos())
    }
}

/// An outcome, now or later.
#[non_exhaustive]
pub enum Acquire {
    /// Decided.
    Ready(Result<Outcome, BackendError>),
    /// A remote store decides. Dropping the future may leave the request
    /// charged. A backend that counts in-flight units must then still release
    /// them: by finishing what it began, or by leases that expire.
    ///
    /// The backend must have a deadline of its own, and reply with an error once
    /// it has passed. For a request that may not wait, the limiter waits for the
    /// reply without a bound. For a request that may wait, the limiter stops
    /// when the longest wait is over, but not before one second. It then applies
    /// the rules' failure modes, or leaves the request in its wait queue.
    Pending(Answering),
}

/// The future of a store's outcome.
pub type Answering = Pin<Box<dyn Future<Output = Result<Outcome, BackendError>> + Send>>;

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

/// What a backend keeps in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Counters in this process: one for each tier of a key.
    pub keys: usize,
    /// Decisions that shared an overflow counter, because the cap on keys was
    /// reached and no counter could be displaced.
    pub overflowed: u64,
    /// Counters in use that new keys displaced, because the cap on keys was
    /// reached.
    pub displaced: u64,
}
