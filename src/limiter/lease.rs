//! What an admitted request keeps: its receipts, to be settled, released or
//! refunded. Decides nothing.
//!
//! Invariant: in-flight units are released exactly once, by the first of
//! [`Lease::release`], [`Lease::refund`] and drop. Settling stays possible
//! afterwards. A lease that is dropped before [`Lease::send`] is refunded.

use std::{
    collections::BTreeMap,
    fmt, slice,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use smallvec::SmallVec;

use super::{
    observe,
    state::{Decider, Grant, RateLimiter},
    upstream::Postponement,
};
use crate::{
    backend::{Backend, Charge, Outcome, OutcomeKind, Receipt, Settlement},
    decision::RateLimited,
    policy::{CompiledPolicy, CompiledRule, Unsettled, charge::Charges},
    sync::lock,
    time::Timestamp,
    unit::Unit,
};

/// What an admitted request keeps: what it was charged, and its in-flight
/// units. Can be shared: one party releases it, others may settle even after
/// that.
pub(crate) struct Lease {
    pub(super) limiter: RateLimiter,
    pub(super) grant: Grant,
    /// Of shadow rules: each was charged separately.
    pub(super) shadows: Vec<Self>,
    changes: Mutex<Changes>,
    /// Whether a rule follows what becomes of the request: by far most do not, and are not
    /// asked.
    pub(super) is_followed_up: bool,
    /// The request was sent, and it is counted among the limiter's permits.
    pub(super) is_sent: bool,
    is_released: AtomicBool,
    /// Whether the request keeps it once it is sent.
    pub(super) is_kept: bool,
    /// The resume schedule of a key has put the request off.
    pub(super) put_off: Option<Postponement>,
    /// The end of the cooldown after which its slot was reserved; the epoch without one.
    pub(super) behind: Timestamp,
}

/// What became of a request's cost while it was under way.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) added: Vec<Added>,
    /// What it is charged by now, in each unit that its handler has settled.
    settled: Vec<(String, u64)>,
}

/// Units that were added to a request, in units of its own cost.
#[derive(Debug)]
pub(super) struct Added {
    pub(super) lease: Arc<Lease>,
    pub(super) units: u64,
}

impl Lease {
    pub(super) fn new(limiter: &RateLimiter, grant: Grant) -> Self {
        let is_followed_up = grant.receipt.rules().any(CompiledRule::follows_up);
        Self {
            limiter: limiter.clone(),
            grant,
            shadows: Vec::new(),
            changes: Mutex::default(),
            is_followed_up,
            is_sent: false,
            is_released: AtomicBool::new(false),
            is_kept: false,
            put_off: None,
            behind: Timestamp::UNIX_EPOCH,
        }
    }

    /// The lease of a shadow rule; `None` where nothing is in flight and
    /// nothing can be settled.
    pub(super) fn of_shadow(
        limiter: &RateLimiter,
        charge: &Charge<'_>,
        policy: &Arc<CompiledPolicy>,
        now: Timestamp,
        outcome: &Outcome,
    ) -> Option<Self> {
        let OutcomeKind::Admitted { .. } = outcome.answer else { return None };
        let receipt = Receipt::new(policy, slice::from_ref(charge), now, outcome);
        let is_kept = receipt.holds_in_flight() || receipt.rules().any(CompiledRule::is_settled_late);
        is_kept.then(|| Self::new(limiter, Grant::new(Decider::Backend, receipt)))
    }

    /// The request is sent: the lease counts as a permit until it is released.
    pub(super) fn count(&mut self) {
        self.is_sent = true;
        self.limiter.inner.permits.add();
    }

    /// It is a part of another lease, which settles it, and no permit of its own.
    pub(super) fn into_part(mut self: Arc<Self>) -> Arc<Self> {
        self.release();
        Arc::get_mut(&mut self).into_iter().for_each(|own| own.is_sent = false);
        self
    }

    pub(super) fn receipt(&self) -> &Receipt {
        &self.grant.receipt
    }

