//! Tests of the engine without a limiter: outcomes, receipts, refunds, debts.

mod at_the_cap;
mod debts;
mod flood;
mod in_flight;
#[cfg(tower_ratelimit_loom)]
mod interleavings;
mod log_memory;
mod partial_refunds;
mod set_back;
mod settle;
mod shares;
mod smooth;
mod warm;

use std::{sync::Arc, time::Duration};

use super::{FullQuota, MAX_KEYS, MachineSource, engine::Engine};
use crate::{
    backend::{Backend, Charge, Outcome, OutcomeKind, Receipt, Request, Settlement, contract::InProcessEngine},
    descriptor::Descriptor,
    policy::{CompiledPolicy, Policy, Resolved, Rule},
    quota::{Algorithm, Quota},
    time::{Timestamp, nanos},
};

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_700_000_000 * SECOND;

/// An engine with a policy.
struct Bench<M: MachineSource = FullQuota> {
    engine: Engine<M>,
    policy: Arc<CompiledPolicy>,
}

impl Bench {
    fn new(policy: impl Into<Policy>) -> Self {
        Self::with(Engine::full(MAX_KEYS), policy)
    }
}

impl<M: MachineSource> Bench<M> {
    fn with(engine: Engine<M>, policy: impl Into<Policy>) -> Self {
        Self { engine, policy: Arc::new(CompiledPolicy::new(policy.into()).unwrap()) }
    }

    fn reload(&mut self, policy: impl Into<Policy>) {
        self.policy = Arc::new(CompiledPolicy::new(policy.into()).unwrap());
    }

    /// Runs `run` with what a request is charged.
    fn with_charges<R>(&self, request: &Descriptor<'_>, run: impl FnOnce(&[Charge<'_>]) -> R) -> R {
        self.policy.resolve(request, |Resolved { enforced, .. }| run(enforced))
    }

    /// Decides a request. The receipt is there if it was admitted.
    fn ask(&self, request: &Descriptor<'_>, now: u64, max_wait: u64) -> (Outcome, Option<Receipt>) {
        let now = Timestamp::from_nanos(now);
        self.with_charges(request, |charges| {
            let outcome = self.engine.charge(&Request::new(charges, now, Duration::from_nanos(max_wait)));
            let admitted = matches!(outcome.answer, OutcomeKind::Admitted { .. });
            let receipt = admitted.then(|| Receipt::new(&self.policy, charges, now, &outcome));
            (outcome, receipt)
        })
    }

    /// Whether a request whose counters exist is charged at once.
    fn charge_existing(&self, request: &Descriptor<'_>, now: u64) -> bool {
        self.with_charges(request, |charges| {
            InProcessEngine::charge_now(&self.engine, charges, Timestamp::from_nanos(now), &mut Default::default())
        })
    }

    /// The receipt of a request, if it is admitted at once.
    fn take(&self, tenant: &str, cost: u64, now: u64) -> Option<Receipt> {
        self.ask(&Descriptor::new("/").tenant(tenant).cost(cost), now, 0).1
    }

    fn answer(&self, tenant: &str, cost: u64, now: u64) -> OutcomeKind {
        self.ask(&Descriptor::new("/").tenant(tenant).cost(cost), now, 0).0.answer
    }

    /// The units that remain in the first tier of a tenant's key.
    fn remaining(&self, tenant: &str, now: u64) -> u64 {
        self.ask(&Descriptor::new("/").tenant(tenant).cost(0), now, 0).0.tiers[0].remaining
    }

    fn release(&self, receipt: &Receipt, now: u64) {
        self.engine.release(receipt, Timestamp::from_nanos(now));
    }

    fn refund(&self, receipt: &Receipt, now: u64) {
        self.engine.refund(receipt, Timestamp::from_nanos(now));
    }

    fn add_debt(&self, receipt: &Receipt, units: u64, now: u64) {
        self.engine.settle(receipt, Settlement::Add(units), Timestamp::from_nanos(now));
    }

    fn refund_units(&self, receipt: &Receipt, units: u64, now: u64) {
        self.engine.settle(receipt, Settlement::GiveBack(units), Timestamp::from_nanos(now));
    }

    /// The earliest time at which a cost is admitted; `None` if it never is.
    fn earliest(&self, tenant: &str, cost: u64, now: u64) -> Option<u64> {
        let (outcome, receipt) = self.ask(&Descriptor::new("/").tenant(tenant).cost(cost), now, 0);
        if let Some(receipt) = receipt {
            self.refund(&receipt, now);
        }
        match outcome.answer {
            OutcomeKind::Admitted { wait } => Some(now + wait),
            OutcomeKind::Rejected { retry_after } => Some(now + retry_after?),
            OutcomeKind::Busy { .. } => None,
        }
    }
}

