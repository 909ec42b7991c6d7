//! More charges for a request that is under way: units that its handler adds, and the
//! messages of a stream. Each is charged atomically, or not at all. A settlement, in
//! contrast, charges units that are spent already.
//!
//! Invariant: units that were added are given back before those of the
//! request itself, the latest first, and each at most once.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{
    admission::{Admission, Next},
    attempt::{Attempt, AttemptOptions, Charges, Purpose},
    current::PolicySnapshot,
    drive::Driving,
    lease::{Added, Lease},
    state::Decider,
};
use crate::{
    backend::{Charge, OwnedCharge},
    decision::{Decision, RateLimited},
    policy::{CompiledPolicy, CompiledRule, Messages, Tier},
};

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
