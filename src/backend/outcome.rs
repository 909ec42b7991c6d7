//! A backend's reply to one request.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{fingerprint::Fingerprint, policy::charge::Charge, time::nanos};

/// A backend's answer.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(crate) answer: Answer,
    pub(crate) tiers: SmallVec<[TierState; 2]>,
    /// When it was decided, in nanoseconds on the backend's own clock, where
    /// it has one: claims on what was charged are then in its time.
    pub(crate) decided_at: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Charged, to go after so many nanoseconds.
    Admitted { wait: u64 },
    /// Not charged; would pass after so many nanoseconds.
    Rejected { retry_after: Option<u64> },
    /// Not charged: a limit on what is in flight is full, and nobody knows for
    /// how long. The key is that of its counter.
    Busy { key: Fingerprint },
}

/// Where a tier stands after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TierState {
    pub(crate) remaining: u64,
    /// Nanoseconds.
    pub(crate) reset: u64,
    pub(crate) violated: bool,
    /// Charged to the counter that the rule's keys share.
    pub(crate) shared: bool,
    /// What a claim on what was charged has to remember.
    pub(crate) mark: u64,
    /// How far, in nanoseconds, the clock that it was decided by is ahead of
    /// the outcome's: a store of several servers has several.
    pub(crate) ahead: i64,
}

impl Outcome {
    /// All was charged; the request goes after `wait`, nearly always zero.
    #[must_use]
    pub fn admitted(wait: Duration) -> Self {
        let wait = nanos(wait);
        Self { answer: Answer::Admitted { wait }, tiers: SmallVec::new(), decided_at: None }
    }

    /// Nothing was charged; the same request could pass after `retry_after`,
    /// or never.
    #[must_use]
    pub fn rejected(retry_after: Option<Duration>) -> Self {
        let retry_after = retry_after.map(crate::time::nanos);
        Self { answer: Answer::Rejected { retry_after }, tiers: SmallVec::new(), decided_at: None }
    }

    /// Nothing was charged: of the tiers that limit what is in flight, one of
    /// this charge's is full, and nobody knows when that ends. Every other tier
    /// of the request would have let it pass within the wait that is allowed.
    #[must_use]
    pub fn busy(full: &Charge<'_>) -> Self {
        let key = full.key;
        let tier = full.tiers().iter().find(|tier| tier.is_in_flight());
        Self {
            answer: Answer::Busy { key: tier.map_or(key, |tier| key.tier(tier.salt)) },
            tiers: SmallVec::new(),
            decided_at: None,
        }
    }

    /// Says where the next tier stands, in the order of the charges and their
    /// tiers: units left, time until it is full again (or its window ends),
    /// and whether it is why the request was rejected or has to wait.
    #[must_use]
    pub fn tier(mut self, remaining: u64, reset: Duration, violated: bool) -> Self {
        self.tiers.push(TierState { remaining, reset: nanos(reset), violated, shared: false, mark: 0, ahead: 0 });
        self
    }

    /// Whether all was charged and the request is admitted, now or after
    /// [`wait`](Self::wait).
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        matches!(self.answer, Answer::Admitted { .. })
    }

    /// How long an admitted request waits; zero for a rejected one.
    #[must_use]
    pub fn wait(&self) -> Duration {
        match self.answer {
            Answer::Admitted { wait } => Duration::from_nanos(wait),
            Answer::Rejected { .. } | Answer::Busy { .. } => Duration::ZERO,
        }
    }

    /// After how long a rejected request could pass; `None` where it never
    /// could, where that is unknown, and for an admitted one.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.answer {
            Answer::Rejected { retry_after } => retry_after.map(Duration::from_nanos),
            Answer::Admitted { .. } | Answer::Busy { .. } => None,
        }
    }

    /// Whether it was rejected because a concurrency limit is full.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self.answer, Answer::Busy { .. })
    }

    /// The tiers, as [`tier`](Self::tier) takes them: units remaining, time
    /// until reset, and whether the tier is why the request is rejected or
    /// waits.
    pub fn tiers(&self) -> impl ExactSizeIterator<Item = (u64, Duration, bool)> + '_ {
        self.tiers.iter().map(|tier| (tier.remaining, Duration::from_nanos(tier.reset), tier.violated))
    }
}
