//! Operations on one tier's state, whichever state machine counts it.
//!
//! Each runs under the lock of its shard, and finds the state by its key. None
//! knows of charges or of other tiers.

use crate::{
    algorithm::{Claim, CompactState, Machine, QuotaStatus, State, StateMachine, WideState},
    fingerprint::Fingerprint,
    policy::Tier,
    store::{Shard, Shelf},
};

/// For how long, in nanoseconds, a busy machine may hold up a thread between
/// reading the clock and taking the lock.
pub(crate) const LONGEST_RACE: u64 = 1_000_000_000;

/// For how long, in nanoseconds, threads are often held up there.
const USUAL_RACE: u64 = 1_000_000;

/// Runs one expression for whichever state machine it is.
macro_rules! with_machine {
    ($kind:expr, $machine:ident => $body:expr) => {
        match $kind {
            Machine::TokenBucket($machine) => $body,
            Machine::FixedWindow($machine) => $body,
            Machine::LeakyBucket($machine) => $body,
            Machine::SlidingWindow($machine) => $body,
            Machine::SlidingLog($machine) => $body,
            Machine::WideGcra($machine) => $body,
            Machine::InFlight($machine) => $body,
            Machine::SharedTokenBucket($machine) => out_of_line(|| $body),
            Machine::SharedLeakyBucket($machine) => out_of_line(|| $body),
            Machine::SharedWideGcra($machine) => out_of_line(|| $body),
            Machine::SharedFixedWindow($machine) => out_of_line(|| $body),
        }
    };
}

/// Machines of shares are large: inlined, they make all others slower.
#[inline(never)]
fn out_of_line<R>(run: impl FnOnce() -> R) -> R {
    run()
}

#[inline]
fn find<'s, M: StateMachine>(shard: &'s Shard, _: &M, key: Fingerprint) -> Option<(usize, &'s M::State)>
where
    Shard: Shelf<M::State>,
{
    let table = shard.table()?;
    table.find(key).map(|index| (index, table.state(index)))
}

#[inline]
fn find_mut<'s, M: StateMachine>(shard: &'s mut Shard, _: &M, key: Fingerprint) -> Option<&'s mut M::State>
where
    Shard: Shelf<M::State>,
{
    let index = shard.table()?.find(key)?;
    Some(shard.table_mut().state_mut(index))
}

/// Reads the state of a key, or a new one.
#[inline]
fn read<M: StateMachine, R>(shard: &Shard, machine: &M, key: Fingerprint, read: impl FnOnce(&M::State) -> R) -> R
where
    Shard: Shelf<M::State>,
{
    match find(shard, machine, key) {
        Some((_, state)) => read(state),
        None => read(&M::State::default()),
    }
}

/// Returns how many idle states were dropped in making room.
fn insert<M: StateMachine>(shard: &mut Shard, _: &M, key: Fingerprint, state: M::State, horizon: u64) -> usize
where
    Shard: Shelf<M::State>,
{
    shard.table_mut().insert(key, state, |state| state.is_idle(horizon))
}

/// Charges a state that exists, if it admits the cost at once.
#[inline(always)]
#[allow(clippy::inline_always, reason = "every immediate allow of one tier")]
pub(super) fn try_charge(
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    cost: u64,
) -> Option<QuotaStatus> {
    with_machine!(kind, machine => find_mut(shard, machine, key).and_then(|state| machine.charge(state, now, cost)))
}

/// A state as it was before it was charged, and its index.
#[derive(Clone, Copy)]
pub(super) enum Undo {
    Compact(usize, CompactState),
    Wide(usize, WideState),
}

/// As [`try_charge`], to be undone by [`undo`] under the same lock. `None` for
/// machines whose state is too large to be copied.
#[inline]
pub(super) fn try_charge_undoable(
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    cost: u64,
) -> Option<(QuotaStatus, Undo)> {
    #[inline]
    fn charge<M: StateMachine<State: Copy>>(
        shard: &mut Shard,
        machine: &M,
        key: Fingerprint,
        (now, cost): (u64, u64),
        undo: impl FnOnce(usize, M::State) -> Undo,
    ) -> Option<(QuotaStatus, Undo)>
    where
        Shard: Shelf<M::State>,
    {
        let index = shard.table()?.find(key)?;
        let state = shard.table_mut().state_mut(index);
        let undo = undo(index, *state);
        Some((machine.charge(state, now, cost)?, undo))
    }
    let asked = (now, cost);
    match kind {
        Machine::TokenBucket(machine) => charge(shard, machine, key, asked, Undo::Compact),
        Machine::FixedWindow(machine) => charge(shard, machine, key, asked, Undo::Compact),
        Machine::LeakyBucket(machine) => charge(shard, machine, key, asked, Undo::Compact),
        Machine::SlidingWindow(machine) => charge(shard, machine, key, asked, Undo::Wide),
        Machine::WideGcra(machine) => charge(shard, machine, key, asked, Undo::Wide),
        _ => None,
    }
}

pub(super) fn undo(shard: &mut Shard, undo: Undo) {
    match undo {
        Undo::Compact(index, state) => *shard.table_mut().state_mut(index) = state,
        Undo::Wide(index, state) => *shard.table_mut().state_mut(index) = state,
    }
}

/// The index of the state, and when the cost would conform.
#[inline]
pub(super) fn look(
    shard: &Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    cost: u64,
) -> (Option<usize>, Option<u64>) {
    with_machine!(kind, machine => match find(shard, machine, key) {
        Some((index, state)) => (Some(index), machine.earliest(state, now, cost)),
        None => (None, machine.earliest(&Default::default(), now, cost)),
    })
}

