//! One decision over several states: [`Transaction`] holds the locks of all of
//! them, from the first look to the last commit. What every state admits now is
//! charged without one, by [`charge_now`].
//!
//! Invariant: locks are taken in ascending order of their shards, the overflow
//! shard last. Entries that were reserved are used or released.

use smallvec::SmallVec;

use super::{
    Machines,
    counter::{Entry, with_counter},
};
use crate::{
    algorithm::Machine,
    backend::request::{ImmediateStates, Request, TierState, TierStates, tiers},
    fingerprint::Fingerprint,
    policy::{Tier, charge::Charge},
    store::{Guard, Shard, Store},
    time::nanos,
};

/// The locks that a decision over the tiers of a request needs.
pub(super) struct Transaction<'s, M> {
    pub(super) machines: M,
    store: &'s Store,
    pub(super) request: &'s Request<'s>,
    shards: SmallVec<[(usize, Guard<'s>); 2]>,
    overflow: Option<Guard<'s>>,
}

impl<'s, M: Machines> Transaction<'s, M> {
    #[inline]
    pub(super) fn new(machines: M, store: &'s Store, request: &'s Request<'s>) -> Self {
        let shards = store.lock_all(request.charges.iter().map(|charge| charge.key));
        Self { machines, store, request, shards, overflow: None }
    }

    /// The request's time, in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        self.request.now.as_nanos()
    }

    /// What a counter is made of: the store, the shard, the machine and the key of a tier's
    /// state, where it was found.
    #[inline]
    fn parts<'t>(&'t mut self, charge: &Charge<'_>, tier: &'t Tier, is_overflow: bool) -> CounterParts<'t> {
        let key = counted_key(charge, is_overflow);
        let shard = match is_overflow {
            true => &mut **self.overflow.get_or_insert_with(|| self.store.lock_overflow()),
            false => locked(&mut self.shards, self.store, key),
        };
        (self.store, shard, self.machines.of(key, tier), key.tier(tier.salt))
    }

    /// Looks all tiers up. Returns whether each has an entry, or needs none.
    pub(super) fn find_all(&mut self, found: &mut FoundTiers) -> bool {
        let now = self.now();
        let bound = self.store.bound_after_set_back(now);
        let mut complete = true;
        for (charge, tier) in tiers(self.request.charges) {
            let parts = self.parts(charge, tier, false);
            let (has_entry, earliest) = with_counter!(parts, counter => counter.look(now, charge.cost, bound));
            complete &= has_entry || earliest.is_none() || charge.cost == 0;
            found.push(FoundTier { has_entry, reservation: None, earliest });
        }
        complete
    }

    /// Reserves entries for new states, and looks all tiers up again, since
    /// making way moves entries. A tier that gets no entry is counted by the
    /// overflow counter.
    #[cold]
    pub(super) fn reserve_entries(&mut self, found: &mut FoundTiers) {
        let now = self.now();
        loop {
            let mut is_complete = true;
            for ((charge, tier), found) in tiers(self.request.charges).zip(&mut *found) {
                if charge.cost > 0 && found.is_missing() && found.earliest.is_some() {
                    let parts = self.parts(charge, tier, false);
                    found.reservation = Some(with_counter!(parts, counter => counter.reserve(now)));
                    is_complete = false;
                }
            }
            if is_complete {
                break;
            }
            let before = std::mem::take(found);
            self.find_all(found);
            found.iter_mut().zip(before).for_each(|(found, before)| found.reservation = before.reservation);
        }
    }

    /// Reserves entries for new states, and looks up the overflow counters of
    /// those that get none.
    #[cold]
    pub(super) fn find_or_reserve(&mut self, found: &mut FoundTiers) {
        self.reserve_entries(found);
        let now = self.now();
        let bound = self.store.bound_after_set_back(now);
        for ((charge, tier), found) in tiers(self.request.charges).zip(found).filter(|(_, found)| found.is_overflow()) {
            let parts = self.parts(charge, tier, true);
            (_, found.earliest) = with_counter!(parts, counter => counter.look(now, charge.cost, bound));
        }
    }

    /// The paces of the tiers for a request that could be admitted at `at`, as far as
    /// each rule and the caller let it wait. One that could be admitted now is not
    /// delayed by less than its pace; one that has to wait anyway is delayed as near to
    /// its pace as allowed. What remains for other requests does not change.
    #[cold]
    pub(super) fn paces(&mut self, at: u64, found: &FoundTiers) -> Paces {
        let (request, now) = (self.request, self.now());
        let mut paces = Paces { of_tiers: SmallVec::new(), latest: u64::MAX };
        for ((charge, tier), found) in tiers(request.charges).zip(found) {
            let longest = charge.max_wait.min(nanos(request.max_wait));
            let parts = self.parts(charge, tier, found.is_overflow());
            let (pace, latest) = with_counter!(parts, counter => counter.pace(at, charge.cost));
            let within = if pace - now <= longest || at == now { pace } else { now.saturating_add(longest).max(at) };
            paces.of_tiers.push(if within - now <= longest { within } else { at });
            paces.latest = paces.latest.min(latest);
        }
        paces
    }

    /// Charges all tiers now, for a departure at `at`. Adds their status to `states`.
    pub(super) fn commit(&mut self, at: u64, found: &FoundTiers, states: &mut TierStates) {
        let now = self.now();
        if at > now {
            self.store.record_wait(at - now);
        }
        // New states come last: to insert one may drop those that are idle.
        for is_reserved in [false, true] {
            let is_next = |found: &FoundTier| !found.is_missing() && found.is_reserved() == is_reserved;
            for ((charge, tier), found) in tiers(self.request.charges).zip(found).filter(|(_, found)| is_next(found)) {
                // Each that is inserted may make room for the next.
                let horizon = if is_reserved { self.store.horizon(now) } else { now };
                let parts = self.parts(charge, tier, found.is_overflow());
                let dropped = with_counter!(parts, counter => counter.commit(horizon, (now, at), charge.cost));
                self.store.release(if is_reserved { dropped } else { 0 });
            }
        }
        self.read(found, states);
    }

    /// Charges nothing, and releases reserved entries.
    pub(super) fn release(&self, found: &[FoundTier]) {
        self.store.release(found.iter().filter(|found| found.is_reserved()).count());
    }

    /// Adds the status of each tier now to `states`.
    pub(super) fn read(&mut self, found: &FoundTiers, states: &mut TierStates) {
        let now = self.now();
        for ((charge, tier), found) in tiers(self.request.charges).zip(found) {
            let parts = self.parts(charge, tier, found.is_overflow());
            let status = with_counter!(parts, counter => counter.status(now));
            let state = TierState::new(status, found.earliest != Some(now));
            states.push(TierState { shared: found.is_overflow(), ..state });
        }
    }
}

