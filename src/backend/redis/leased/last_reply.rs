//! How the units of a pool were charged, and the status of their counters then:
//! [`LastReply`]. It counts no units.
//!
//! Invariant: a status is as old as the reply that it is from.

use std::sync::Arc;

use smallvec::SmallVec;

use super::pool_template::PoolTemplate;
use crate::backend::{
    Outcome, OutcomeKind, TierState, TierStates,
    redis::{
        plan::{Change, ChargeSet, Definition},
        wire::{ChargeReply, statuses},
    },
};

/// What the store replied last about a pool, without its units.
#[derive(Clone, Debug)]
pub(super) struct LastReply {
    pub(super) template: Arc<PoolTemplate>,
    /// The part of the counters' names that other pools do not have. A short one takes no
    /// memory of its own.
    tag: SmallVec<[u8; 16]>,
    /// In microseconds, on the store's clock.
    pub(super) now: u64,
    pub(super) numbers: PackedStatus,
}

impl LastReply {
    pub(super) fn new(template: Arc<PoolTemplate>, tag: &str, reply: &ChargeReply) -> Self {
        Self {
            template,
            tag: SmallVec::from_slice(tag.as_bytes()),
            now: reply.now,
            numbers: PackedStatus::new(&reply.tiers),
        }
    }

    /// How each tier counts, and its numbers.
    #[inline]
    fn tiers(&self) -> impl Iterator<Item = (&Definition, [u64; 3])> {
        self.template.definitions().enumerate().map(|(index, definition)| (definition, self.numbers.of(index)))
    }

    /// When units expire that were asked for at `asked`. Those that no window bounds
    /// are leased for `lasts`. The store has decided after that, so a window ends later
    /// than it.
    pub(super) fn expiry(&self, lasts: u64, asked: u64) -> u64 {
        let tiers = self.template.definitions().zip(self.statuses(0));
        let ends = tiers.map(|(definition, status)| if definition.ends_with_window() { status.reset } else { lasts });
        asked.saturating_add(ends.min().unwrap_or(0))
    }

    /// How many units the store could lease beyond these.
    pub(super) fn headroom(&self) -> u64 {
        let units = |(definition, status): (&Definition, TierState)| status.remaining / definition.cost.max(1);
        self.template.definitions().zip(self.statuses(0)).map(units).min().unwrap_or(0)
    }

    /// By how much the last of the windows outlasts the first.
    pub(super) fn window_spread(&self) -> u64 {
        let resets = || self.statuses(0).map(|status| status.reset);
        resets().max().unwrap_or(0) - resets().min().unwrap_or(0)
    }

    /// The status of all tiers while `later` units were not taken.
    #[inline]
    pub(super) fn statuses(&self, later: u64) -> impl Iterator<Item = TierState> {
        statuses(self.tiers(), later, 0)
    }

    /// The outcome of a request that is admitted with these states, of an `age` since the
    /// store was asked, in nanoseconds.
    pub(super) fn admit(&self, age: u64, tiers: TierStates) -> Outcome {
        let decided_at = Some(self.now.saturating_mul(1_000).saturating_add(age));
        Outcome { answer: OutcomeKind::Admitted { wait: 0 }, tiers, decided_at, later: 0 }
    }

    /// What one request of the pool is charged.
    pub(super) fn charge_set(&self, now: Option<u64>) -> ChargeSet {
        self.template.charge_set(str::from_utf8(&self.tag).unwrap_or_default(), now)
    }

    /// The changes that refund so many units.
    pub(super) fn refunds(&self, units: u64, now: Option<u64>) -> Vec<Change> {
        let mut set = self.charge_set(now);
        set.tiers.iter_mut().for_each(|tier| tier.definition = tier.definition.repeated(units));
        Change::undo(&set, &self.admit(0, self.statuses(0).collect()))
    }
}

/// Three numbers of each tier.
#[derive(Clone, Debug)]
pub(super) enum PackedStatus {
    /// Of one tier, as most rules have. Windows longer than 71 minutes need more.
    Narrow([u32; 3]),
    Wide(Box<SmallVec<[[u64; 3]; 2]>>),
}

impl PackedStatus {
    pub(super) fn new(tiers: &[[u64; 3]]) -> Self {
        if let [[first, second, third]] = *tiers
            && let (Ok(first), Ok(second), Ok(third)) = (first.try_into(), second.try_into(), third.try_into())
        {
            return Self::Narrow([first, second, third]);
        }
        Self::Wide(Box::new(tiers.into()))
    }

    /// Those of the tier at an index.
    #[inline]
    pub(super) fn of(&self, tier: usize) -> [u64; 3] {
        match self {
            Self::Narrow(numbers) => numbers.map(u64::from),
            Self::Wide(all) => all.get(tier).copied().unwrap_or_default(),
        }
    }
}
