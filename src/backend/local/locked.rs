use smallvec::SmallVec;

use super::{
    MOST_HELD, QuotaStatuses,
    kinds::Kinds,
    state::{Before, charge_for_now, commit_by_key, commit_held, look, pace, restore, status_of},
};
use crate::{
    algorithm::QuotaStatus,
    backend::{AcquireRequest, Charge, TierState},
    fingerprint::Fingerprint,
    policy::Target,
    store::{Guard, Shard, Store},
    time::nanos,
};

/// A tier of a charge, as found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    place: Place,
    pub(super) earliest: Option<u64>,
}

impl Found {
    /// The key, without its tier, that is counted.
    pub(super) fn key(&self, charge: &Charge<'_>) -> Fingerprint {
        if self.is_shared() { charge.rule.overflow } else { charge.key }
    }

    /// Whether it is counted with the rule's other keys.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.place, Place::Overflow)
    }
}

pub(super) type Tiers = SmallVec<[Found; 2]>;

/// Where a tier's state is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the charge's shard, at this index.
    Held(usize),
    /// Nowhere.
    Nowhere,
    /// Nowhere; a place in the charge's shard is reserved.
    Reserved,
    /// Shared: there is no place for one of its own.
    Overflow,
}

/// The locks that a request needs, taken in ascending order of their shards;
/// the overflow shard is the last.
pub(super) struct Locked<'s, K> {
    kinds: K,
    store: &'s Store,
    shards: SmallVec<[(usize, Guard<'s>); 2]>,
    overflow: Option<Guard<'s>>,
}

impl<'s, K: Kinds> Locked<'s, K> {
    #[inline]
    pub(super) fn new(kinds: K, store: &'s Store, mut keys: impl ExactSizeIterator<Item = Fingerprint>) -> Self {
        let mut shards = SmallVec::new();
        if keys.len() == 1
            && let Some(key) = keys.next()
        {
            let index = store.shard_of(key);
            shards.push((index, store.lock(index)));
        } else {
            let mut indexes: SmallVec<[usize; 4]> = keys.map(|key| store.shard_of(key)).collect();
            indexes.sort_unstable();
            indexes.dedup();
            shards.extend(indexes.into_iter().map(|index| (index, store.lock(index))));
        }
        Self { kinds, store, shards, overflow: None }
    }

    /// The shard of a key, among those locked.
    #[inline]
    fn shard(&mut self, key: Fingerprint) -> &mut Shard {
        let place = match self.shards.as_slice() {
            [_] => 0,
            shards => {
                let wanted = self.store.shard_of(key);
                shards.iter().position(|(index, _)| *index == wanted).unwrap_or(0)
            }
        };
        &mut self.shards[place].1
    }

    /// Looks all tiers up; says whether each has a place, or needs none.
    #[inline]
    pub(super) fn find_all(&mut self, charges: &[Charge<'_>], now: u64, found: &mut Tiers) -> bool {
        let kinds = self.kinds;
        let mut complete = true;
        for charge in charges {
            let shard = self.shard(charge.key);
            for tier in charge.tiers().iter() {
                let (held, earliest) = look(shard, kinds.of(tier), charge.key.tier(tier.salt), now, charge.cost);
                complete &= held.is_some() || earliest.is_none() || charge.cost == 0;
                found.push(Found { place: held.map_or(Place::Nowhere, Place::Held), earliest });
            }
        }
        complete
    }

    /// Charges all targets, if the state of every tier exists and admits the
    /// cost at `now`; else changes nothing.
    #[inline]
    pub(super) fn try_charge<'t>(
        &mut self,
        targets: impl Iterator<Item = Target<'t>>,
        now: u64,
    ) -> Option<QuotaStatuses> {
        let kinds = self.kinds;
        let mut charged: SmallVec<[(Fingerprint, Before); MOST_HELD]> = SmallVec::new();
        let mut statuses = QuotaStatuses::new();
        for Target { key, tiers, cost } in targets {
            let shard = self.shard(key);
            for tier in tiers {
                let Some((status_of, before)) = charge_for_now(shard, kinds.of(tier), key.tier(tier.salt), now, cost)
                else {
                    charged.into_iter().for_each(|(key, before)| restore(self.shard(key), before));
                    return None;
                };
                statuses.push(status_of);
                charged.push((key, before));
            }
        }
        Some(statuses)
    }

    /// Reserves places for what is new, and looks everything up again: in
    /// making room, slots have moved. What finds none is shared.
    #[cold]
    pub(super) fn reserve_places(&mut self, charges: &[Charge<'_>], now: u64, found: &mut Tiers) {
        let store = self.store;
        for charge in charges {
            store.make_room(self.shard(charge.key), charge.tiers().len(), now);
        }
        found.clear();
        self.find_all(charges, now, found);
        let mut places = found.iter_mut();
        for charge in charges {
            for found in places.by_ref().take(charge.tiers().len()) {
                if charge.cost == 0 || !matches!(found.place, Place::Nowhere) || found.earliest.is_none() {
                    continue;
                }
                found.place = if store.reserve() { Place::Reserved } else { Place::Overflow };
            }
        }
    }

    /// The same, and looks up what is shared.
    #[cold]
    pub(super) fn make_places(&mut self, charges: &[Charge<'_>], now: u64, found: &mut Tiers) {
        let kinds = self.kinds;
        let store = self.store;
        self.reserve_places(charges, now, found);
        let mut places = found.iter_mut();
        for charge in charges {
            for (tier, found) in charge.tiers().iter().zip(&mut places) {
                if found.is_shared() {
                    let shard = self.overflow.get_or_insert_with(|| store.lock_overflow());
                    (_, found.earliest) =
                        look(shard, kinds.of(tier), charge.rule.overflow.tier(tier.salt), now, charge.cost);
                }
            }
        }
    }

    /// When a request that could go at `at` goes at the pace of its smooth
    /// rules, as far as each rule and the caller let it wait: if it could go
    /// now it does, rather than wait for less than its pace; if it has to wait
    /// anyway it goes as near to its pace as it may. What that leaves to
    /// others stays as it is.
    #[cold]
    pub(super) fn paced(&mut self, request: &AcquireRequest<'_>, now: u64, at: u64, found: &mut Tiers) -> u64 {
        let kinds = self.kinds;
        let mut latest = u64::MAX;
        let mut paces: SmallVec<[u64; 2]> = SmallVec::new();
        let mut places = found.iter();
        for charge in request.charges {
            let longest = charge.max_wait.min(nanos(request.max_wait));
            for (tier, found) in charge.tiers().iter().zip(&mut places) {
                let key = found.key(charge).tier(tier.salt);
                let shard = match (&found.place, &mut self.overflow) {
                    (Place::Overflow, Some(overflow)) => &mut **overflow,
                    _ => self.shard(charge.key),
                };
                let (pace, put_off) = pace(shard, kinds.of(tier), key, at, charge.cost);
                let within =
                    if pace - now <= longest || at == now { pace } else { now.saturating_add(longest).max(at) };
                paces.push(if within - now <= longest { within } else { at });
                latest = latest.min(put_off);
            }
        }
        let goes = paces.iter().copied().fold(at, u64::max).min(latest).max(at);
        if goes > at {
            // Those that it waits for.
            let slowest = found.iter_mut().zip(paces).filter(|(_, pace)| *pace >= goes);
            slowest.for_each(|(found, pace)| found.earliest = Some(pace));
        }
        goes
    }

    #[inline]
    pub(super) fn commit(&mut self, charges: &[Charge<'_>], now: u64, at: u64, found: &Tiers) {
        let kinds = self.kinds;
        let mut places = found.iter();
        let mut reserved = false;
        for charge in charges {
            let shard = self.shard(charge.key);
            for (tier, found) in charge.tiers().iter().zip(&mut places) {
                match found.place {
                    Place::Held(index) => commit_held(shard, kinds.of(tier), index, now, at, charge.cost),
                    Place::Reserved | Place::Overflow => reserved = true,
                    Place::Nowhere => {}
                }
            }
        }
        if reserved {
            self.commit_new(charges, now, at, found);
        }
    }

    /// After those that are held: inserting moves slots.
    #[cold]
    fn commit_new(&mut self, charges: &[Charge<'_>], now: u64, at: u64, found: &Tiers) {
        let kinds = self.kinds;
        let store = self.store;
        let mut places = found.iter();
        for charge in charges {
            for (tier, found) in charge.tiers().iter().zip(&mut places) {
                match found.place {
                    Place::Reserved => {
                        let key = charge.key.tier(tier.salt);
                        let (shard, horizon) = (self.shard(charge.key), store.horizon(now, 1));
                        store.release(commit_by_key(shard, kinds.of(tier), key, now, at, charge.cost, horizon));
                    }
                    Place::Overflow => {
                        let key = charge.rule.overflow.tier(tier.salt);
                        let shard = self.overflow.get_or_insert_with(|| store.lock_overflow());
                        commit_by_key(shard, kinds.of(tier), key, now, at, charge.cost, now);
                    }
                    Place::Held(_) | Place::Nowhere => {}
                }
            }
        }
    }

    /// Nothing is charged: reserved places are given back.
    #[inline]
    pub(super) fn release(&self, found: &[Found]) {
        self.store.release(found.iter().filter(|found| matches!(found.place, Place::Reserved)).count());
    }

    /// Where each tier stands now.
    #[inline]
    pub(super) fn statuses(&mut self, charges: &[Charge<'_>], now: u64, found: &Tiers) -> SmallVec<[TierState; 2]> {
        let kinds = self.kinds;
        let mut places = found.iter();
        let mut states = SmallVec::new();
        for charge in charges {
            for (tier, found) in charge.tiers().iter().zip(&mut places) {
                let (key, shard) = match (&found.place, &mut self.overflow) {
                    (Place::Overflow, Some(overflow)) => (charge.rule.overflow, &mut **overflow),
                    _ => (charge.key, self.shard(charge.key)),
                };
                let hint = if let Place::Held(index) = found.place { index } else { usize::MAX };
                let (QuotaStatus { remaining, reset }, mark) =
                    status_of(shard, kinds.of(tier), key.tier(tier.salt), hint, now);
                let shared = matches!(found.place, Place::Overflow);
                states.push(TierState {
                    remaining,
                    reset,
                    violated: found.earliest != Some(now),
                    shared,
                    mark,
                    ahead: 0,
                });
            }
        }
        states
    }
}