/// The shard of a key, among those locked.
#[inline]
fn locked<'l>(shards: &'l mut [(usize, Guard<'_>)], store: &Store, key: Fingerprint) -> &'l mut Shard {
    let position = match &*shards {
        [_] => 0,
        shards => {
            let wanted = store.shard_of(key);
            shards.iter().position(|(index, _)| *index == wanted).unwrap_or(0)
        }
    };
    &mut shards[position].1
}

/// See [`Transaction::parts`].
type CounterParts<'t> = (&'t Store, &'t mut Shard, &'t Machine, Fingerprint);

/// A tier of a charge, as found.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundTier {
    /// Whether the charge's shard has its state.
    has_entry: bool,
    /// What came of it where an entry was to be reserved.
    reservation: Option<Entry>,
    pub(super) earliest: Option<u64>,
}

impl FoundTier {
    /// The key, without its tier, that is counted.
    pub(super) fn key(&self, charge: &Charge<'_>) -> Fingerprint {
        counted_key(charge, self.is_overflow())
    }

    /// Whether it is counted by the rule's overflow counter: it gets no entry, or another tier
    /// of the request has displaced it again.
    pub(super) fn is_overflow(&self) -> bool {
        !self.has_entry && matches!(self.reservation, Some(Entry::Restored | Entry::Rejected))
    }

    /// Whether an entry of the charge's shard is reserved for its new state.
    fn is_reserved(&self) -> bool {
        !self.has_entry && self.reservation == Some(Entry::Reserved)
    }

    /// Whether it has no state, and none was to be created.
    fn is_missing(&self) -> bool {
        !self.has_entry && self.reservation.is_none()
    }
}

