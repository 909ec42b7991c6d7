//! Decisions by the copies: of requests, of what the store has charged for them, and
//! of requests that the store does not reply to.
//!
//! Invariant: what is charged here is counted in the copy before, or under its lock.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    Charged, Copies, Take,
    copy::{LocalCopy, Reserved, on_store},
};
use crate::{
    backend::{AcquireRequest, Outcome, OutcomeKind, QuotaStatuses, TierState, redis::plan::Counters},
    policy::{Target, charge::LocalCharge},
    time::Timestamp,
};

/// How far, in nanoseconds, the times of a copy may be off: the store counts in whole
/// microseconds, and its clock is known to about half of a round trip.
const CLOSE: u64 = 1_000_000;

impl Copies {
    /// Makes a charge if the copy may, and the engine admits it. Else nothing has
    /// changed.
    #[inline]
    pub(crate) fn try_charge(&self, charge: &LocalCharge<'_>, now: u64, statuses: &mut QuotaStatuses) -> bool {
        let Target { key, cost, .. } = charge.target;
        let (mut is_charged, mut to_schedule) = (false, None);
        self.table.with(key, |copy| {
            let ahead = copy.counters.as_ref().map_or(0, |counters| self.ahead(counters.lane));
            let Reserved::Granted { wait, now } = copy.reserve(charge.version, cost, now, ahead) else { return };
            // Under the copy's lock, so that a reply finds the unit in both.
            let targets = std::slice::from_ref(&charge.target);
            is_charged = self.engine.try_charge(targets, now, |_, status, _| statuses.push(status));
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
    #[inline]
    pub(crate) fn take(&self, request: &AcquireRequest<'_>) -> Take {
        let now = request.now.as_nanos();
        let (mut charged, mut marks) = (Charged::new(), SmallVec::<[u64; 4]>::new());
        let mut decided = None;
        let is_alone = request.charges.len() == 1;
        for charge in request.charges {
            let (mut to_schedule, version) = (None, charge.local_version());
            let reserved = self.table.with(charge.key, |copy| {
                let ahead = copy.counters.as_ref().map_or(0, |counters| self.ahead(counters.lane));
                let reserved = copy.reserve(version, charge.cost, now, ahead);
                if let Reserved::Granted { wait, now } = reserved {
                    marks.extend_from_slice(&copy.marks);
                    if is_alone {
                        // Under the copy's lock, so that a reply finds the unit in both.
                        let outcome = self.engine.decide(&at(request, now));
                        if !outcome.is_admitted() {
                            copy.cancel(charge.cost, now);
                        }
                        decided = Some(outcome);
                    } else {
                        copy.begin();
                    }
                    to_schedule = wait.and_then(|wait| Some((wait, copy.counters.clone()?)));
                }
                reserved
            });
            match reserved {
                Some(Reserved::Granted { now, .. }) => charged.push((charge.key, charge.cost, now)),
                Some(Reserved::Exhausted { now }) => {
                    self.abandon(&charged);
                    return self.look(request, now);
                }
                Some(Reserved::Unknown) | None => {
                    self.abandon(&charged);
                    return Take::Ask;
                }
            }
            if let Some((wait, counters)) = to_schedule {
                self.schedule(counters, wait, now);
            }
        }
        let Some(&(_, _, store_now)) = charged.first() else { return Take::Ask };
        let mut outcome = decided.unwrap_or_else(|| self.engine.decide(&at(request, store_now)));
        outcome.tiers.iter_mut().zip(marks).for_each(|(tier, mark)| tier.mark = mark);
        date(&mut outcome, store_now);
        match outcome.is_admitted() {
            _ if is_alone => {}
            true => self.end(&charged),
            false => self.abandon(&charged),
        }
        if !outcome.is_admitted() {
            return rejection(outcome);
        }
        Take::Decided(outcome, charged)
    }

    /// What is known already rejects the request: usage only rises.
    #[cold]
    fn look(&self, request: &AcquireRequest<'_>, store_now: u64) -> Take {
        let mut outcome = self.engine.look(&at(request, store_now));
        date(&mut outcome, store_now);
        if outcome.is_admitted() { Take::Ask } else { rejection(outcome) }
    }

    /// The engine has charged all of a request.
    fn end(&self, charged: &Charged) {
        for &(key, ..) in charged {
            self.table.with(key, LocalCopy::end);
        }
    }

    /// Takes back what was reserved for a request that the engine does not charge.
    fn abandon(&self, charged: &Charged) {
        self.cancel(charged);
        self.end(charged);
    }

    /// Takes back what was charged for a request that is not admitted after all.
    pub(crate) fn cancel(&self, charged: &Charged) {
        for &(key, cost, now) in charged {
            self.table.with(key, |copy| copy.cancel(cost, now));
        }
    }

    /// The same, after the engine has charged it: what is known of the keys is void.
    pub(crate) fn undo(&self, charged: &Charged) {
        self.cancel(charged);
        for &(key, ..) in charged {
            self.table.with(key, LocalCopy::invalidate);
        }
    }

    /// The store has charged units for a request that was sent after the batch of
    /// this number: what is known counts them as well, unless it was read later.
    pub(crate) fn charged(&self, counters: &[(Arc<Counters>, u64)], now: u64, after: u64) {
        for (counters, cost) in counters {
            let now_there = on_store(now, self.ahead(counters.lane));
            self.table.with(counters.key, |copy| {
                if copy.on_charged(*cost, after) {
                    // Under the copy's lock: a reply would be overwritten with more.
                    counters
                        .tiers
                        .iter()
                        .for_each(|tier| self.engine.add(counters.key, &tier.shared.tier, *cost, now_there));
                }
            });
        }
    }

    /// The store does not reply: decides by the last known counts. `None` if they are
    /// too old, or do not admit the request.
    #[cold]
    pub(crate) fn fall_back(&self, counters: &[(Arc<Counters>, u64)], now: u64) -> Option<Outcome> {
        let mut charged = Charged::new();
        for (own, cost) in counters {
            let ahead = self.ahead(own.lane);
            let force = |copy: &mut LocalCopy| copy.force(own, *cost, ahead).inspect(|_| copy.begin());
            let forced = self.table.with(own.key, force).flatten();
            let Some((at, wait)) = forced else {
                self.abandon(&charged);
                return None;
            };
            charged.push((own.key, *cost, at));
            if let Some(wait) = wait {
                self.schedule(Arc::clone(own), wait, now);
            }
        }
        let &(_, _, store_now) = charged.first()?;
        let mut tiers = SmallVec::new();
        for (own, cost) in counters {
            for tier in &own.tiers {
                let target = Target { key: own.key, tiers: std::slice::from_ref(&tier.shared.tier), cost: *cost };
                let is_charged = self.engine.try_charge(&[target], store_now, |tier, status, _| {
                    let used = TierState::unused(tier.quota().limit());
                    tiers.push(TierState { remaining: status.remaining, reset: status.reset, ..used });
                });
                if !is_charged {
                    self.undo(&charged);
                    self.end(&charged);
                    return None;
                }
            }
        }
        self.end(&charged);
        let mut outcome = Outcome { answer: OutcomeKind::Admitted { wait: 0 }, tiers, decided_at: None };
        date(&mut outcome, store_now);
        Some(outcome)
    }
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

/// The request at the store's time, which the engine runs on.
fn at<'a>(request: &AcquireRequest<'a>, store_now: u64) -> AcquireRequest<'a> {
    let now = Timestamp::from_nanos(store_now);
    AcquireRequest { now, max_wait: Duration::ZERO, ..*request }.not_before(Timestamp::from_nanos(0))
}
