//! Changes to what was charged, counter by counter: refunds, debts, and the
//! release and renewal of units in flight. It does not send them.
//!
//! Invariant: a claim never refunds more than is left of it. What is sent as a
//! refund is subtracted from the receipt first, whatever becomes of the call.

use super::{
    charge_set::{ChargeSet, TierCharge},
    definition::{Definition, PlanContext},
    fixed_point::{Span, exact, micros, micros_up},
    key::counter_key,
};
use crate::{
    algorithm::Claim,
    backend::{Charge, Outcome, Receipt, Settlement, TierClaim, TierState},
    policy::Tier,
    quota::Algorithm,
    time::Timestamp,
};

/// What to do with a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiptOp {
    Refund,
    Release,
    Settle(Settlement),
}

/// What to do with one counter. The numbers are those of `decide.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeOp {
    Refund = 1,
    AddDebt = 2,
    Release = 3,
    Renew = 4,
    Forget = 5,
}

/// What one request was charged on one counter. On a counter of units in flight
/// it is a lease.
#[derive(Clone, Debug)]
pub(crate) struct CounterCharge {
    pub(crate) hash_tag: String,
    pub(crate) key: String,
    pub(crate) request_id: u64,
    pub(crate) definition: Definition,
}

impl CounterCharge {
    fn of(set: &ChargeSet, tier: &TierCharge) -> Self {
        let (hash_tag, key) = (set.hash_tag.clone(), tier.key.clone());
        Self { hash_tag, key, request_id: set.request_id, definition: tier.definition }
    }

    /// The units in flight that the charge set holds once it is admitted.
    pub(crate) fn leases(set: &ChargeSet) -> impl Iterator<Item = Self> {
        set.tiers.iter().filter(|tier| tier.definition.holds_units()).map(|tier| Self::of(set, tier))
    }

    /// A change to all its units.
    pub(crate) fn change(self, op: ChangeOp, now: Option<u64>) -> Change {
        Change::new(self, op, now, &Claim { units: 0, at: 0, until: 0, detail: 0, before: 0 })
    }
}

/// A change to one counter.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) charge: CounterCharge,
    pub(crate) op: ChangeOp,
    pub(crate) now: Option<u64>,
    units: u64,
    /// What is left of the claim that it changes.
    claim: Claim,
    /// Its index among the tiers of the receipt.
    tier: usize,
}

impl Change {
    /// A change to all that was charged, of which the claim is left.
    fn new(charge: CounterCharge, op: ChangeOp, now: Option<u64>, claim: &Claim) -> Self {
        Self { op, now, units: charge.definition.cost, claim: *claim, tier: 0, charge }
    }

    /// The changes that the operation makes of a receipt.
    pub(crate) fn of_receipt(context: &PlanContext, receipt: &Receipt, op: ReceiptOp, now: Timestamp) -> Vec<Self> {
        let now = context.uses_limiter_time.then(|| micros(now.as_nanos()));
        let mut changes = Vec::new();
        let mut index = 0;
        receipt.for_each(|charge, tier, owned| {
            let change = Self::of_claim(context, charge, tier, owned, op);
            changes.extend(change.map(|change| Self { now, tier: index, ..change }));
            index += 1;
        });
        changes
    }

    fn of_claim(
        context: &PlanContext,
        charge: &Charge<'_>,
        tier: &Tier,
        owned: &mut TierClaim,
        op: ReceiptOp,
    ) -> Option<Self> {
        let claim = &mut owned.claim;
        let is_in_flight = tier.is_in_flight();
        let of_rule = |units: u64| units.saturating_mul(charge.rule.options.cost);
        let (op, units) = match op {
            ReceiptOp::Refund | ReceiptOp::Release if is_in_flight => (ChangeOp::Release, claim.units),
            ReceiptOp::Release => return None,
            ReceiptOp::Settle(_) if is_in_flight => return None,
            ReceiptOp::Refund => (ChangeOp::Refund, claim.units),
            ReceiptOp::Settle(Settlement::GiveBack(units)) => (ChangeOp::Refund, of_rule(units).min(claim.units)),
            ReceiptOp::Settle(Settlement::Add(units)) => (ChangeOp::AddDebt, exact(of_rule(units))),
        };
        if units == 0 {
            return None;
        }
        let cost = if is_in_flight { units } else { charge.cost };
        let charge = CounterCharge {
            hash_tag: context.hash_tag(charge),
            key: counter_key(&context.prefix, charge, tier),
            request_id: claim.detail,
            definition: Definition::new(context, charge, tier, cost),
        };
        let change = Self { units: exact(units), ..Self::new(charge, op, None, claim) };
        if op != ChangeOp::AddDebt {
            claim.units -= units;
        }
        Some(change)
    }

