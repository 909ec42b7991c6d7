//! Decides in this process: [`Engine`], a bounded store and the machines that
//! count in it. It knows nothing of policies' rules beyond their charges, of
//! shares, and of who calls it.
//!
//! Invariant: a decision charges every tier of every charge, or none, under the
//! locks of all of them.

use smallvec::SmallVec;

use super::{
    machine_source::{FullQuota, MachineSource, Machines},
    ops::{self, StagedTiers},
    transaction::{FoundTier, FoundTiers, Transaction, stage_target, tiers},
};
use crate::{
    algorithm::{LazyStatus, QuotaStatus, UNKNOWN_TIME},
    backend::{
        outcome::{Outcome, OutcomeKind, TierState, TierStates},
        request::AcquireRequest,
    },
    fingerprint::Fingerprint,
    policy::{
        Target, Tier,
        charge::{AsTarget, Charge},
    },
    store::Store,
    time::nanos,
};

/// Decides in this process.
#[derive(Debug)]
pub(crate) struct Engine<M> {
    pub(super) store: Store,
    pub(super) source: M,
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

    pub(crate) fn source(&self) -> &M {
        &self.source
    }

    /// Charges the only tier of a target, if its state exists and admits the cost at
    /// `now`; else changes nothing. Returns the status, and the state's version.
    #[inline]
    pub(crate) fn try_charge_tier(&self, target: &Target<'_>, tier: &Tier, now: u64) -> Option<(LazyStatus, u64)> {
        let Target { key, cost, .. } = *target;
        self.store.record_time(now);
        self.source.with_one(tier, now, |machine| {
            let shard = &mut *self.store.lock(self.store.shard_of(key));
            ops::try_charge(shard, machine, key.tier(tier.salt), now, cost)
        })
    }

    /// Charges all tiers of all targets, or changes nothing: also where one of them cannot
    /// be [staged](StagedTiers::stage). Calls `charged` for each tier, in order, with its
    /// state's version.
    #[inline]
    pub(crate) fn try_charge<'t>(
        &self,
        targets: &[impl AsTarget<'t>],
        now: u64,
        mut charged: impl FnMut(&'t Tier, QuotaStatus, u64),
    ) -> bool {
        self.store.record_time(now);
        let mut staged = StagedTiers::default();
        let is_charged = self.try_charge_several(targets, now, &mut staged);
        if is_charged {
            let tiers = targets.iter().flat_map(|target| target.target().tiers);
            tiers.zip(staged.statuses()).for_each(|(tier, (status, version))| charged(tier, status, version));
        }
        is_charged
    }

    /// Kept out of line: inlining the multi-tier path makes the single-tier path slower. A
    /// request of more tiers than can be staged is rare, and fails at the first of these:
    /// to count the tiers before takes 60 of 2,250 instructions for two rules.
    #[inline(never)]
    fn try_charge_several<'t>(&self, targets: &[impl AsTarget<'t>], now: u64, staged: &mut StagedTiers) -> bool {
        self.source.with(targets.iter().flat_map(|target| target.target().tiers), now, |machines| {
            if let [only] = targets {
                // The tiers of one key share a shard.
                let target = only.target();
                let shard = &mut *self.store.lock(self.store.shard_of(target.key));
                let is_charged = stage_target(machines, shard, &target, now, staged);
                if is_charged {
                    staged.write(shard, 0, target.tiers.len());
                }
                return is_charged;
            }
            let keys = targets.iter().map(|target| target.target().key);
            Transaction::new(machines, &self.store, keys).try_charge(targets, now, staged)
        })
    }

    /// How many nanoseconds after `now` all tiers of one key admit the cost, and the
    /// status of each. `None` where they admit it now, never, or at an unknown time, and
    /// where a state does not exist: then the request has to be decided.
    pub(crate) fn used_up(&self, target: &Target<'_>, now: u64) -> Option<(u64, TierStates)> {
        let Target { key, tiers, cost } = *target;
        self.source.with(tiers.iter(), now, |machines| {
            let shard = &mut *self.store.lock(self.store.shard_of(key));
            if self.store.bound_after_set_back(now).is_some() {
                return None;
            }
            let (mut at, mut states) = (now, TierStates::new());
            for tier in tiers {
                let (machine, key) = (machines.of(tier), key.tier(tier.salt));
                let (index, earliest) = ops::look(shard, machine, key, now, cost, None);
                let earliest = earliest.filter(|earliest| *earliest != UNKNOWN_TIME)?;
                let status = ops::status_of(shard, machine, key, index?, now);
                states.push(TierState::new(status, earliest != now));
                at = at.max(earliest);
            }
            (at > now).then(|| (at - now, states))
        })
    }

    pub(crate) fn decide(&self, request: &AcquireRequest<'_>) -> Outcome {
        self.with_machines(request, |machines| self.decide_by(machines, request))
    }

    /// The answer that [`Self::decide`] would give, charging nothing.
    pub(crate) fn look(&self, request: &AcquireRequest<'_>) -> Outcome {
        let now = request.now.as_nanos();
        self.with_machines(request, |machines| {
            let mut transaction = Transaction::of(machines, &self.store, request.charges);
            let mut found = FoundTiers::new();
            transaction.find_all(request.charges, now, &mut found);
            let at = earliest(machines, request, &found, now);
            let answer = answer(machines, request, &found, now, at);
            Outcome { answer, tiers: transaction.statuses(request.charges, now, &found), decided_at: None }
        })
    }

    /// The overflow counters of in-flight units that such a request would be
    /// charged to, because its keys have no entry and get none. Charges
    /// nothing.
    #[cold]
    pub(crate) fn overflow_in_flight(&self, request: &AcquireRequest<'_>) -> SmallVec<[Fingerprint; 1]> {
        let now = request.now.as_nanos();
        self.with_machines(request, |machines| {
            let mut transaction = Transaction::of(machines, &self.store, request.charges);
            let mut found = FoundTiers::new();
            if transaction.find_all(request.charges, now, &mut found) {
                return SmallVec::new();
            }
            transaction.reserve_entries(request.charges, now, &mut found);
            transaction.release(&found);
            let all = tiers(request.charges).zip(&found);
            let overflow = all.filter(|((_, tier), found)| tier.is_in_flight() && found.is_overflow());
            overflow.map(|((charge, tier), found)| found.key(charge).tier(tier.salt)).collect()
        })
    }

    #[inline]
    fn with_machines<R>(&self, request: &AcquireRequest<'_>, run: impl FnOnce(M::Machines<'_>) -> R) -> R {
        self.source.with(request.charges.iter().flat_map(Charge::tiers), request.now.as_nanos(), run)
    }

    #[inline]
    fn decide_by(&self, machines: M::Machines<'_>, request: &AcquireRequest<'_>) -> Outcome {
        let now = request.now.as_nanos();
        self.store.record_time(now);
        let mut transaction = Transaction::of(machines, &self.store, request.charges);
        let mut found = FoundTiers::new();
        let is_complete = transaction.find_all(request.charges, now, &mut found);
        // No state makes way for a request that is rejected anyway.
        if !is_complete && earliest(machines, request, &found, now).is_some() {
            transaction.find_or_reserve(request.charges, now, &mut found);
        }
        let admitted = match earliest(machines, request, &found, now) {
            Some(at) if request.charges.iter().any(Charge::is_smooth) => {
                Some(transaction.paced(request, now, at, &mut found))
            }
            admitted => admitted,
        };
        match admitted {
            Some(at) => transaction.commit(request.charges, now, at, &found),
            None => transaction.release(&found),
        }
        let answer = answer(machines, request, &found, now, admitted);
        Outcome { answer, tiers: transaction.statuses(request.charges, now, &found), decided_at: None }
    }
}

