//! One tier's counter of a key, whichever state machine counts: [`Counter`].
//!
//! It exists under the lock of its shard, and knows of no charges. `with_machine` has an
//! arm for each kind of machine. Invariant: an
//! operation changes one state and nothing else of the shard, unless it makes way
//! for a new state.

use crate::{
    algorithm::{Claim, State, StateMachine},
    backend::request::{LONGEST_RACE, Versioned},
    fingerprint::Fingerprint,
    store::{Shard, Store, Stored},
};

/// For how long, in nanoseconds, threads are often held up between reading the
/// clock and taking the lock.
const USUAL_RACE: u64 = 1_000_000;

/// The state of a key, and the machine that counts in it.
pub(super) struct Counter<'c, M> {
    pub(super) store: &'c Store,
    pub(super) shard: &'c mut Shard,
    pub(super) machine: &'c M,
    pub(super) key: Fingerprint,
}

/// Runs one expression with a counter, made of its store, shard, machine and key,
/// whichever machine counts in it.
macro_rules! with_counter {
    ($parts:expr, $counter:ident => $body:expr) => {{
        let (store, shard, machine, key) = $parts;
        let shard: &mut $crate::store::Shard = shard;
        $crate::backend::memory::counter::with_machine!(machine, machine => {
            let $counter = &mut $crate::backend::memory::counter::Counter { store, shard, machine, key };
            $body
        })
    }};
}

/// Runs one expression for whichever state machine it is.
macro_rules! with_machine {
    ($machine:expr, $of_kind:ident => $body:expr) => {
        match $machine {
            $crate::algorithm::Machine::Bucket($of_kind) => $body,
            $crate::algorithm::Machine::WideBucket($of_kind) => $body,
            $crate::algorithm::Machine::FixedWindow($of_kind) => $body,
            $crate::algorithm::Machine::SlidingWindow($of_kind) => $body,
            $crate::algorithm::Machine::SlidingLog($of_kind) => $body,
            $crate::algorithm::Machine::InFlight($of_kind) => $body,
        }
    };
}

pub(super) use {with_counter, with_machine};

/// Whether a key without a state gets an entry for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// An entry is reserved.
    Reserved,
    /// The key was displaced a short time ago: its state has an entry again.
    Restored,
    /// No entry is free, and no state may be displaced.
    Rejected,
}