    /// Forgets the counters of a charge set, except for units in flight.
    pub(crate) fn forget(set: &ChargeSet) -> Vec<Self> {
        let used = set.tiers.iter().filter(|tier| tier.definition.algorithm != Algorithm::Concurrency);
        used.map(|tier| CounterCharge::of(set, tier).change(ChangeOp::Forget, set.now)).collect()
    }

    /// Refunds and releases all that a charge set was charged.
    pub(crate) fn undo(set: &ChargeSet, outcome: &Outcome, wait: u64) -> Vec<Self> {
        // By the limiter's clock, the outcome has no time of its own.
        let decided = outcome.decided_at.or(set.now.map(|now| now * 1_000)).unwrap_or(0);
        let undo = |(tier, state): (&TierCharge, &TierState)| {
            let (cost, charge) = (tier.definition.cost, CounterCharge::of(set, tier));
            let (until, detail, before) = match tier.definition.algorithm {
                Algorithm::Concurrency => return charge.change(ChangeOp::Release, set.now),
                Algorithm::TokenBucket | Algorithm::LeakyBucket => (decided + state.reset, state.mark, 0),
                Algorithm::SlidingLog => (0, state.mark, 0),
                _ => (decided + state.reset, cost, state.mark),
            };
            Self::new(
                charge,
                ChangeOp::Refund,
                set.now,
                &Claim { units: cost, at: decided + wait, until, detail, before },
            )
        };
        set.tiers.iter().zip(&outcome.tiers).filter(|(tier, _)| tier.definition.cost > 0).map(undo).collect()
    }

    /// How many counters it has forgotten, after which the claim is this.
    pub(crate) fn forgotten(&self, claim: &Claim) -> u64 {
        if self.op == ChangeOp::Forget { claim.units } else { 0 }
    }

    /// Where the claim ends that it refunds.
    pub(crate) fn refunded_until(&self) -> Option<u64> {
        (self.op == ChangeOp::Refund).then_some(self.claim.until)
    }

    /// Where the claim is after the change, as `decide.lua` replied.
    pub(crate) fn claim_after(&self, [left, at, until, mark]: [u64; 4]) -> Claim {
        let algorithm = self.charge.definition.algorithm;
        let before = if self.op == ChangeOp::AddDebt { 0 } else { exact(self.claim.before) };
        let at = if algorithm == Algorithm::SlidingWindow { at } else { at.saturating_mul(1_000) };
        let until = if algorithm == Algorithm::SlidingLog { until } else { until.saturating_mul(1_000) };
        Claim { units: left, at, until, detail: mark, before }
    }

    /// Updates the claim of the receipt, or forfeits what is left of it: without a reply,
    /// where it is is unknown.
    pub(crate) fn update(&self, receipt: &Receipt, claim: Option<&Claim>) {
        let mut index = 0;
        receipt.for_each(|_, tier, owned| {
            match claim {
                _ if index != self.tier => {}
                Some(claim) if self.op == ChangeOp::AddDebt => owned.claim = *claim,
                Some(claim) => owned.claim = Claim { units: owned.claim.units, ..*claim },
                None if !tier.is_in_flight() => owned.claim.units = 0,
                None => {}
            }
            index += 1;
        });
    }

    /// The numbers that `decide.lua` reads after operation, counter, definition
    /// and sorted set.
    pub(crate) fn numbers(&self) -> [u64; 9] {
        let (algorithm, claim) = (self.charge.definition.algorithm, &self.claim);
        let Span { micros: time, parts } = self.charge.definition.time_for(self.units);
        let left = exact(claim.units);
        let alone = match algorithm {
            Algorithm::SlidingWindow => exact(claim.before),
            _ => self.charge.definition.time_for(left).micros,
        };
        // Of a sliding window `at` is a count: it weighs on the window after its own. So is
        // `until` of a log: the units that moved older entries.
        let at = if algorithm == Algorithm::SlidingWindow { exact(claim.at) } else { micros(claim.at) };
        let until = exact(if algorithm == Algorithm::SlidingLog { claim.until } else { micros_up(claim.until) });
        [self.units, time, parts, left, alone, at, until, exact(claim.detail), self.charge.request_id]
    }
}