/// When a cost that could be admitted at `at` should be, for the tier's pace;
/// and until when it could be put off.
pub(super) fn pace(shard: &Shard, kind: &Machine, key: Fingerprint, at: u64, cost: u64) -> (u64, u64) {
    with_machine!(kind, machine => read(shard, machine, key, |state| {
        (machine.smooth_departure(state, at, cost), machine.latest_departure(state, at))
    }))
}

#[inline]
pub(super) fn commit_at(shard: &mut Shard, kind: &Machine, index: usize, now: u64, at: u64, cost: u64) {
    with_machine!(kind, machine => machine.commit(shard.table_mut().state_mut(index), now, at, cost));
}

/// Commits to the state of a key, which probably does not exist yet. Returns
/// how many entries that frees: idle ones, or the reserved one if the state
/// exists.
pub(super) fn commit_by_key(
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    at: u64,
    cost: u64,
    horizon: u64,
) -> usize {
    with_machine!(kind, machine => {
        if let Some(state) = find_mut(shard, machine, key) {
            machine.commit(state, now, at, cost);
            1
        } else {
            let mut state = Default::default();
            machine.commit(&mut state, now, at, cost);
            insert(shard, machine, key, state, horizon)
        }
    })
}

/// Charges a debt to a state that exists, or with a `horizon` to a new one.
/// Returns how many idle states were dropped in making room; `None` where there
/// is no state.
pub(super) fn charge_debt(
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    units: u64,
    claim: &mut Claim,
    horizon: Option<u64>,
) -> Option<usize> {
    with_machine!(kind, machine => {
        if let Some(state) = find_mut(shard, machine, key) {
            machine.charge_debt(state, now, units, claim);
            return Some(0);
        }
        horizon.map(|horizon| {
            // The state was dropped, so all that was charged has come back.
            claim.units = 0;
            let mut state = Default::default();
            machine.charge_debt(&mut state, now, units, claim);
            insert(shard, machine, key, state, horizon)
        })
    })
}

/// How many of `units` the state has capacity for, and at what time: at `now`,
/// or later by as much as a thread may have been overtaken.
fn capacity_in<M: StateMachine>(machine: &M, tier: &Tier, state: &M::State, now: u64, units: u64) -> (u64, u64) {
    let fits = |units, within| {
        let at = machine.earliest(state, now, units).filter(|at| at - now <= within)?;
        Some((units, at))
    };
    let most = units.min(tier.quota.capacity());
    // What remains is available, however long this thread was held up.
    let remaining = || fits(machine.status_of(state, now).remaining.min(most), LONGEST_RACE);
    fits(most, USUAL_RACE).or_else(remaining).unwrap_or((0, now))
}

/// How many of `units` a key has capacity for.
pub(super) fn capacity(shard: &Shard, tier: &Tier, key: Fingerprint, now: u64, units: u64) -> u64 {
    with_machine!(&tier.machine, machine => read(shard, machine, key, |state| {
        capacity_in(machine, tier, state, now, units).0
    }))
}

/// Charges as many of `units` as there is capacity for, to a state that exists,
/// or with a `horizon` to a new one. Returns what was charged, and how many
/// entries that frees: idle ones, or the reserved one if it is not used. `None`
/// where there is no state.
pub(super) fn fill(
    shard: &mut Shard,
    tier: &Tier,
    key: Fingerprint,
    now: u64,
    units: u64,
    horizon: Option<u64>,
) -> Option<(Claim, usize)> {
    fn count<M: StateMachine>(machine: &M, tier: &Tier, state: &mut M::State, now: u64, units: u64) -> Claim {
        let (units, at) = capacity_in(machine, tier, state, now, units);
        if units > 0 {
            machine.commit(state, now, at, units);
        }
        let full_at = now.saturating_add(machine.status_of(state, now).reset);
        tier.machine.claim(at, units, full_at, machine.version(state))
    }
    with_machine!(&tier.machine, machine => {
        if let Some(state) = find_mut(shard, machine, key) {
            return Some((count(machine, tier, state, now, units), 0));
        }
        horizon.map(|horizon| {
            let mut state = Default::default();
            let claim = count(machine, tier, &mut state, now, units);
            (claim, if claim.units == 0 { 1 } else { insert(shard, machine, key, state, horizon) })
        })
    })
}

/// Gives back to a state that still exists.
pub(super) fn refund(shard: &mut Shard, kind: &Machine, key: Fingerprint, now: u64, units: u64, claim: &mut Claim) {
    with_machine!(kind, machine => {
        if let Some(state) = find_mut(shard, machine, key) {
            machine.refund(state, now, units, claim);
        }
    });
}

/// The status of the state at `hint`, or else of `key`; and the version that a
/// claim on its last charge has to remember.
#[inline]
pub(super) fn status_of(shard: &Shard, kind: &Machine, key: Fingerprint, hint: usize, now: u64) -> (QuotaStatus, u64) {
    #[inline]
    fn status_of<M: StateMachine>(
        shard: &Shard,
        machine: &M,
        key: Fingerprint,
        hint: usize,
        now: u64,
    ) -> (QuotaStatus, u64)
    where
        Shard: Shelf<M::State>,
    {
        let found = shard.table().and_then(|table| Some((table, table.find_near(key, hint)?)));
        match found {
            Some((table, index)) => (machine.status_of(table.state(index), now), machine.version(table.state(index))),
            None => (machine.status_of(&M::State::default(), now), 0),
        }
    }
    with_machine!(kind, machine => status_of(shard, machine, key, hint, now))
}
