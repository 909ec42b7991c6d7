//! Decisions by the copies: of requests, of what the store has charged for them, and
//! of requests that the store does not reply to.
//!
//! Invariant: a request is decided, charged and counted under the locks of all its
//! copies, so that a reply finds a unit in all of these or in none.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Charged, Copies, Take,
    copy::{LocalCopy, Reserved, on_store},
    counts::{Counted, tiers_of},
};
use crate::{
    backend::{AcquireRequest, Outcome, OutcomeKind, QuotaStatuses, TierState, TierStates, redis::plan::Counters},
    fingerprint::Fingerprint,
    policy::{Target, Tier, charge::LocalCharge},
    store::LockedStates,
};

/// How far, in nanoseconds, the times of a copy may be off: the store counts in whole
/// microseconds, and its clock is known to about half of a round trip.
const CLOSE: u64 = 1_000_000;

impl Copies {
    /// Makes a charge if the copy may, and all tiers admit it. Else nothing has changed.
    #[inline]
    pub(crate) fn try_charge(&self, charge: &LocalCharge<'_>, now: u64, statuses: &mut QuotaStatuses) -> bool {
        let Target { key, tiers, cost } = charge.target;
        let (mut is_charged, mut to_schedule) = (false, None);
        self.with(key, |copy| {
            let ahead = copy.counters.as_ref().map_or(0, |counters| self.ahead(counters.shared.lane));
            let Reserved::Granted { wait, now } = copy.reserve(charge.version, cost, now, ahead) else { return };
            is_charged = copy.counts.try_charge(tiers.iter(), cost, now, statuses);
            if !is_charged {
                copy.cancel(cost, now);
            }
            to_schedule = wait.and_then(|wait| Some((wait, copy.counters.clone()?)));
        });
        if let Some((wait, counters)) = to_schedule {
            self.schedule(counters, wait, now);
        }
        is_charged
    }

    /// Decides a request that does not wait by the copies of its keys, if they may.
    pub(crate) fn take(&self, request: &AcquireRequest<'_>) -> Take {
        let mut to_schedule = ToSchedule::new();
        let mut copies = self.table.lock_all(request.charges.iter().map(|charge| charge.key));
        let take = self.take_locked(&mut copies, request, &mut to_schedule);
        drop(copies);
        self.schedule_all(to_schedule, request.now.as_nanos());
        take
    }

    fn take_locked(
        &self,
        copies: &mut LockedCopies<'_>,
        request: &AcquireRequest<'_>,
        to_schedule: &mut ToSchedule,
    ) -> Take {
        let mut charged = Charged::new();
        for charge in request.charges {
            let reserved = copy_of(copies, charge.key).map(|copy| {
                let ahead = copy.counters.as_ref().map_or(0, |counters| self.ahead(counters.shared.lane));
                let reserved = copy.reserve(charge.local_version(), charge.cost, request.now.as_nanos(), ahead);
                if let Reserved::Granted { wait: Some(wait), .. } = reserved {
                    to_schedule.extend(copy.counters.clone().map(|counters| (counters, wait)));
                }
                reserved
            });
            match reserved {
                Some(Reserved::Granted { now, .. }) => charged.push((charge.key, charge.cost, now)),
                Some(Reserved::Exhausted { now, age }) if age <= self.rejections_last => {
                    cancel(copies, &charged);
                    // What is known already rejects the request, or else the store does:
                    // usage hardly ever falls.
                    let outcome = decide(copies, request, now, false);
                    return if outcome.is_admitted() { Take::Ask } else { rejection(outcome) };
                }
                Some(Reserved::Exhausted { .. } | Reserved::Unknown) | None => {
                    cancel(copies, &charged);
                    return Take::Ask;
                }
            }
        }
        let Some(&(_, _, store_now)) = charged.first() else { return Take::Ask };
        let outcome = decide(copies, request, store_now, true);
        if !outcome.is_admitted() {
            cancel(copies, &charged);
            return rejection(outcome);
        }
        Take::Decided(outcome, charged)
    }

    fn schedule_all(&self, all: ToSchedule, now: u64) {
        all.into_iter().for_each(|(counters, wait)| self.schedule(counters, wait, now));
    }

    /// Takes back what was charged for a request that is not admitted after all: what is
    /// known of the keys is void.
    pub(crate) fn undo(&self, charged: &Charged) {
        for &(key, cost, now) in charged {
            self.with(key, |copy| {
                copy.cancel(cost, now);
                copy.invalidate();
            });
        }
    }

    /// The store has charged units for a request that was sent after the batch of
    /// this number: what is known counts them as well, unless it was read later.
    pub(crate) fn charged(&self, counters: &[(Arc<Counters>, u64)], now: u64, after: u64) {
        for (counters, cost) in counters {
            let now_there = on_store(now, self.ahead(counters.shared.lane));
            self.with(counters.key, |copy| {
                if copy.on_charged(*cost, now, after) && copy.is_of(counters) {
                    copy.counts.add(tiers_of(counters), *cost, now_there);
                }
            });
        }
    }

    /// The store does not reply: decides by the last known counts. `None` if they are
    /// too old, or do not admit the request.
    #[cold]
    pub(crate) fn fall_back(&self, counters: &[(Arc<Counters>, u64)], now: u64) -> Option<Outcome> {
        let mut to_schedule = ToSchedule::new();
        let mut copies = self.table.lock_all(counters.iter().map(|(own, _)| own.key));
        let outcome = self.fall_back_locked(&mut copies, counters, &mut to_schedule);
        drop(copies);
        self.schedule_all(to_schedule, now);
        outcome
    }

