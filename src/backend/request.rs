//! The question to a backend, [`Request`], and its answer: [`Decide`], an [`Outcome`] now
//! or later. They decide nothing, and keep nothing; a receipt is made from an outcome.
//!
//! Invariants: a backend sees the same request from every caller; callers differ only in
//! what they allow it to do. An outcome that is not admitted charged nothing.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use crate::{
    algorithm::QuotaStatus,
    error::BackendError,
    fingerprint::Fingerprint,
    policy::{CompiledPolicy, Tier, charge::Charge},
    time::{Timestamp, nanos},
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
    fn try_enter_queue(&self) -> bool;

    /// The time on the limiter's clock. Called without a lock.
    fn now(&self) -> Timestamp;
}

impl<'a> Request<'a> {
    pub(crate) fn new(charges: &'a [Charge<'a>], now: Timestamp, max_wait: Duration) -> Self {
        let not_before = Timestamp::from_nanos(0);
        Self { charges, now, max_wait, not_before, is_immediate: false, caller: None, policy: None }
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
    pub(super) fn try_enter_queue(&self) -> bool {
        self.caller.is_none_or(Caller::try_enter_queue)
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

/// The tiers of all charges, in order, each with its charge.
pub(crate) fn tiers<'c>(charges: &'c [Charge<'c>]) -> impl Iterator<Item = (&'c Charge<'c>, &'c Tier)> {
    charges.iter().flat_map(|charge| charge.tiers().iter().map(move |tier| (charge, tier)))
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

/// What a backend decided, and the status of each tier.
///
/// ```
/// use tower_ratelimit::backend::Outcome;
///
/// /// For the log of a decorator.
/// fn describe(outcome: &Outcome) -> String {
///     match outcome.retry_after() {
///         _ if outcome.is_admitted() => format!("admitted after {:?}", outcome.wait()),
///         Some(time) => format!("rejected for {time:?}"),
///         None => "rejected".to_owned(),
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(crate) answer: OutcomeKind,
    pub(crate) tiers: TierStates,
    /// The time of the decision in nanoseconds on the backend's own clock, if it
    /// has one. Claims are then in that clock's time.
    pub(crate) decided_at: Option<u64>,
    /// By how many nanoseconds it was decided later than asked, on the limiter's
    /// clock: another thread was faster.
    pub(crate) later: u64,
}

impl Outcome {
    /// Everything was charged; the request is admitted after `wait`, which is
    /// usually zero.
    #[must_use]
    pub fn admitted(wait: Duration) -> Self {
        Self::of(OutcomeKind::Admitted { wait: nanos(wait) })
    }

    /// Nothing was charged; the same request could be admitted after
    /// `retry_after`, or never.
    #[must_use]
    pub fn rejected(retry_after: Option<Duration>) -> Self {
        Self::of(OutcomeKind::Rejected { retry_after: retry_after.map(nanos) })
    }

    /// Nothing was charged: a concurrency limit among this charge's tiers is
    /// full, for an unknown time. Every other tier of the request would admit it
    /// within the allowed wait.
    #[must_use]
    pub fn busy(full: &Charge<'_>) -> Self {
        let tier = full.tiers().iter().find(|tier| tier.is_in_flight());
        Self::of(OutcomeKind::Busy { key: tier.map_or(full.key, |tier| full.key.tier(tier.salt)) })
    }

    fn of(answer: OutcomeKind) -> Self {
        Self { answer, ..Self::undecided() }
    }

    /// To be filled in, on the limiter's clock.
    #[inline]
    pub(crate) fn undecided() -> Self {
        let answer = OutcomeKind::Rejected { retry_after: None };
        Self { answer, tiers: SmallVec::new(), decided_at: None, later: 0 }
    }

    /// Adds the status of the next tier, in the order of the charges and their
    /// tiers: units remaining, time until the quota is full again (or its window
    /// ends), and whether the tier is why the request is rejected or waits.
    #[must_use]
    pub fn tier(mut self, remaining: u64, reset: Duration, violated: bool) -> Self {
        self.tiers.push(TierState::new((QuotaStatus { remaining, reset: nanos(reset) }, 0), violated));
        self
    }

    /// Whether everything was charged and the request is admitted, now or after
    /// [`wait`](Self::wait).
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        matches!(self.answer, OutcomeKind::Admitted { .. })
    }

    /// How long an admitted request waits; zero for a rejected one.
    #[must_use]
    pub fn wait(&self) -> Duration {
        match self.answer {
            OutcomeKind::Admitted { wait } => Duration::from_nanos(wait),
            OutcomeKind::Rejected { .. } | OutcomeKind::Busy { .. } => Duration::ZERO,
        }
    }

    /// The time after which a rejected request could be admitted. `None` if it
    /// never could be, if the time is unknown, and for an admitted request.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.answer {
            OutcomeKind::Rejected { retry_after } => retry_after.map(Duration::from_nanos),
            OutcomeKind::Admitted { .. } | OutcomeKind::Busy { .. } => None,
        }
    }

    /// Whether it was rejected because a concurrency limit is full.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self.answer, OutcomeKind::Busy { .. })
    }

    /// The tiers, as [`tier`](Self::tier) takes them: units remaining, time
    /// until reset, and whether the tier is why the request is rejected or
    /// waits.
    pub fn tiers(&self) -> impl ExactSizeIterator<Item = (u64, Duration, bool)> + '_ {
        self.tiers.iter().map(|tier| (tier.remaining, Duration::from_nanos(tier.resets_in()), tier.violated))
    }
}

pub(crate) type TierStates = SmallVec<[TierState; 2]>;

/// The tiers of a request that is admitted at once. More than an outcome has in place, as
/// these are not moved.
#[derive(Debug, Default)]
#[allow(unnameable_types, reason = "sealed")]
pub struct ImmediateStates(pub(crate) SmallVec<[TierState; 4]>);

/// The kind of an outcome. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeKind {
    /// Everything is charged; the request is admitted after `wait`.
    Admitted { wait: u64 },
    /// Nothing is charged; the same request could be admitted after
    /// `retry_after`, or never.
    Rejected { retry_after: Option<u64> },
    /// Nothing is charged: a concurrency limit is full, for an unknown time.
    /// `key` is that of its counter.
    Busy { key: Fingerprint },
}

/// A tier's status, and the version that a claim on its last charge has to remember.
pub(crate) type Versioned = (QuotaStatus, u64);

/// A tier's status after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TierState {
    pub(crate) remaining: u64,
    /// Nanoseconds, from when the status was read.
    pub(crate) reset: u64,
    pub(crate) violated: bool,
    /// Charged to the rule's overflow counter.
    pub(crate) shared: bool,
    /// The state's version, for claims.
    pub(crate) mark: u64,
    /// Nanoseconds by which the clock of the server that decided is ahead of
    /// `decided_at`: the nodes of a cluster have different clocks.
    pub(crate) ahead: i64,
    /// Nanoseconds since the status was read, and its units were charged.
    pub(crate) age: u64,
}

impl TierState {
    /// Of a tier that is counted by its own counter in this process.
    #[inline]
    pub(crate) fn new((QuotaStatus { remaining, reset }, mark): Versioned, violated: bool) -> Self {
        Self { remaining, reset, violated, shared: false, mark, ahead: 0, age: 0 }
    }

    /// Nanoseconds from now.
    #[inline]
    pub(crate) fn resets_in(&self) -> u64 {
        self.reset.saturating_sub(self.age)
    }
}
