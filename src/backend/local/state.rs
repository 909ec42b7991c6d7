//! One question to one tier's state, whatever its state machine.

use super::LONGEST_RACE;
use crate::{
    algorithm::{Claim, CompactState, Machine, QuotaStatus, State, StateMachine, WideState},
    fingerprint::Fingerprint,
    policy::Tier,
    store::{Shard, Shelf},
};

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
            Machine::SharedTokenBucket($machine) => apart(|| $body),
            Machine::SharedLeakyBucket($machine) => apart(|| $body),
            Machine::SharedWideGcra($machine) => apart(|| $body),
            Machine::SharedFixedWindow($machine) => apart(|| $body),
        }
    };
}

/// Keeps what only shares need out of the way of all others.
#[inline(never)]
fn apart<R>(run: impl FnOnce() -> R) -> R {
    run()
}

/// Charges a state that is there, if it lets the cost pass at once.
#[inline]
pub(super) fn charge_held(
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    cost: u64,
) -> Option<QuotaStatus> {
    #[inline]
    fn charge_held<M: StateMachine>(
        shard: &mut Shard,
        machine: &M,
        key: Fingerprint,
        now: u64,
        cost: u64,
    ) -> Option<QuotaStatus>
    where
        Shard: Shelf<M::State>,
    {
        let index = shard.table()?.find(key)?;
        machine.charge(shard.table_mut().state_mut(index), now, cost)
    }
    with_machine!(kind, machine => charge_held(shard, machine, key, now, cost))
}

/// A state as it was before it was charged, and where it is.
#[derive(Clone, Copy)]
pub(super) enum Before {
    Small(usize, CompactState),
    Wide(usize, WideState),
}

/// The same, to be taken back by [`restore`] while the lock is held. Not for
/// logs, which are no few words.
#[inline]
pub(super) fn charge_for_now(
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    cost: u64,
) -> Option<(QuotaStatus, Before)> {
    #[inline]
    fn charge<M: StateMachine<State: Copy>>(
        shard: &mut Shard,
        machine: &M,
        key: Fingerprint,
        (now, cost): (u64, u64),
        before: impl FnOnce(usize, M::State) -> Before,
    ) -> Option<(QuotaStatus, Before)>
    where
        Shard: Shelf<M::State>,
    {
        let index = shard.table()?.find(key)?;
        let state = shard.table_mut().state_mut(index);
        let before = before(index, *state);
        Some((machine.charge(state, now, cost)?, before))
    }
    let asked = (now, cost);
    match kind {
        Machine::TokenBucket(machine) => charge(shard, machine, key, asked, Before::Small),
        Machine::FixedWindow(machine) => charge(shard, machine, key, asked, Before::Small),
        Machine::LeakyBucket(machine) => charge(shard, machine, key, asked, Before::Small),
        Machine::SlidingWindow(machine) => charge(shard, machine, key, asked, Before::Wide),
        Machine::WideGcra(machine) => charge(shard, machine, key, asked, Before::Wide),
        _ => None,
    }
}

/// Makes the charge of a state undone.
pub(super) fn restore(shard: &mut Shard, before: Before) {
    match before {
        Before::Small(index, state) => *shard.table_mut().state_mut(index) = state,
        Before::Wide(index, state) => *shard.table_mut().state_mut(index) = state,
    }
}

/// Where the state is, and when the cost would conform.
#[inline]
pub(super) fn look(
    shard: &Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    cost: u64,
) -> (Option<usize>, Option<u64>) {
    fn look<M: StateMachine>(
        shard: &Shard,
        machine: &M,
        key: Fingerprint,
        now: u64,
        cost: u64,
    ) -> (Option<usize>, Option<u64>)
    where
        Shard: Shelf<M::State>,
    {
        let held = shard.table().and_then(|table| Some((table, table.find(key)?)));
        match held {
            Some((table, index)) => (Some(index), machine.earliest(table.state(index), now, cost)),
            None => (None, machine.earliest(&M::State::default(), now, cost)),
        }
    }
    with_machine!(kind, machine => look(shard, machine, key, now, cost))
}

/// When the cost, which could go at `at`, should go for the tier's pace; and
/// until when it could be put off.
pub(super) fn pace(shard: &Shard, kind: &Machine, key: Fingerprint, at: u64, cost: u64) -> (u64, u64) {
    fn pace<M: StateMachine>(shard: &Shard, machine: &M, key: Fingerprint, at: u64, cost: u64) -> (u64, u64)
    where
        Shard: Shelf<M::State>,
    {
        let times = |state: &M::State| (machine.smooth_departure(state, at, cost), machine.latest_departure(state, at));
        match shard.table().and_then(|table| Some((table, table.find(key)?))) {
            Some((table, index)) => times(table.state(index)),
            None => times(&M::State::default()),
        }
    }
    with_machine!(kind, machine => pace(shard, machine, key, at, cost))
}

#[inline]
pub(super) fn commit_held(shard: &mut Shard, kind: &Machine, index: usize, now: u64, at: u64, cost: u64) {
    fn commit<M: StateMachine>(shard: &mut Shard, machine: &M, index: usize, now: u64, at: u64, cost: u64)
    where
        Shard: Shelf<M::State>,
    {
        machine.commit(shard.table_mut().state_mut(index), now, at, cost);
    }
    with_machine!(kind, machine => commit(shard, machine, index, now, at, cost));
}

