//! Operations on one tier's state, whichever state machine counts it.
//!
//! Each runs under the lock of its shard, and none knows of charges. Invariant: an
//! operation changes one state and nothing else of the shard, unless it makes way
//! for a new state.

use std::sync::Arc;

use crate::{
    algorithm::{Claim, LogMemory, Machine, QuotaStatus, State, StateMachine},
    backend::request::LONGEST_RACE,
    fingerprint::Fingerprint,
    policy::Tier,
    store::{Shard, Shelf, Store},
};

/// For how long, in nanoseconds, threads are often held up between reading the
/// clock and taking the lock.
const USUAL_RACE: u64 = 1_000_000;

/// Runs one expression for whichever state machine it is.
macro_rules! with_machine {
    ($kind:expr, $machine:ident => $body:expr) => {
        match $kind {
            Machine::Bucket($machine) => $body,
            Machine::WideBucket($machine) => $body,
            Machine::FixedWindow($machine) => $body,
            Machine::SlidingWindow($machine) => $body,
            Machine::SlidingLog($machine) => $body,
            Machine::InFlight($machine) => $body,
        }
    };
}

/// A state after it was charged, and the version that a claim on the charge has to
/// remember.
pub(super) type Versioned = (QuotaStatus, u64);

/// The index of a state that exists, if it admits the cost at once.
#[inline]
pub(super) fn admits(shard: &mut Shard, kind: &Machine, key: Fingerprint, now: u64, cost: u64) -> Option<usize> {
    fn admits<M: StateMachine>(shard: &mut Shard, machine: &M, key: Fingerprint, now: u64, cost: u64) -> Option<usize>
    where
        Shard: Shelf<M::State>,
    {
        let index = Shelf::<M::State>::locate(shard, key)?;
        let state = Shelf::<M::State>::table_mut(shard).state(index);
        let is_admitted =
            machine.earliest(state, now, cost) == Some(now) && machine.smooth_departure(state, now, cost) == now;
        is_admitted.then_some(index)
    }
    with_machine!(kind, machine => admits(shard, machine, key, now, cost))
}

/// Charges a state that exists, if it admits the cost at once.
#[inline]
pub(super) fn try_charge(
    memory: &Arc<LogMemory>,
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    (now, cost): (u64, u64),
) -> Option<Versioned> {
    #[inline]
    fn charge<M: StateMachine>(
        memory: &Arc<LogMemory>,
        shard: &mut Shard,
        machine: &M,
        key: Fingerprint,
        (now, cost): (u64, u64),
    ) -> Option<Versioned>
    where
        Shard: Shelf<M::State>,
    {
        let state = Shelf::<M::State>::state_mut(shard, key)?;
        let status = machine.charge(state, now, cost)?;
        state.account(memory);
        Some((status, machine.version(state)))
    }
    with_machine!(kind, machine => charge(memory, shard, machine, key, (now, cost)))
}

/// The state of a key, whether it has an entry or was displaced.
fn state_mut<M: StateMachine>(shard: &mut Shard, key: Fingerprint) -> Option<&mut M::State>
where
    Shard: Shelf<M::State>,
{
    match Shelf::<M::State>::locate(shard, key) {
        Some(index) => Some(Shelf::<M::State>::table_mut(shard).state_mut(index)),
        None => shard.displaced_mut(key),
    }
}

/// The index of the state, and when the cost would conform. After the clock was
/// set back, a state that is further ahead than its span and `bound` is moved back
/// to that.
#[inline]
pub(super) fn look(
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    cost: u64,
    bound: Option<u64>,
) -> (Option<usize>, Option<u64>) {
    #[inline]
    fn look<M: StateMachine>(
        shard: &mut Shard,
        machine: &M,
        key: Fingerprint,
        (now, cost): (u64, u64),
        bound: Option<u64>,
    ) -> (Option<usize>, Option<u64>)
    where
        Shard: Shelf<M::State>,
    {
        if let Some(bound) = bound
            && let Some(state) = state_mut::<M>(shard, key)
        {
            let latest = now.saturating_add(machine.span()).saturating_add(bound);
            if (latest..u64::MAX).contains(&state.idle_at()) {
                machine.move_back(state, now, latest);
            }
        }
        match Shelf::<M::State>::locate(shard, key) {
            Some(index) => (Some(index), machine.earliest(Shelf::table_mut(shard).state(index), now, cost)),
            None => (None, shard.read(key, |state| machine.earliest(state, now, cost))),
        }
    }
    with_machine!(kind, machine => look(shard, machine, key, (now, cost), bound))
}