    fn backend_of(&self, decider: Decider) -> &dyn Backend {
        match decider {
            Decider::Backend => &*self.limiter.inner.backend,
            Decider::Fallback | Decider::Mirror => self.limiter.fallback(),
        }
    }

    /// Whether a rule allows the request's handler to settle it.
    pub(crate) fn is_settled_by_handler(&self) -> bool {
        self.follows_up(|rule| rule.options.settle)
    }

    /// All charges that can be settled.
    fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.receipts().flat_map(|(receipt, _)| receipt.charges())
    }

    /// Whether a rule that follows the request up is such a rule.
    fn follows_up(&self, which: impl Fn(&CompiledRule) -> bool) -> bool {
        self.is_followed_up && self.is_charged_by(which)
    }

    /// Whether such a rule charged it.
    fn is_charged_by(&self, which: impl Fn(&CompiledRule) -> bool) -> bool {
        self.receipts().any(|(receipt, _)| receipt.rules().any(&which))
    }

    /// All that can be settled, and the limiter that charged it.
    fn receipts(&self) -> impl Iterator<Item = (&Receipt, Decider)> {
        self.own_receipts().chain(self.shadows.iter().flat_map(Self::own_receipts))
    }

    /// Those of the enforced rules.
    fn own_receipts(&self) -> impl Iterator<Item = (&Receipt, Decider)> {
        let mirror = self.grant.mirror.iter().map(|mirror| (&**mirror, Decider::Mirror));
        std::iter::once((self.receipt(), self.grant.decider)).chain(mirror)
    }

    /// Charges more, or gives some back, of what the request costs in this unit: for the
    /// rules that allow the handler to settle.
    pub(crate) fn settle(&self, unit: &str, settlement: Settlement) {
        self.replace_settled(unit, |charged| match settlement {
            Settlement::Add(more) => charged.saturating_add(more),
            Settlement::GiveBack(less) => charged.saturating_sub(less),
        });
        self.settle_in(unit, settlement);
    }

    /// Charges the difference to what the request has cost in all.
    pub(crate) fn settle_to(&self, unit: &str, actual: u64) {
        let charged = self.replace_settled(unit, |_| actual);
        if charged != actual {
            self.settle_in(unit, difference(charged, actual));
        }
    }

    fn settle_in(&self, unit: &str, settlement: Settlement) {
        let settles = |rule: &CompiledRule| rule.options.settles_in(unit);
        match settlement {
            Settlement::Add(_) => self.settle_where(settles, settlement),
            Settlement::GiveBack(units) => self.give_back_where(settles, units),
        }
    }

    /// Whether a rule charges the bytes of the response.
    pub(crate) fn counts_bytes(&self) -> bool {
        self.follows_up(|rule| rule.options.per_byte.is_some())
    }

    /// The response had so many bytes: rules that charge them settle what was stated.
    pub(crate) fn settle_bytes(&self, sent: u64) {
        let counts = self.charges().filter(|charge| charge.rule.options.per_byte.is_some());
        let charged: BTreeMap<usize, u64> = counts.map(|charge| (charge.rule.index, stated(&charge))).collect();
        for (index, stated) in charged {
            self.settle_where(|rule| rule.index == index, difference(stated, sent));
        }
    }

    /// Replaces what the request is charged in this unit. Returns what it was charged before.
    pub(super) fn replace_settled(&self, unit: &str, replace: impl FnOnce(u64) -> u64) -> u64 {
        let settled = &mut self.changes().settled;
        let index = settled.iter().position(|(known, _)| known == unit).unwrap_or_else(|| {
            settled.push((unit.to_owned(), self.stated_in(unit)));
            settled.len() - 1
        });
        let before = settled[index].1;
        settled[index].1 = replace(before);
        before
    }

    /// What the request was charged in this unit when it was admitted.
    fn stated_in(&self, unit: &str) -> u64 {
        let settles = self.charges().filter(|charge| charge.rule.options.settles_in(unit));
        settles.map(|charge| stated(&charge)).max().unwrap_or(0)
    }

    /// What its handler has settled tells what such requests usually cost: those of the key
    /// that decides it for all rules of the unit.
    fn learn_costs(&self, settled: &[(String, u64)]) {
        for (unit, cost) in settled {
            let all = self.receipts().flat_map(|(receipt, _)| receipt.kept());
            if let Some(first) = all.into_iter().find(|kept| kept.charge().rule.options.unit_name() == unit) {
                let Charge { rule, key, .. } = first.charge();
                first.policy().carried.estimates.learn(rule.id, key, *cost);
            }
        }
    }

    /// Gives back what rules charged that refund what no handler has settled.
    fn refund_unsettled(&self, settled: &[(String, u64)]) {
        let refunds = |rule: &CompiledRule| rule.options.unsettled == Unsettled::Refund;
        if self.follows_up(refunds) {
            let is_open = |rule: &CompiledRule| settled.iter().all(|(unit, _)| unit != rule.options.unit_name());
            self.settle_where(|rule| refunds(rule) && is_open(rule), Settlement::GiveBack(u64::MAX));
        }
    }

    /// What was changed, while it is locked.
    pub(super) fn changes(&self) -> MutexGuard<'_, Changes> {
        lock(&self.changes)
    }

    /// Gives back what was added latest, and then what the request was charged.
    fn give_back_where(&self, which: impl Fn(&CompiledRule) -> bool + Copy, units: u64) {
        let mut left = units;
        for added in
            self.changes().added.iter_mut().rev().filter(|added| added.units > 0 && added.lease.is_charged_by(which))
        {
            let own = added.units.min(left);
            added.lease.settle_where(which, Settlement::GiveBack(own));
            added.units -= own;
            left -= own;
        }
        if left > 0 {
            self.settle_where(which, Settlement::GiveBack(left));
        }
    }

    /// The response is known: rules that do not charge its status give back
    /// what they charged.
    pub(crate) fn finish(&self, status: StatusCode) {
        if self.is_followed_up {
            self.give_back_where(|rule| !rule.keeps(status), u64::MAX);
        }
    }

    /// When the request was sent.
    pub(super) fn sent(&self) -> Timestamp {
        self.put_off.map_or(self.receipt().at(), |put_off| put_off.at)
    }

    /// The units of the rules that follow their upstream, and what the request stated in each.
    pub(crate) fn stated_costs(&self) -> SmallVec<[(Unit, u64); 2]> {
        let mut costs = SmallVec::new();
        for charge in self.receipt().charges().filter(|charge| charge.rule.options.upstream_feedback) {
            if let Some(unit) = charge.unit()
                && costs.iter().all(|(known, _)| *known != unit)
            {
                costs.push((unit, stated(&charge)));
            }
        }
        costs
    }

    fn settle_where(&self, which: impl Fn(&CompiledRule) -> bool, settlement: Settlement) {
        for (receipt, decider) in self.receipts() {
            if !receipt.rules().any(&which) {
                continue;
            }
            // The clone shares what is left to give back.
            if let Some(receipt) = receipt.clone().only(|charge| which(charge.rule)) {
                let now = self.limiter.now();
                match (decider, settlement) {
                    (Decider::Mirror, Settlement::Add(more)) => self.limiter.fallback().count_more(&receipt, more, now),
                    _ => self.backend_of(decider).settle(&receipt, settlement, now),
                }
                if let Settlement::GiveBack(_) = settlement {
                    self.limiter.gave_back(&receipt);
                }
            }
        }
    }

    /// Another layer has rejected the request, after this one's limiter admitted
    /// it. Gives the charge back if that layer is of the same limiter; returns
    /// whether it is.
    pub(crate) fn refund_if_rejected(&self, rejection: &RateLimited) -> bool {
        let is_own = rejection.is_by_layer(self.limiter.id());
        if is_own {
            self.refund();
        }
        is_own
    }

    /// Whether anything is left to do for the request once its response is there.
    pub(crate) fn outlives_response(&self) -> bool {
        self.is_followed_up || self.holds_in_flight()
    }

    /// Whether a concurrency limit counts the request.
    pub(crate) fn holds_in_flight(&self) -> bool {
        self.receipts().any(|(receipt, _)| receipt.holds_in_flight())
    }

    /// The response upgrades its connection, which outlives the response and so
    /// leaves its concurrency limits.
    pub(crate) fn upgrades(&self) {
        if let Some(charge) = self.receipt().charges().find(Charge::is_in_flight) {
            observe::upgraded(charge.rule);
        }
    }

    /// Starts a cooldown of the request's keys: the upstream asked for it.
    pub(crate) fn cool_down(&self, time: Duration) {
        let charges: Charges<'_> = self.receipt().charges().collect();
        self.limiter.cool_down_all(&charges, time);
    }

    /// The time on the limiter's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.limiter.now()
    }

    /// The request has ended: its in-flight units come back. All else that was
    /// charged stays charged.
    pub(crate) fn release(&self) {
        if self.is_first_release() {
            for (receipt, decider) in self.own_receipts().filter(|(receipt, _)| receipt.holds_in_flight()) {
                self.backend_of(decider).release(receipt, self.limiter.now());
            }
            self.call_next();
        }
    }

    /// Gives back all that was charged, what was added too, where that cannot break
    /// a bound. What a shadow rule charged stays, unless it is settled late.
    pub(crate) fn refund(&self) {
        if self.receipt().rules().any(|rule| rule.options.shadow && !rule.is_settled_late()) {
            return self.release();
        }
        for Added { lease, units } in self.changes().added.drain(..) {
            lease.settle_where(|_| true, Settlement::GiveBack(units));
        }
        self.shadows.iter().for_each(Self::refund);
        if self.is_first_release() {
            for (receipt, decider) in self.own_receipts() {
                self.backend_of(decider).refund(receipt, self.limiter.now());
            }
            self.limiter.gave_back(self.receipt());
            self.call_next();
        }
    }

    /// Whether the request has ended.
    pub(super) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    fn is_first_release(&self) -> bool {
        let is_first = !self.is_released.swap(true, Ordering::AcqRel);
        if is_first {
            self.shadows.iter().for_each(Self::release);
            if self.is_sent {
                self.limiter.inner.permits.subtract();
            }
        }
        is_first
    }

    /// In-flight units came back: the first waiter of each queue is called.
    #[cold]
    pub(super) fn call_next(&self) {
        let queues = &self.limiter.inner.queues;
        if queues.are_empty() {
            return;
        }
        for charge in self.receipt().charges() {
            for tier in charge.tiers().iter().filter(|tier| tier.is_in_flight()) {
                queues.call(charge.key.tier(tier.salt));
                // The unit may have been charged to the overflow counter.
                queues.call(charge.rule.overflow.tier(tier.salt));
            }
        }
    }
}

/// Whether anything is left to do for a charge after its request is sent.
pub(super) fn is_kept_by(charge: &Charge<'_>) -> bool {
    charge.rule.follows_up() || charge.is_in_flight()
}

/// What the request said that it costs, for a charge that its rule has multiplied.
fn stated(charge: &Charge<'_>) -> u64 {
    charge.cost / charge.rule.options.cost.max(1)
}

/// What makes a charge of so many units one of others.
fn difference(charged: u64, actual: u64) -> Settlement {
    match actual.checked_sub(charged) {
        Some(more) => Settlement::Add(more),
        None => Settlement::GiveBack(charged - actual),
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_sent {
            return self.refund();
        }
        let changes = self.changes.get_mut().unwrap_or_else(PoisonError::into_inner);
        let settled = std::mem::take(&mut changes.settled);
        self.learn_costs(&settled);
        self.refund_unsettled(&settled);
        self.release();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("receipt", self.receipt()).finish_non_exhaustive()
    }
}