/// Commits to a state that is probably to be made; returns how many places
/// that frees: those of idle states that went in making room, or its own.
pub(super) fn commit_by_key(
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    at: u64,
    cost: u64,
    horizon: u64,
) -> usize {
    fn commit<M: StateMachine>(
        shard: &mut Shard,
        machine: &M,
        key: Fingerprint,
        now: u64,
        at: u64,
        cost: u64,
        horizon: u64,
    ) -> usize
    where
        Shard: Shelf<M::State>,
    {
        let table = shard.table_mut();
        if let Some(index) = table.find(key) {
            machine.commit(table.state_mut(index), now, at, cost);
            // The place that was meant for it is not needed.
            return 1;
        }
        let mut state = M::State::default();
        machine.commit(&mut state, now, at, cost);
        table.insert(key, state, |state| state.is_idle(horizon))
    }
    with_machine!(kind, machine => commit(shard, machine, key, now, at, cost, horizon))
}

/// Counts what is owed by a state that is there, or by a new one if it may be
/// made; says how many idle states were left behind in making room for it.
/// `None` where there is neither.
pub(super) fn owe(
    shard: &mut Shard,
    kind: &Machine,
    key: Fingerprint,
    now: u64,
    units: u64,
    claim: &mut Claim,
    horizon: Option<u64>,
) -> Option<usize> {
    fn owe<M: StateMachine>(
        shard: &mut Shard,
        machine: &M,
        key: Fingerprint,
        now: u64,
        units: u64,
        claim: &mut Claim,
        horizon: Option<u64>,
    ) -> Option<usize>
    where
        Shard: Shelf<M::State>,
    {
        let table = shard.table_mut();
        if let Some(index) = table.find(key) {
            machine.charge_debt(table.state_mut(index), now, units, claim);
            return Some(0);
        }
        let horizon = horizon?;
        // What was charged has come back by itself.
        claim.units = 0;
        let mut state = M::State::default();
        machine.charge_debt(&mut state, now, units, claim);
        Some(table.insert(key, state, |state| state.is_idle(horizon)))
    }
    with_machine!(kind, machine => owe(shard, machine, key, now, units, claim, horizon))
}

/// How many of `units` the state has room for, and at what time: now, or so
/// much later as somebody read the clock who came first.
fn room_in<M: StateMachine>(machine: &M, tier: &Tier, state: &M::State, now: u64, units: u64) -> (u64, u64) {
    let fits = |units, within| {
        let at = machine.earliest(state, now, units).filter(|at| at - now <= within)?;
        Some((units, at))
    };
    let most = units.min(tier.quota.capacity());
    // What is left is left, however long it took to get here.
    let left = || fits(machine.status_of(state, now).remaining.min(most), LONGEST_RACE);
    fits(most, OVERTAKEN).or_else(left).unwrap_or((0, now))
}

/// By how many nanoseconds a thread is often held up between reading the clock
/// and having the lock.
const OVERTAKEN: u64 = 1_000_000;

/// The same, of a key.
pub(super) fn room(shard: &Shard, tier: &Tier, key: Fingerprint, now: u64, units: u64) -> u64 {
    fn room<M: StateMachine>(shard: &Shard, machine: &M, tier: &Tier, key: Fingerprint, now: u64, units: u64) -> u64
    where
        Shard: Shelf<M::State>,
    {
        match shard.table().and_then(|table| Some((table, table.find(key)?))) {
            Some((table, index)) => room_in(machine, tier, table.state(index), now, units).0,
            None => room_in(machine, tier, &M::State::default(), now, units).0,
        }
    }
    with_machine!(&tier.machine, machine => room(shard, machine, tier, key, now, units))
}

/// Counts as many of `units` as there is room for, in a state that is there or
/// in a new one if it may be made; says what was counted, and how many places
/// that frees: those of idle states that went in making room, or its own.
/// `None` where there is neither.
pub(super) fn fill(
    shard: &mut Shard,
    tier: &Tier,
    key: Fingerprint,
    now: u64,
    units: u64,
    horizon: Option<u64>,
) -> Option<(Claim, usize)> {
    fn fill<M: StateMachine>(
        shard: &mut Shard,
        machine: &M,
        tier: &Tier,
        key: Fingerprint,
        now: u64,
        units: u64,
        horizon: Option<u64>,
    ) -> Option<(Claim, usize)>
    where
        Shard: Shelf<M::State>,
    {
        let count = |state: &mut M::State| {
            let (units, at) = room_in(machine, tier, state, now, units);
            if units > 0 {
                machine.commit(state, now, at, units);
            }
            let full_at = now.saturating_add(machine.status_of(state, now).reset);
            tier.machine.claim(at, units, full_at, machine.version(state))
        };
        let table = shard.table_mut();
        if let Some(index) = table.find(key) {
            return Some((count(table.state_mut(index)), 0));
        }
        let horizon = horizon?;
        let mut state = M::State::default();
        let claim = count(&mut state);
        if claim.units == 0 {
            return Some((claim, 1));
        }
        Some((claim, table.insert(key, state, |state| state.is_idle(horizon))))
    }
    with_machine!(&tier.machine, machine => fill(shard, machine, tier, key, now, units, horizon))
}

/// Gives back to a state that is still there.
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
        let table = shard.table_mut();
        if let Some(index) = table.find(key) {
            machine.refund(table.state_mut(index), now, units, claim);
        }
    }
    with_machine!(kind, machine => refund(shard, machine, key, now, units, claim));
}

/// Where the state at `hint`, or else of `key`, stands, and what a claim on
/// what it has just counted has to remember.
#[inline]
pub(super) fn status_of(shard: &Shard, kind: &Machine, key: Fingerprint, hint: usize, now: u64) -> (QuotaStatus, u64) {
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
        let held = shard.table().and_then(|table| Some((table, table.find_near(key, hint)?)));
        match held {
            Some((table, index)) => (machine.status_of(table.state(index), now), machine.version(table.state(index))),
            None => (machine.status_of(&M::State::default(), now), 0),
        }
    }
    with_machine!(kind, machine => status_of(shard, machine, key, hint, now))
}