/// One rule of one tier, under which every request may wait.
fn tier(quota: Quota, settle: bool) -> Policy {
    Policy::new().rule(Rule::new("work").max_wait(Duration::MAX).settle(settle).tier(quota))
}

/// A generator of pseudo-random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0 >> 11) * u128::from(bound)) >> 53) as u64
    }
}

#[test]
fn what_the_last_tier_rejects_is_charged_to_none() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let wide = Quota::per_day(9).algorithm(algorithm);
        let rules = [Rule::new("wide").tier(wide), Rule::new("narrow").tier(wide).tier(Quota::per_hour(2))];
        let bench = Bench::new(rules.into_iter().fold(Policy::new(), Policy::rule));
        assert!(bench.take("acme", 1, NOW).is_some());
        assert!(bench.take("acme", 1, NOW).is_some());
        assert!(bench.take("acme", 1, NOW).is_none());
        let tiers = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0).0.tiers;
        assert_eq!(tiers.iter().map(|tier| tier.remaining).collect::<Vec<_>>(), [7, 7, 0], "{algorithm:?}");
    }
}

#[test]
fn tiers_with_counters_are_charged_together_or_not_at_all() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let wide = Quota::per_day(9).algorithm(algorithm);
        let narrow = Rule::new("narrow").tier(wide).tier(Quota::per_hour(2).algorithm(algorithm));
        for policy in
            [Policy::new().rule(narrow.clone()), Policy::new().rule(Rule::new("wide").tier(wide)).rule(narrow)]
        {
            let (bench, request) = (Bench::new(policy), Descriptor::new("/").tenant("acme"));
            assert!(!bench.charge_existing(&request, NOW));
            assert!(bench.take("acme", 1, NOW).is_some());
            assert!(bench.charge_existing(&request, NOW));
            assert!(!bench.charge_existing(&request, NOW));
            let tiers = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0).0.tiers;
            let remaining: Vec<_> = tiers.iter().map(|tier| tier.remaining).collect();
            assert!(remaining.ends_with(&[7, 0]), "{algorithm:?}: {remaining:?}");
            assert!(remaining.iter().all(|left| [7, 0].contains(left)), "{algorithm:?}: {remaining:?}");
        }
    }
}

#[test]
fn a_cost_of_0_is_admitted_at_once_where_nothing_is_counted() {
    let wide = Quota::per_day(9);
    let others =
        [Rule::new("one").unit("tokens").tier(wide), Rule::new("two").unit("bytes").tier(wide).tier(wide.burst(3))];
    for other in others {
        let bench = Bench::new(Policy::new().rule(Rule::new("calls").tier(wide)).rule(other));
        let request = Descriptor::new("/").tenant("acme");
        assert!(!bench.charge_existing(&request, NOW));
        assert!(bench.take("acme", 1, NOW).is_some());
        assert!(bench.charge_existing(&request, NOW));
    }
    let bench = Bench::new(Policy::new().rule(Rule::new("calls").tier(wide)));
    assert!(bench.charge_existing(&Descriptor::new("/").tenant("acme").cost(0), NOW));
}