/// Whether a key has a state. If it was counted in another form, it is in that of the
/// machine afterwards.
pub(super) fn exists(shard: &mut Shard, kind: &Machine, key: Fingerprint) -> bool {
    fn exists<M: StateMachine>(shard: &mut Shard, _: &M, key: Fingerprint) -> bool
    where
        Shard: Shelf<M::State>,
    {
        Shelf::<M::State>::locate(shard, key).is_some()
    }
    with_machine!(kind, machine => exists(shard, machine, key))
}

/// When a cost that could be admitted at `at` should be, for the tier's pace;
/// and until when it could be put off.
pub(super) fn pace(shard: &Shard, kind: &Machine, key: Fingerprint, at: u64, cost: u64) -> (u64, u64) {
    with_machine!(kind, machine => shard.read(key, |state| {
        (machine.smooth_departure(state, at, cost), machine.latest_departure(state, at))
    }))
}

#[inline]
pub(super) fn commit_at(
    memory: &Arc<LogMemory>,
    shard: &mut Shard,
    kind: &Machine,
    (key, hint): (Fingerprint, usize),
    (now, at): (u64, u64),
    cost: u64,
) {
    fn commit<M: StateMachine>(
        memory: &Arc<LogMemory>,
        shard: &mut Shard,
        machine: &M,
        (key, hint): (Fingerprint, usize),
        (now, at): (u64, u64),
        cost: u64,
    ) where
        Shard: Shelf<M::State>,
    {
        // An entry moves where another tier's state took another form.
        let table = Shelf::<M::State>::table_mut(shard);
        if let Some(index) = table.find_near(key, hint) {
            let state = table.state_mut(index);
            machine.commit(state, now, at, cost);
            state.account(memory);
        }
    }
    with_machine!(kind, machine => commit(memory, shard, machine, (key, hint), (now, at), cost))
}

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

/// Reserves an entry for a key that has none. At the cap, another key of the same
/// rule and tier makes way: of those in a sample, the one with the most left. If
/// the sample has none, one of the rule with the most states does.
///
/// A displaced state is kept aside for some time. So a flood of new keys gives no
/// key its quota back. States beyond the span stay, except for keys of other rules:
/// they are in debt or reserved. States in flight always stay.
pub(super) fn reserve(store: &Store, shard: &mut Shard, kind: &Machine, key: Fingerprint, now: u64) -> Entry {
    fn reserve<M: StateMachine>(store: &Store, shard: &mut Shard, machine: &M, key: Fingerprint, now: u64) -> Entry
    where
        Shard: Shelf<M::State>,
    {
        let latest = now.saturating_add(machine.span());
        let left = |state: &M::State| (state.idle_at() <= latest).then(|| machine.status_of(state, now).remaining);
        let capacity = store.displaced_per_shard();
        // Before another state is displaced, lest that drops this one.
        let own: Option<M::State> = shard.take_displaced(key);
        let displace = |shard: &mut Shard| shard.displace(key, left, capacity) || shard.displace_other(key, capacity);
        match (store.reserve(shard, now, displace), own) {
            (true, None) => Entry::Reserved,
            (true, Some(own)) => {
                store.release(shard.change(&store.log_memory, key, store.horizon(now), |state| *state = own));
                Entry::Restored
            }
            (false, own) => {
                own.into_iter().for_each(|own| shard.keep_displaced(key, own, capacity));
                Entry::Rejected
            }
        }
    }
    with_machine!(kind, machine => reserve(store, shard, machine, key, now))
}

