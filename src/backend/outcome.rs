//! A backend's reply to one request: [`Outcome`]. It states what was decided and
//! keeps nothing; a receipt is made from it.
//!
//! Invariant: an outcome that is not admitted charged nothing.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{algorithm::QuotaStatus, fingerprint::Fingerprint, policy::charge::Charge, time::nanos};

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
    /// With the state's version, of a tier that is counted by its own counter in this
    /// process.
    #[inline]
    pub(crate) fn new((QuotaStatus { remaining, reset }, mark): (QuotaStatus, u64), violated: bool) -> Self {
        Self { remaining, reset, violated, shared: false, mark, ahead: 0, age: 0 }
    }

    /// Nanoseconds from now.
    #[inline]
    pub(crate) fn resets_in(&self) -> u64 {
        self.reset.saturating_sub(self.age)
    }
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
