//! Decides in this process: [`Engine`], a bounded store and the machines that
//! count in it. It knows nothing of policies' rules beyond their charges, of
//! shares, and of who calls it.
//!
//! Invariant: a decision charges every tier of every charge, or none, under the
//! locks of all of them.

use smallvec::SmallVec;

use super::{
    FullQuota, MachineSource, Machines,
    counter::with_counter,
    transaction::{FoundTier, FoundTiers, Transaction, charge_now, counted_key},
};
use crate::{
    algorithm::UNKNOWN_TIME,
    backend::{
        contract::InProcessEngine,
        receipt::Receipt,
        request::{ImmediateStates, Outcome, OutcomeKind, Request, TierState, TierStates, Versioned, tiers},
    },
    fingerprint::Fingerprint,
    policy::{Tier, charge::Charge},
    store::Store,
    time::{Timestamp, nanos},
};

/// How often in a row a thread may be overtaken between reading the clock and
/// taking the lock.
const MOST_RACES: usize = 16;

/// Decides in this process.
#[derive(Debug)]
pub(crate) struct Engine<M> {
    pub(super) store: Store,
    pub(in crate::backend) source: M,
}

impl Engine<FullQuota> {
    pub(crate) fn full(max_keys: usize) -> Self {
        Self::new(max_keys, FullQuota)
    }
}

impl<M: MachineSource> Engine<M> {
    pub(crate) fn new(max_keys: usize, source: M) -> Self {
        Self { store: Store::new(max_keys), source }
    }

    /// Charges a request, if all its tiers admit it in time.
    ///
    /// Another thread may read the clock later and take the lock first. The state is
    /// then ahead of this request's time, and the request is rejected for a wait that
    /// may already be over. If it is, the clock's present time counts.
    #[inline]
    pub(crate) fn charge(&self, request: &Request<'_>) -> Outcome {
        self.store.record_time(request.now.as_nanos());
        let mut outcome = self.decide_at(request);
        if !outcome.is_admitted() {
            self.charge_if_overtaken(request, &mut outcome);
        }
        if outcome.answer != (OutcomeKind::Admitted { wait: 0 }) {
            self.source.count_refused(request.charges, &outcome.tiers);
        }
        outcome
    }

    #[cold]
    fn charge_if_overtaken(&self, request: &Request<'_>, outcome: &mut Outcome) {
        let mut latest = *request;
        for _ in 0..MOST_RACES {
            let Some(later) = latest.overtaken(outcome) else { break };
            *outcome = self.decide_at(&later);
            outcome.later = nanos(later.now.saturating_since(request.now));
            latest = later;
        }
    }

    #[inline]
    fn decide_at(&self, request: &Request<'_>) -> Outcome {
        self.transact(request, |transaction| {
            let mut outcome = Outcome::undecided();
            outcome.answer = transaction.charge(&mut outcome.tiers);
            transaction.machines.count_asked(request.charges);
            outcome
        })
    }

    /// The outcome that [`Self::charge`] would have, charging nothing.
    pub(crate) fn look(&self, request: &Request<'_>) -> Outcome {
        self.transact(request, |transaction| {
            let mut outcome = Outcome::undecided();
            outcome.answer = transaction.look(&mut outcome.tiers);
            outcome
        })
    }

    /// Charges several tiers, if each has a state that admits the request at `now`.
    #[inline(never)]
    fn charge_tiers(&self, charges: &[Charge<'_>], now: u64, states: &mut ImmediateStates) -> bool {
        self.source.with(charges, now, |machines| {
            let is_charged = charge_now(machines, &self.store, charges, now, states);
            if is_charged {
                machines.count_asked(charges);
            }
            is_charged
        })
    }

    /// Runs `run` with the machines and the locks of the request's tiers.
    #[inline]
    fn transact<R>(&self, request: &Request<'_>, run: impl FnOnce(&mut Transaction<'_, M::Machines<'_>>) -> R) -> R {
        self.source.with(request.charges, request.now.as_nanos(), |machines| {
            run(&mut Transaction::new(machines, &self.store, request))
        })
    }
}

impl<M: MachineSource> InProcessEngine for Engine<M> {
    /// In one pass, and without a list of locks.
    fn charge_tier(&self, tier: &Tier, key: Fingerprint, cost: u64, now: Timestamp) -> Option<Versioned> {
        let now = now.as_nanos();
        self.store.record_time(now);
        self.source.charge_one((key, tier), cost, now, |machine| {
            let shard = &mut self.store.lock(key);
            let parts = (&self.store, shard, machine, key.tier(tier.salt));
            with_counter!(parts, counter => counter.try_charge(now, cost))
        })
    }

