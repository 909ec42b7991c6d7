//! What a copy counts, tier by tier: [`Counts`], by the machines that count for `Local`.
//! It knows no budget, and no reports.
//!
//! Invariant: a charge is of all tiers, or of none. Tiers come in the same order each
//! time.

use smallvec::SmallVec;

use crate::{
    algorithm::{Claim, CompactState, CopiedState, Machine, QuotaStatus, StateMachine, WideState},
    backend::{QuotaStatuses, redis::plan::Counters},
    policy::Tier,
};

#[derive(Debug, Default)]
pub(super) struct Counts(SmallVec<[Counted; 1]>);

/// One tier.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) count: Count,
    /// The mark of claims on what is charged now.
    pub(super) mark: u64,
}

/// The state of one tier. Sliding logs and concurrency limits have no copies.
#[derive(Debug)]
pub(super) enum Count {
    Compact(CompactState),
    /// Boxed, since most quotas need two words.
    Wide(Box<WideState>),
}

/// Runs one expression for whichever machine counts in a state, or else another one.
macro_rules! with_machine {
    ($kind:expr, $count:expr, ($machine:ident, $state:ident) => $body:expr, else $other:expr) => {
        match ($kind, $count) {
            (Machine::TokenBucket($machine), Count::Compact($state)) => $body,
            (Machine::LeakyBucket($machine), Count::Compact($state)) => $body,
            (Machine::FixedWindow($machine), Count::Compact($state)) => $body,
            (Machine::SlidingWindow($machine), Count::Wide($state)) => $body,
            (Machine::WideGcra($machine), Count::Wide($state)) => $body,
            _ => $other,
        }
    };
}

/// The tiers that counters count.
pub(super) fn tiers_of(counters: &Counters) -> impl ExactSizeIterator<Item = &Tier> {
    counters.tiers().iter().map(|tier| &tier.tier)
}

impl Counts {
    /// Replaces what is counted by what the store has. Each tier has its mark.
    pub(super) fn restore<'t>(&mut self, tiers: impl Iterator<Item = (&'t Tier, CopiedState, u64)>) {
        for (index, (tier, copied, mark)) in tiers.enumerate() {
            if self.0.len() == index {
                self.0.push(Counted { count: Count::new(&tier.machine), mark });
            }
            if let Some(Counted { count, mark: own }) = self.0.get_mut(index) {
                *own = mark;
                with_machine!(&tier.machine, &mut *count, (machine, state) => machine.restore(state, copied), else ());
            }
        }
    }

    /// Charges units, whatever the limits are.
    pub(super) fn add<'t>(&mut self, tiers: impl Iterator<Item = &'t Tier>, units: u64, now: u64) {
        tiers.zip(&mut self.0).for_each(|(tier, own)| own.count.add(&tier.machine, units, now));
    }

    /// Charges all tiers and adds what is left of each, if all admit the cost at `now`;
    /// else changes nothing.
    #[inline]
    pub(super) fn try_charge<'t>(
        &mut self,
        tiers: impl ExactSizeIterator<Item = &'t Tier> + Clone,
        cost: u64,
        now: u64,
        statuses: &mut QuotaStatuses,
    ) -> bool {
        let is_one = self.0.len() == 1;
        if tiers.len() != self.0.len() || !(is_one || self.admits(tiers.clone(), cost, now)) {
            return false;
        }
        tiers.zip(&mut self.0).all(|(tier, own)| {
            let charged = own.count.charge(&tier.machine, cost, now);
            statuses.extend(charged);
            charged.is_some()
        })
    }

    /// Whether all tiers admit the cost at `now`.
    pub(super) fn admits<'t>(&self, tiers: impl Iterator<Item = &'t Tier>, cost: u64, now: u64) -> bool {
        tiers.zip(&self.0).all(|(tier, own)| own.count.earliest(&tier.machine, cost, now) == Some(now))
    }

    /// What counts for each tier.
    pub(super) fn of<'c>(
        &'c mut self,
        tiers: impl Iterator<Item = &'c Tier>,
    ) -> impl Iterator<Item = (&'c Tier, &'c mut Counted)> {
        tiers.zip(&mut self.0)
    }
}

impl Count {
    fn new(machine: &Machine) -> Self {
        match machine {
            Machine::SlidingWindow(_) | Machine::WideGcra(_) => Self::Wide(Box::default()),
            _ => Self::Compact(CompactState::default()),
        }
    }

    #[inline]
    fn charge(&mut self, machine: &Machine, cost: u64, now: u64) -> Option<QuotaStatus> {
        with_machine!(machine, self, (machine, state) => machine.charge(state, now, cost), else None)
    }

    fn add(&mut self, machine: &Machine, units: u64, now: u64) {
        let mut claim = Claim { units: 0, at: 0, until: 0, detail: 0 };
        if units > 0 {
            with_machine!(machine, self, (machine, state) => machine.charge_debt(state, now, units, &mut claim), else ());
        }
    }

    /// When the cost would be admitted; `None` if never.
    pub(super) fn earliest(&self, machine: &Machine, cost: u64, now: u64) -> Option<u64> {
        with_machine!(machine, self, (machine, state) => machine.earliest(state, now, cost), else None)
    }

    /// Charges a cost that is admitted at `now`.
    pub(super) fn commit(&mut self, machine: &Machine, cost: u64, now: u64) {
        with_machine!(machine, self, (machine, state) => machine.commit(state, now, now, cost), else ());
    }

    pub(super) fn status(&self, machine: &Machine, now: u64) -> QuotaStatus {
        let none = QuotaStatus { remaining: 0, reset: 0 };
        with_machine!(machine, self, (machine, state) => machine.status_of(state, now), else none)
    }
}