impl<M: StateMachine<State: Stored>> Counter<'_, M> {
    #[inline]
    fn locate(&mut self) -> Option<usize> {
        self.shard.locate::<M::State>(self.key)
    }

    /// Charges a state that exists, or is not needed, if it admits the cost at once. Always inlined: a call
    /// passes all its parts through memory.
    #[inline(always)]
    pub(super) fn try_charge(&mut self, now: u64, cost: u64) -> Option<Versioned> {
        let Some(state) = self.shard.state_mut(self.key) else { return self.charge_nothing(now, cost) };
        let status = self.machine.charge(state, now, cost)?;
        state.account(&self.store.log_memory);
        Some((status, self.machine.version(state)))
    }

    /// A cost of 0 needs no state: a state that does not exist is as a new one.
    #[cold]
    fn charge_nothing(&self, now: u64, cost: u64) -> Option<Versioned> {
        let is_admitted = cost == 0 && self.shard.read(self.key, |state| self.machine.admits(state, now, cost));
        is_admitted.then(|| self.status(now))
    }

    /// The state, whether it has an entry or was displaced.
    fn state_mut(&mut self) -> Option<&mut M::State> {
        match self.locate() {
            Some(index) => Some(M::State::table_mut(self.shard).state_mut(index)),
            None => self.shard.displaced_mut(self.key),
        }
    }

    /// Whether a state that exists, or is not needed, admits the cost at once.
    #[inline]
    pub(super) fn admits(&mut self, now: u64, cost: u64) -> bool {
        match self.shard.state_mut(self.key) {
            Some(state) => self.machine.admits(state, now, cost),
            None => self.charge_nothing(now, cost).is_some(),
        }
    }

    /// Commits a cost that was admitted at once.
    #[inline]
    pub(super) fn commit_now(&mut self, now: u64, cost: u64) -> Option<Versioned> {
        let Some(state) = self.shard.state_mut(self.key) else { return self.charge_nothing(now, cost) };
        self.machine.commit(state, now, now, cost);
        state.account(&self.store.log_memory);
        Some((self.machine.status_of(state, now), self.machine.version(state)))
    }

    /// Whether the state has an entry, and when the cost would conform. After the clock was
    /// set back, a state that is further ahead than its span and `bound` is moved back
    /// to that.
    pub(super) fn look(&mut self, now: u64, cost: u64, bound: Option<u64>) -> (bool, Option<u64>) {
        let machine = self.machine;
        if let Some(bound) = bound
            && let Some(state) = self.state_mut()
        {
            let latest = now.saturating_add(machine.span()).saturating_add(bound);
            if (latest..u64::MAX).contains(&state.idle_at()) {
                machine.move_back(state, latest);
            }
        }
        (self.exists(), self.shard.read(self.key, |state| machine.earliest(state, now, cost)))
    }

    /// Whether the key has a state. If it was counted in another form, it is in that of
    /// the machine afterwards.
    pub(super) fn exists(&mut self) -> bool {
        self.locate().is_some()
    }

    /// When a cost that could be admitted at `at` should be, for the tier's pace;
    /// and until when it could be put off.
    pub(super) fn pace(&self, at: u64, cost: u64) -> (u64, u64) {
        self.shard.read(self.key, |state| {
            (self.machine.smooth_departure(state, at, cost), self.machine.latest_departure(state, at))
        })
    }

    /// Changes the state, which is created if it does not exist. Returns how many states
    /// that were idle at `horizon` were dropped meanwhile.
    fn change(&mut self, horizon: u64, change: impl FnOnce(&M, &mut M::State)) -> usize {
        self.shard.change(&self.store.log_memory, self.key, horizon, |state| change(self.machine, state))
    }

    /// As [`Self::change`], commits to the state.
    pub(super) fn commit(&mut self, horizon: u64, (now, at): (u64, u64), cost: u64) -> usize {
        self.change(horizon, |machine, state| machine.commit(state, now, at, cost))
    }

    /// As [`Self::change`], charges a debt to the state.
    pub(super) fn charge_debt(&mut self, horizon: u64, now: u64, units: u64, claim: &mut Claim) -> usize {
        self.change(horizon, |machine, state| machine.charge_debt(state, now, units, claim))
    }

    /// Reserves an entry for a key that has none. At the cap, another key of the same
    /// rule and tier makes way: of those in a sample, the one with the most left. If
    /// the sample has none, one of the rule with the most states does.
    ///
    /// A displaced state is kept aside for some time. So a flood of new keys gives no
    /// key its quota back. States beyond the span stay, except for keys of other rules:
    /// they are in debt or reserved. States in flight always stay.
    pub(super) fn reserve(&mut self, now: u64) -> Entry {
        let (store, machine, key) = (self.store, self.machine, self.key);
        let latest = now.saturating_add(machine.span());
        let left = |state: &M::State| (state.idle_at() <= latest).then(|| machine.status_of(state, now).remaining);
        let capacity = store.displaced_per_shard();
        // Before another state is displaced, lest that drops this one.
        let own: Option<M::State> = self.shard.take_displaced(key);
        let displace = |shard: &mut Shard| shard.displace(key, left, capacity) || shard.displace_other(key, capacity);
        match (store.reserve(self.shard, now, displace), own) {
            (true, None) => Entry::Reserved,
            (true, Some(own)) => {
                store.release(self.change(store.horizon(now), |_, state| *state = own));
                Entry::Restored
            }
            (false, own) => {
                own.into_iter().for_each(|own| self.shard.keep_displaced(key, own, capacity));
                Entry::Rejected
            }
        }
    }

    /// Drops the state, whether it has an entry or was displaced. Returns how many
    /// entries became free, and whether there was a state.
    pub(super) fn forget(&mut self) -> (usize, bool) {
        let index = self.locate();
        let is_displaced = self.shard.take_displaced::<M::State>(self.key).is_some();
        if let Some(index) = index {
            drop(M::State::table_mut(self.shard).take(index));
        }
        (usize::from(index.is_some()), index.is_some() || is_displaced)
    }

    /// How many of `units` there is capacity for, of a quota of `most`, and at what
    /// time: at `now`, or later by as much as a thread may have been overtaken.
    pub(super) fn capacity(&mut self, most: u64, now: u64, units: u64) -> (u64, u64) {
        let (machine, most) = (self.machine, units.min(most));
        self.exists();
        self.shard.read(self.key, |state| {
            let fits = |units, within| {
                let at = machine.earliest(state, now, units).filter(|at| at - now <= within)?;
                Some((units, at))
            };
            // What remains is available, however long this thread was held up.
            let remaining = || fits(machine.status_of(state, now).remaining.min(most), LONGEST_RACE);
            fits(most, USUAL_RACE).or_else(remaining).unwrap_or((0, now))
        })
    }

    /// Whether nothing was charged after the claim. Nothing was where there is no
    /// state.
    pub(super) fn is_last(&mut self, now: u64, claim: &Claim) -> bool {
        self.exists();
        self.shard.state(self.key).is_none_or(|state| self.machine.is_last(state, now, claim))
    }

    /// Refunds to a state that still exists.
    pub(super) fn refund(&mut self, now: u64, units: u64, claim: &mut Claim) {
        let machine = self.machine;
        if let Some(state) = self.state_mut() {
            machine.refund(state, now, units, claim);
        }
    }

    /// The status of the key's state.
    pub(super) fn status(&self, now: u64) -> Versioned {
        self.shard.read(self.key, |state| (self.machine.status_of(state, now), self.machine.version(state)))
    }
}
