//! What becomes of a request's cost while it is under way: its handler settles what the
//! request has cost, adds units, and charges the messages of a stream. What is added is charged
//! atomically, or not at all; a settlement, in contrast, charges units that are spent already.
//!
//! Invariant: units that were added are given back before those of the
//! request itself, the latest first, and each at most once.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::StatusCode;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::{
    admission::{Admission, Next},
    attempt::{Attempt, AttemptOptions, Purpose},
    current::PolicySnapshot,
    drive::Driving,
    lease::{Added, Lease},
    state::Decider,
};
use crate::{
    backend::{Charge, OwnedCharge, Settlement},
    decision::{Decision, RateLimited},
    policy::{CompiledPolicy, CompiledRule, Messages, Tier, Unsettled, charge::Charges},
    unit::Unit,
};

/// What was charged is settled.
impl Lease {
    /// Whether a rule allows the request's handler to settle it.
    pub(crate) fn is_settled_by_handler(&self) -> bool {
        self.follows_up(|rule| rule.options.settle)
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
    fn replace_settled(&self, unit: &str, replace: impl FnOnce(u64) -> u64) -> u64 {
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
    pub(super) fn learn_costs(&self, settled: &[(String, u64)]) {
        for (unit, cost) in settled {
            let all = self.receipts().flat_map(|(receipt, _)| receipt.kept());
            if let Some(first) = all.into_iter().find(|kept| kept.charge().rule.options.unit_name() == unit) {
                let Charge { rule, key, .. } = first.charge();
                first.policy().carried.estimates.learn(rule.id, key, *cost);
            }
        }
    }

    /// Gives back what rules charged that refund what no handler has settled.
    pub(super) fn refund_unsettled(&self, settled: &[(String, u64)]) {
        let refunds = |rule: &CompiledRule| rule.options.unsettled == Unsettled::Refund;
        if self.follows_up(refunds) {
            let is_open = |rule: &CompiledRule| settled.iter().all(|(unit, _)| unit != rule.options.unit_name());
            self.settle_where(|rule| refunds(rule) && is_open(rule), Settlement::GiveBack(u64::MAX));
        }
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

    /// All charges that can be settled.
    fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.receipts().flat_map(|(receipt, _)| receipt.charges())
    }

    pub(super) fn settle_where(&self, which: impl Fn(&CompiledRule) -> bool, settlement: Settlement) {
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
}

/// More is charged.
impl Lease {
    /// Charges more for the rules that the handler settles in this unit, if all of them
    /// admit it now.
    pub(crate) async fn try_add(&self, unit: &str, units: u64) -> Result<(), RateLimited> {
        if units == 0 {
            return Ok(());
        }
        let (decision, next) = self.charge_more(
            Duration::ZERO,
            |rule| rule.options.settles_in(unit),
            |charge, charges| {
                let cost = units.saturating_mul(charge.rule.options.cost);
                charges.extend(rates_of(Charge { cost, max_wait: 0, ..charge }));
            },
        );
        let (decision, lease) = match next {
            Next::Done(lease) => (decision, lease),
            Next::Wait(admission) => {
                let (decision, admission) = Adding(Some(admission.drive(decision))).await;
                (decision, admission.take_lease())
            }
        };
        decision.into_result()?;
        if let Some(lease) = lease {
            self.replace_settled(unit, |charged| charged.saturating_add(units));
            self.changes().added.push(Added { lease: lease.into_part(), units });
        }
        Ok(())
    }

    /// It is a part of another lease, which settles it, and no permit of its own.
    fn into_part(mut self: Arc<Self>) -> Arc<Self> {
        self.release();
        Arc::get_mut(&mut self).into_iter().for_each(|own| own.is_sent = false);
        self
    }

    /// Whether messages in this direction are charged one by one. Those of a
    /// request that the fallback limiter admitted are not.
    pub(crate) fn counts(&self, messages: Messages) -> bool {
        let is_counted = || self.receipt().rules().any(|rule| rule.counts(messages));
        self.grant.decider == Decider::Backend && self.is_followed_up && is_counted()
    }

    /// Decides another message. It is charged as the request was, for the rules
    /// that count such messages, under the policy in force: a stream may last
    /// for days.
    pub(crate) fn charge_message(&self, messages: Messages, max_wait: Duration) -> (Decision, Next) {
        self.charge_more(max_wait, |rule| rule.counts(messages), |charge, charges| charges.push(charge.restarted()))
    }

    /// Decides what `add` makes of each charge of the request whose rule `counts`.
    fn charge_more(
        &self,
        max_wait: Duration,
        counts: impl Fn(&CompiledRule) -> bool,
        add: impl for<'c> Fn(Charge<'c>, &mut Charges<'c>),
    ) -> (Decision, Next) {
        let limiter = &self.limiter;
        let mut decision = Decision::unlimited();
        let next = limiter.inner.current.with(|in_force| {
            let (policy, kept) = self.charged_under(in_force.policy, &counts);
            let snapshot = PolicySnapshot { policy, ..in_force };
            let now = limiter.now();
            let (mut enforced, mut shadows) = (Charges::new(), Charges::new());
            for kept in kept.iter().filter(|kept| counts(kept.charge().rule)) {
                let mut charge = kept.charge();
                limiter.adapt(&mut charge, now);
                add(charge, if charge.rule.options.shadow { &mut shadows } else { &mut enforced });
            }
            if enforced.is_empty() && shadows.is_empty() {
                return Next::Done(None);
            }
            let options = AttemptOptions::new(Purpose::Send, max_wait);
            Attempt::new(limiter, snapshot, (&enforced, &shadows), now, options).start(&mut decision)
        });
        (decision, next)
    }

    /// The charges of the request that count, and their policy. It is the
    /// policy in force, or the request's if the former still `counts` such charges
    /// but no longer has the request's counters. So the stream stays limited.
    fn charged_under<'p>(
        &'p self,
        in_force: &'p Arc<CompiledPolicy>,
        counts: impl Fn(&CompiledRule) -> bool,
    ) -> (&'p Arc<CompiledPolicy>, Vec<OwnedCharge>) {
        let still = |kept: &&OwnedCharge| {
            let id = kept.charge().rule();
            in_force.rules.iter().any(|rule| *rule.id == id && counts(rule))
        };
        let all = || self.receipt().kept().chain(self.shadows.iter().flat_map(|shadow| shadow.receipt().kept()));
        let kept = || all().filter(still);
        let moved: Option<Vec<_>> = kept().map(|kept| kept.under(in_force)).collect();
        match (moved, kept().next()) {
            (Some(moved), _) => (in_force, moved),
            (None, Some(first)) => (first.policy(), kept().cloned().collect()),
            (None, None) => (in_force, Vec::new()),
        }
    }
}

/// Units that are being added. If the caller leaves, they are decided to the end, and then
/// given back, since no caller receives them.
struct Adding(Option<Driving>);

impl Future for Adding {
    type Output = (Decision, Box<Admission>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(driving) = &mut self.0 else { return Poll::Pending };
        let decided = ready!(driving.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(decided)
    }
}

impl Drop for Adding {
    fn drop(&mut self) {
        if let (Some(driving), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(driving);
        }
    }
}

/// The charge without its concurrency limits, which count requests, not costs.
fn rates_of(charge: Charge<'_>) -> impl Iterator<Item = Charge<'_>> {
    let rates = charge.tiers.split(Tier::is_in_flight).filter(|tiers| !tiers.is_empty());
    rates.map(move |tiers| Charge { tiers, ..charge })
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