pub(super) type FoundTiers = SmallVec<[FoundTier; 4]>;

/// The key, without its tier, of a charge's counter: its own, or the rule's overflow counter.
pub(super) fn counted_key(charge: &Charge<'_>, shared: bool) -> Fingerprint {
    if shared { charge.rule.overflow } else { charge.key }
}

/// When each tier's pace would admit a request.
pub(super) struct Paces {
    of_tiers: SmallVec<[u64; 2]>,
    /// The latest time that takes nothing from other requests.
    latest: u64,
}

impl Paces {
    /// When a request that could be admitted at `at` is admitted.
    pub(super) fn departure(&self, at: u64) -> u64 {
        self.of_tiers.iter().copied().fold(at, u64::max).min(self.latest).max(at)
    }

    /// Marks the tiers that the request waits for until its departure.
    pub(super) fn mark_slowest(self, departure: u64, found: &mut FoundTiers) {
        let slowest = found.iter_mut().zip(self.of_tiers).filter(|(_, pace)| *pace >= departure);
        slowest.for_each(|(found, pace)| found.earliest = Some(pace));
    }
}

/// Charges all tiers, if each has a state that admits the cost at `now`; else charges
/// nothing. Adds the status of each to `states`. One key needs no list of locks.
#[inline]
pub(super) fn charge_now<M: Machines>(
    machines: M,
    store: &Store,
    charges: &[Charge<'_>],
    now: u64,
    states: &mut ImmediateStates,
) -> bool {
    let [first, others @ ..] = charges else { return true };
    let tiers = |charge| KeyTiers { store, machines, charge, now };
    if others.is_empty() {
        return tiers(first).charge(&mut store.lock(first.key), states);
    }
    let mut shards = store.lock_all(charges.iter().map(|charge| charge.key));
    for charge in others {
        if !tiers(charge).admit(charge.tiers, locked(&mut shards, store, charge.key)) {
            return false;
        }
    }
    if !tiers(first).charge(locked(&mut shards, store, first.key), states) {
        return false;
    }
    for charge in others {
        tiers(charge).commit(charge.tiers, locked(&mut shards, store, charge.key), states);
    }
    true
}

/// The tiers of a charge, whose states are all in one shard. It creates no state and finds
/// no later time: the engine decides again what is not charged here.
struct KeyTiers<'c, M> {
    store: &'c Store,
    machines: M,
    charge: &'c Charge<'c>,
    now: u64,
}

impl<M: Machines> KeyTiers<'_, M> {
    /// Charges all tiers, if each has a state that admits the cost now, or needs none; else charges nothing.
    /// The charge of the first is its own check. Adds the status of each to `states`.
    #[inline]
    fn charge(&self, shard: &mut Shard, states: &mut ImmediateStates) -> bool {
        let Charge { key, tiers, cost, .. } = *self.charge;
        let [first, others @ ..] = tiers else { return true };
        if !self.admit(others, shard) {
            return false;
        }
        let parts = (self.store, &mut *shard, self.machines.of(key, first), key.tier(first.salt));
        let Some(status) = with_counter!(parts, counter => counter.try_charge(self.now, cost)) else { return false };
        states.0.push(TierState::new(status, false));
        self.commit(others, shard, states);
        true
    }

    /// Whether each of these tiers has a state that admits the cost now, or needs none.
    #[inline]
    fn admit(&self, tiers: &[Tier], shard: &mut Shard) -> bool {
        let Charge { key, cost, .. } = *self.charge;
        tiers.iter().all(|tier| {
            let parts = (self.store, &mut *shard, self.machines.of(key, tier), key.tier(tier.salt));
            with_counter!(parts, counter => counter.admits(self.now, cost))
        })
    }

    /// Charges these tiers, which admit the cost now. Does not check again: another thread may
    /// have taken the memory of a log meanwhile.
    #[inline]
    fn commit(&self, tiers: &[Tier], shard: &mut Shard, states: &mut ImmediateStates) {
        let Charge { key, cost, .. } = *self.charge;
        for tier in tiers {
            let parts = (self.store, &mut *shard, self.machines.of(key, tier), key.tier(tier.salt));
            if let Some(status) = with_counter!(parts, counter => counter.commit_now(self.now, cost)) {
                states.0.push(TierState::new(status, false));
            }
        }
    }
}