/// Drops the state of a key, whether it has an entry or was displaced. Returns
/// how many entries became free.
pub(super) fn forget(shard: &mut Shard, kind: &Machine, key: Fingerprint) -> usize {
    fn forget<M: StateMachine>(shard: &mut Shard, _: &M, key: Fingerprint) -> usize
    where
        Shard: Shelf<M::State>,
    {
        let index = Shelf::<M::State>::locate(shard, key);
        drop(shard.take_displaced::<M::State>(key));
        index.map_or(0, |index| {
            drop(Shelf::<M::State>::table_mut(shard).take(index));
            1
        })
    }
    with_machine!(kind, machine => forget(shard, machine, key))
}

/// Commits to the state of a key, which is created if it does not exist.
/// Returns how many states that were idle at `horizon` were dropped meanwhile.
pub(super) fn commit_by_key(
    memory: &Arc<LogMemory>,
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    (now, at): (u64, u64),
    cost: u64,
    horizon: u64,
) -> usize {
    with_machine!(kind, machine => shard.change(memory, key, horizon, |state| machine.commit(state, now, at, cost)))
}

/// Charges a debt to a state, which is created if it does not exist. Returns
/// how many states that were idle at `horizon` were dropped meanwhile.
pub(super) fn charge_debt(
    memory: &Arc<LogMemory>,
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    (now, units): (u64, u64),
    claim: &mut Claim,
    horizon: u64,
) -> usize {
    with_machine!(kind, machine => shard.change(memory, key, horizon, |state| machine.charge_debt(state, now, units, claim)))
}

/// How many of `units` a key has capacity for, and at what time: at `now`, or
/// later by as much as a thread may have been overtaken.
pub(super) fn capacity(shard: &mut Shard, tier: &Tier, key: Fingerprint, now: u64, units: u64) -> (u64, u64) {
    exists(shard, &tier.machine, key);
    let most = units.min(tier.quota.capacity());
    with_machine!(&tier.machine, machine => shard.read(key, |state| {
        let fits = |units, within| {
            let at = machine.earliest(state, now, units).filter(|at| at - now <= within)?;
            Some((units, at))
        };
        // What remains is available, however long this thread was held up.
        let remaining = || fits(machine.status_of(state, now).remaining.min(most), LONGEST_RACE);
        fits(most, USUAL_RACE).or_else(remaining).unwrap_or((0, now))
    }))
}

/// Whether nothing was charged after the claim. Nothing was where there is no
/// state.
pub(super) fn is_last(shard: &mut Shard, kind: &Machine, key: Fingerprint, now: u64, claim: &Claim) -> bool {
    exists(shard, kind, key);
    with_machine!(kind, machine => shard.state(key).is_none_or(|state| machine.is_last(state, now, claim)))
}

/// Refunds to a state that still exists.
pub(super) fn refund(shard: &mut Shard, kind: &Machine, key: Fingerprint, now: u64, units: u64, claim: &mut Claim) {
    fn refund<M: StateMachine>(
        shard: &mut Shard,
        machine: &M,
        key: Fingerprint,
        now: u64,
        units: u64,
        claim: &mut Claim,
    ) where
        Shard: Shelf<M::State>,
    {
        if let Some(state) = state_mut::<M>(shard, key) {
            machine.refund(state, now, units, claim);
        }
    }
    with_machine!(kind, machine => refund(shard, machine, key, now, units, claim))
}

/// The status of the state at `hint`, or else of `key`; and the version that a
/// claim on its last charge has to remember.
#[inline]
pub(super) fn status_of(shard: &Shard, kind: &Machine, key: Fingerprint, hint: usize, now: u64) -> Versioned {
    with_machine!(kind, machine => match shard.table().and_then(|table| Some(table.state(table.find_near(key, hint)?))) {
        Some(state) => (machine.status_of(state, now), machine.version(state)),
        None => shard.read(key, |state| (machine.status_of(state, now), machine.version(state))),
    })
}