    fn charge_now(&self, charges: &[Charge<'_>], now: Timestamp, states: &mut ImmediateStates) -> bool {
        if let [charge] = charges
            && let [tier] = charge.tiers()
        {
            let Some(status) = self.charge_tier(tier, charge.key, charge.cost, now) else { return false };
            states.0.push(TierState::new(status, false));
            return true;
        }
        self.store.record_time(now.as_nanos());
        self.charge_tiers(charges, now.as_nanos(), states)
    }

    fn is_last(&self, receipt: &Receipt, now: Timestamp) -> bool {
        let mut is_last = true;
        receipt.for_each(|charge, tier, owned| {
            is_last &= owned.claim.units == charge.cost
                && self.source.with_one(counted_key(charge, owned.shared), tier, now.as_nanos(), |machine| {
                    let (key, mut shard) = self.counter(charge, owned.shared);
                    let parts = (&self.store, &mut shard, machine, key.tier(tier.salt));
                    with_counter!(parts, counter => counter.is_last(now.as_nanos(), &owned.claim))
                });
        });
        is_last
    }

    fn overflow_in_flight(&self, request: &Request<'_>) -> SmallVec<[Fingerprint; 1]> {
        self.transact(request, |transaction| {
            let mut found = FoundTiers::new();
            if transaction.find_all(&mut found) {
                return SmallVec::new();
            }
            transaction.reserve_entries(&mut found);
            transaction.release(&found);
            let all = tiers(request.charges).zip(&found);
            let overflow = all.filter(|((_, tier), found)| tier.is_in_flight() && found.is_overflow());
            overflow.map(|((charge, tier), found)| found.key(charge).tier(tier.salt)).collect()
        })
    }

    fn counts_shares(&self) -> bool {
        M::COUNTS_SHARES
    }
}

/// Decides over the tiers of a request, at one time.
impl<M: Machines> Transaction<'_, M> {
    /// Adds the status of each tier to `states`.
    #[inline]
    fn charge(&mut self, states: &mut TierStates) -> OutcomeKind {
        let (charges, now) = (self.request.charges, self.now());
        let mut found = FoundTiers::new();
        let is_complete = self.find_all(&mut found);
        let mut earliest = self.earliest(&found);
        // No state makes way for a request that is rejected anyway.
        if !is_complete && earliest.is_some() {
            self.find_or_reserve(&mut found);
            earliest = self.earliest(&found);
        }
        let admitted = match earliest {
            Some(at) if at > now || charges.iter().any(Charge::is_smooth) => self.departure(at, &mut found),
            at => at,
        };
        let Some(at) = admitted else {
            self.release(&found);
            self.read(&found, states);
            return self.rejection(&found);
        };
        self.commit(at, &found, states);
        OutcomeKind::Admitted { wait: at - now }
    }

    /// When a request that could be admitted at `at` is admitted; `None` if it may not
    /// wait so long.
    #[cold]
    fn departure(&mut self, at: u64, found: &mut FoundTiers) -> Option<u64> {
        let (request, now) = (self.request, self.now());
        let is_smooth = request.charges.iter().any(Charge::is_smooth);
        let paces = is_smooth.then(|| self.paces(at, found));
        let departure = paces.as_ref().map_or(at, |paces| paces.departure(at));
        if departure > now && !request.try_enter_queue() {
            return (at == now).then_some(now);
        }
        if let Some(paces) = paces.filter(|_| departure > at) {
            paces.mark_slowest(departure, found);
        }
        Some(departure)
    }

    fn look(&mut self, states: &mut TierStates) -> OutcomeKind {
        let mut found = FoundTiers::new();
        self.find_all(&mut found);
        self.read(&found, states);
        match self.earliest(&found) {
            Some(at) => OutcomeKind::Admitted { wait: at - self.now() },
            None => self.rejection(&found),
        }
    }

    /// When all tiers admit the request; `None` where that is never, or later than
    /// it may wait.
    #[inline]
    fn earliest(&self, found: &[FoundTier]) -> Option<u64> {
        let start = self.now().saturating_add(self.request.cooldown_left());
        let at = found.iter().try_fold(start, |at, tier| Some(at.max(tier.earliest?)));
        at.filter(|&at| at == self.now() || self.may_wait(found, at))
    }

    /// The answer to a request that is not admitted.
    #[cold]
    fn rejection(&self, found: &[FoundTier]) -> OutcomeKind {
        let known = |at: u64, tier: &FoundTier| {
            Some(at.max(tier.earliest.map(|time| if time == UNKNOWN_TIME { self.now() } else { time })?))
        };
        let start = self.now().saturating_add(self.request.cooldown_left());
        let Some(at) = found.iter().try_fold(start, known) else { return OutcomeKind::Rejected { retry_after: None } };
        let full = tiers(self.request.charges).zip(found).find(|(_, found)| found.earliest == Some(UNKNOWN_TIME));
        match full {
            Some(((charge, tier), full)) if at == self.now() || self.may_wait(found, at) => {
                OutcomeKind::Busy { key: full.key(charge).tier(tier.salt) }
            }
            _ => OutcomeKind::Rejected { retry_after: Some(at - self.now()) },
        }
    }

    /// Whether each tier's wait is within its rule's bound, and the whole wait
    /// within the caller's.
    #[cold]
    fn may_wait(&self, found: &[FoundTier], at: u64) -> bool {
        let (request, cooldown) = (self.request, self.request.cooldown_left());
        at != UNKNOWN_TIME
            && at - self.now() <= nanos(request.max_wait)
            && request.charges.iter().all(|charge| charge.max_wait >= cooldown)
            && tiers(request.charges).zip(found).all(|((charge, tier), found)| {
                let machine = self.machines.of(found.key(charge), tier);
                // A cooldown delays the whole queue.
                let longest = charge.max_wait.min(machine.longest_wait().saturating_add(cooldown));
                found.earliest.is_some_and(|earliest| earliest == UNKNOWN_TIME || earliest - self.now() <= longest)
            })
    }
}
