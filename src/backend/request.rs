//! The question to a backend, [`Request`], and its reply, [`Decide`].
//!
//! A request holds nothing of its own: it borrows from the caller. Invariant: a
//! backend sees the same request from every caller; callers differ only in what they
//! allow it to do.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use super::outcome::{Outcome, OutcomeKind};
use crate::{
    error::BackendError,
    policy::{CompiledPolicy, charge::Charge},
    time::Timestamp,
};

/// The charges of one request, and how it may be decided.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Request<'a> {
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
    pub(crate) is_immediate: bool,
    pub(crate) caller: Option<&'a dyn Caller>,
    /// The policy that the charges were made under, to give back a part of them.
    pub(crate) policy: Option<&'a Arc<CompiledPolicy>>,
}

/// What an engine in this process asks the limiter while it decides.
pub(crate) trait Caller {
    /// Counts the request as a waiter: the engine is about to reserve a time in
    /// the future for it. `false` if too many wait; then it must not reserve.
    /// Called with locks held, so it must not decide anything.
    fn enters_queue(&self) -> bool;

    /// The time on the limiter's clock. Called without a lock.
    fn now(&self) -> Timestamp;
}

impl<'a> Request<'a> {
    pub(crate) fn new(charges: &'a [Charge<'a>], now: Timestamp, max_wait: Duration) -> Self {
        let not_before = Timestamp::from_nanos(0);
        Self { charges, now, max_wait, not_before, is_immediate: false, caller: None, policy: None }
    }

    pub(crate) fn not_before(self, not_before: Timestamp) -> Self {
        Self { not_before, ..self }
    }

    /// Whether the caller cannot await a reply
    /// ([`try_check`](crate::RateLimiter::try_check)). A backend that would have to
    /// answer [`Decide::Later`] must then charge nothing and send nothing. Its
    /// future is dropped without being polled.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        self.is_immediate
    }

    /// Nanoseconds until its cooldown ends.
    pub(super) fn cooldown_left(&self) -> u64 {
        self.not_before.as_nanos().saturating_sub(self.now.as_nanos())
    }

    /// Asks the limiter for a place among its waiters.
    pub(super) fn enters_queue(&self) -> bool {
        self.caller.is_none_or(Caller::enters_queue)
    }

    /// The same request at the clock's present time, if the wait for which it was
    /// rejected is over by then: another thread read the clock later, and took the
    /// lock first.
    #[cold]
    pub(super) fn overtaken(&self, outcome: &Outcome) -> Option<Self> {
        let OutcomeKind::Rejected { retry_after: Some(wait) } = outcome.answer else { return None };
        let caller = self.caller.filter(|_| wait <= LONGEST_RACE)?;
        let later = caller.now();
        (later.as_nanos().saturating_sub(self.now.as_nanos()) >= wait).then_some(Self { now: later, ..*self })
    }
}

/// For how long, in nanoseconds, a busy machine may hold up a thread between
/// reading the clock and taking the lock.
pub(crate) const LONGEST_RACE: u64 = 1_000_000_000;

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { charges, now, max_wait, not_before, is_immediate, caller: _, policy: _ } = self;
        f.debug_struct("Request")
            .field("charges", charges)
            .field("now", now)
            .field("max_wait", max_wait)
            .field("not_before", not_before)
            .field("is_immediate", is_immediate)
            .finish_non_exhaustive()
    }
}

/// A decision, now or later.
#[non_exhaustive]
pub enum Decide {
    /// Decided.
    Now(Result<Outcome, BackendError>),
    /// A remote store decides. Dropping the future may leave the request
    /// charged. A backend that counts in-flight units must then still release
    /// them: by finishing what it began, or by leases that expire.
    ///
    /// The backend must have a deadline of its own, and reply with an error once
    /// it has passed. For a request that may not wait, the limiter waits for the
    /// reply without a bound. For a request that may wait, the limiter stops
    /// when the longest wait is over, but not before one second. It then applies
    /// the rules' failure modes, or leaves the request in its wait queue.
    Later(BoxFuture<'static, Result<Outcome, BackendError>>),
}

impl Decide {
    /// Decides with a future.
    pub fn later(reply: impl Future<Output = Result<Outcome, BackendError>> + Send + 'static) -> Self {
        Self::Later(Box::pin(reply))
    }
}

impl fmt::Debug for Decide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(result) => f.debug_tuple("Now").field(result).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// What a backend keeps in this process.
///
/// ```
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(Quota::per_minute(10))?;
/// let _ = limiter.try_check(&Descriptor::new("/").tenant("acme"));
/// assert_eq!(limiter.stats().backend.keys, 1);
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
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