/// When all tiers admit the request; `None` where that is never, or later than
/// it may wait.
#[inline]
fn earliest(machines: impl Machines, request: &AcquireRequest<'_>, found: &[FoundTier], now: u64) -> Option<u64> {
    let start = now.saturating_add(request.cooldown_left());
    let at = found.iter().try_fold(start, |at, tier| Some(at.max(tier.earliest?)));
    at.filter(|&at| at == now || may_wait(machines, request, found, now, at))
}

#[inline]
fn answer(
    machines: impl Machines,
    request: &AcquireRequest<'_>,
    found: &[FoundTier],
    now: u64,
    admitted: Option<u64>,
) -> OutcomeKind {
    match admitted {
        Some(at) => OutcomeKind::Admitted { wait: at - now },
        None => rejection(machines, request, found, now),
    }
}

/// The answer to a request that is not admitted.
#[cold]
fn rejection(machines: impl Machines, request: &AcquireRequest<'_>, found: &[FoundTier], now: u64) -> OutcomeKind {
    let known = |at: u64, tier: &FoundTier| {
        Some(at.max(tier.earliest.map(|time| if time == UNKNOWN_TIME { now } else { time })?))
    };
    let start = now.saturating_add(request.cooldown_left());
    let Some(at) = found.iter().try_fold(start, known) else { return OutcomeKind::Rejected { retry_after: None } };
    let full = tiers(request.charges).zip(found).find(|(_, found)| found.earliest == Some(UNKNOWN_TIME));
    match full {
        Some(((charge, tier), full)) if at == now || may_wait(machines, request, found, now, at) => {
            OutcomeKind::Busy { key: full.key(charge).tier(tier.salt) }
        }
        _ => OutcomeKind::Rejected { retry_after: Some(at - now) },
    }
}

/// Whether each tier's wait is within its rule's bound, and the whole wait
/// within the caller's.
#[cold]
fn may_wait(machines: impl Machines, request: &AcquireRequest<'_>, found: &[FoundTier], now: u64, at: u64) -> bool {
    let cooldown = request.cooldown_left();
    at != UNKNOWN_TIME
        && at - now <= nanos(request.max_wait)
        && request.charges.iter().all(|charge| charge.max_wait >= cooldown)
        && tiers(request.charges).zip(found).all(|((charge, tier), found)| {
            // A cooldown delays the whole queue.
            let longest = charge.max_wait.min(machines.of(tier).longest_wait().saturating_add(cooldown));
            found.earliest.is_some_and(|earliest| earliest == UNKNOWN_TIME || earliest - now <= longest)
        })
}