    fn fall_back_locked(
        &self,
        copies: &mut LockedCopies<'_>,
        counters: &[(Arc<Counters>, u64)],
        to_schedule: &mut ToSchedule,
    ) -> Option<Outcome> {
        let mut charged = Charged::new();
        for (own, cost) in counters {
            let forced = copy_of(copies, own.key).and_then(|copy| copy.force(own, *cost, self.ahead(own.shared.lane)));
            let Some((at, wait)) = forced else {
                cancel(copies, &charged);
                return None;
            };
            charged.push((own.key, *cost, at));
            to_schedule.extend(wait.map(|wait| (Arc::clone(own), wait)));
        }
        let &(_, _, store_now) = charged.first()?;
        let admits = |(own, cost): &(Arc<Counters>, u64)| {
            copy_of(copies, own.key).is_some_and(|copy| copy.counts.admits(tiers_of(own), *cost, store_now))
        };
        if !counters.iter().all(admits) {
            cancel(copies, &charged);
            return None;
        }
        let mut tiers = TierStates::new();
        for (own, cost) in counters {
            for (tier, Counted { count, .. }) in
                copy_of(copies, own.key).into_iter().flat_map(|copy| copy.counts.of(tiers_of(own)))
            {
                count.commit(&tier.machine, *cost, store_now);
                tiers.push(TierState::new((count.status(&tier.machine, store_now), 0), false));
            }
        }
        let mut outcome = Outcome { answer: OutcomeKind::Admitted { wait: 0 }, tiers, decided_at: None };
        date(&mut outcome, store_now);
        Some(outcome)
    }
}

/// Counters to be reported after so many nanoseconds.
type ToSchedule = SmallVec<[(Arc<Counters>, u64); 1]>;

type LockedCopies<'c> = LockedStates<'c, Option<Box<LocalCopy>>>;

/// The copy of a key that was locked, if there is one.
fn copy_of<'c>(copies: &'c mut LockedCopies<'_>, key: Fingerprint) -> Option<&'c mut LocalCopy> {
    copies.get(key)?.as_deref_mut()
}

/// Takes back what was reserved for a request that is not charged.
fn cancel(copies: &mut LockedCopies<'_>, charged: &Charged) {
    for &(key, cost, now) in charged {
        if let Some(copy) = copy_of(copies, key) {
            copy.cancel(cost, now);
        }
    }
}

/// Decides by what is known, and charges it where the request `is_charged` if admitted.
/// Keys that are not known admit it.
fn decide(copies: &mut LockedCopies<'_>, request: &AcquireRequest<'_>, store_now: u64, is_charged: bool) -> Outcome {
    let mut earliest = SmallVec::<[Option<u64>; 2]>::new();
    for charge in request.charges {
        match copy_of(copies, charge.key).filter(|copy| copy.is_known_as(charge.local_version())) {
            Some(copy) => {
                let own = copy.counts.of(charge.tiers().iter());
                earliest.extend(own.map(|(tier, own)| own.count.earliest(&tier.machine, charge.cost, store_now)));
            }
            None => earliest.extend(charge.tiers().iter().map(|_| Some(store_now))),
        }
    }
    let at = earliest.iter().try_fold(store_now, |at, own| Some(at.max((*own)?)));
    let answer = match at {
        Some(at) if at == store_now => OutcomeKind::Admitted { wait: 0 },
        _ => OutcomeKind::Rejected { retry_after: at.map(|at| at - store_now) },
    };
    let mut tiers = TierStates::new();
    let mut earliest = earliest.into_iter();
    for charge in request.charges {
        let Some(copy) = copy_of(copies, charge.key).filter(|copy| copy.is_known_as(charge.local_version())) else {
            let unused = |tier: &Tier| TierState::unused(tier.quota().limit());
            tiers.extend(charge.tiers().iter().map(unused).zip(earliest.by_ref()).map(|(unused, _)| unused));
            continue;
        };
        for (tier, Counted { count, mark }) in copy.counts.of(charge.tiers().iter()) {
            if is_charged && at == Some(store_now) {
                count.commit(&tier.machine, charge.cost, store_now);
            }
            let is_violated = earliest.next() != Some(Some(store_now));
            tiers.push(TierState::new((count.status(&tier.machine, store_now), *mark), is_violated));
        }
    }
    let mut outcome = Outcome { answer, tiers, decided_at: None };
    date(&mut outcome, store_now);
    outcome
}

/// The outcome at the store's time, in whole microseconds, from which on it admits.
fn date(outcome: &mut Outcome, store_now: u64) {
    if let OutcomeKind::Rejected { retry_after: Some(retry_after) } = &mut outcome.answer {
        *retry_after = retry_after.div_ceil(1_000).saturating_mul(1_000);
    }
    outcome.decided_at = Some(store_now);
}

/// A rejection that ends within what the copy may be off is the store's to decide.
fn rejection(outcome: Outcome) -> Take {
    match outcome.answer {
        OutcomeKind::Rejected { retry_after: Some(0..CLOSE) } => Take::Ask,
        _ => Take::Decided(outcome, Charged::new()),
    }
}
