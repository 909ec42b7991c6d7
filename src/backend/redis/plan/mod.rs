//! The lowest floor of the Redis backend: charges and receipts in the terms of the scripts.
//! What one request is charged in a hash slot ([`ChargeSet`]), and changes to what was
//! charged, counter by counter ([`Change`]). It knows no bytes, no scripts and no connections.
//!
//! Invariant: the same charge gives the same key and definition on every instance, since
//! instances meet only in the store. The store decides a charge set all or nothing. A claim
//! never refunds more than is left of it: what is sent as a refund is subtracted from the
//! receipt first, whatever becomes of the call.

mod definition;
mod key;

use std::{any::Any, sync::Arc};

use tokio::time::Instant;

use self::definition::{exact, micros_up};
pub(crate) use self::{
    definition::{Definition, PlanContext, Span, is_leasable, micros},
    key::{RESERVED, RESERVED_IN_TAG, around_tag, percent_encode},
};
use crate::{
    algorithm::Claim,
    backend::{Charge, Outcome, OutcomeKind, Receipt, Request, Settlement, TierClaim, TierState},
    error::{BackendError, BackendErrorKind},
    fingerprint::Fingerprint,
    policy::Tier,
    quota::Algorithm,
    time::{Timestamp, nanos},
};

/// The most tiers that one request can be charged: the scripts name the tiers
/// that delay it as bits of one number.
const MAX_TIERS: usize = 50;

/// The charges of one request in one hash slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChargeSet {
    pub(crate) hash_tag: String,
    pub(crate) tiers: Vec<TierCharge>,
    /// Microseconds.
    pub(crate) max_wait: u64,
    /// Microseconds from now.
    pub(crate) not_before: u64,
    /// Microseconds since the Unix epoch, where the limiter's clock decides.
    pub(crate) now: Option<u64>,
    /// Unique within this process.
    pub(crate) request_id: u64,
    /// Only asks: charges nothing, and there is nothing to undo.
    pub(crate) is_peek: bool,
    /// The request is charged in other hash slots as well.
    pub(crate) is_partial: bool,
    /// Where units are leased for a pool.
    pub(crate) lease: Option<LeaseAsk>,
}

impl ChargeSet {
    /// The charge sets of one request, one for each hash slot.
    pub(crate) fn split(
        context: &PlanContext,
        request: &Request<'_>,
        request_id: u64,
    ) -> Result<Vec<Self>, BackendError> {
        let tiers: usize = request.charges.iter().map(|charge| charge.tiers().len()).sum();
        if tiers > MAX_TIERS {
            let reason = format!("a request is charged {tiers} tiers at once, more than {MAX_TIERS}");
            return Err(BackendError::new(BackendErrorKind::Unsupported, reason));
        }
        let (mut sets, mut index) = (Vec::<Self>::new(), 0);
        let max_wait = micros(nanos(request.max_wait));
        for charge in request.charges {
            context.record_wait(max_wait.min(micros(charge.max_wait)));
            let hash_tag = context.hash_tag(charge);
            let set = sets.iter().position(|set| set.hash_tag == hash_tag).unwrap_or_else(|| {
                sets.push(Self {
                    hash_tag,
                    tiers: Vec::with_capacity(1),
                    max_wait,
                    now: context.limiter_time(request.now),
                    request_id,
                    ..Self::default()
                });
                sets.len() - 1
            });
            for tier in charge.tiers() {
                sets[set].tiers.push(TierCharge {
                    key: context.counter_key(charge, tier),
                    counter: charge.key.tier(tier.salt),
                    definition: Definition::new(context, charge, tier, charge.cost),
                    index,
                });
                index += 1;
            }
        }
        Ok(sets)
    }

    /// The key that records what was leased. `None` where units do not end with a window:
    /// what is lost of those refills.
    pub(crate) fn record(&self, ask: &LeaseAsk, prefix: &str, instance: u64) -> Option<String> {
        let is_kept = self.tiers.iter().all(|tier| tier.definition.ends_with_window());
        let pool = ask.pool.to_u128();
        is_kept.then(|| format!("{prefix}:lease:{{{}}}:{instance}:{pool:032x}", self.hash_tag))
    }
}

/// One tier of a charge.
#[derive(Clone, Debug)]
pub(crate) struct TierCharge {
    pub(crate) key: String,
    /// The counter in this process, to report when a concurrency limit is full.
    pub(crate) counter: Fingerprint,
    pub(crate) definition: Definition,
    /// Its index among all tiers of the request.
    pub(crate) index: usize,
}

/// For how many nanoseconds units are leased that do not end with a window, at least, and
/// for how long an instance counts that has asked.
pub(crate) const LEASE: u64 = 1_000_000_000;

/// Units to lease for a pool of this process.
#[derive(Clone, Debug)]
pub(crate) struct LeaseAsk {
    pub(crate) pool: Fingerprint,
    /// Names the policy that the units are leased under.
    pub(crate) version: u64,
    /// Units that requests wait for.
    pub(crate) needed: u64,
    /// Units beyond those.
    pub(crate) ahead: u64,
    /// When the limiter asked, in nanoseconds on its clock, and on the monotonic
    /// one.
    pub(crate) asked: (u64, Instant),
    /// The interval of exchanges, in nanoseconds.
    pub(crate) interval: u64,
    /// Of all asks of this process, a later one has a higher number.
    pub(crate) number: u64,
    /// The last one of the pool whose reply was received. If the store has recorded a later
    /// one, it leases those units again.
    pub(crate) known: u64,
    /// Tells the pool when the ask is gone, with or without a reply.
    #[expect(dead_code, reason = "its drop tells the pool")]
    pub(crate) guard: Arc<dyn Any + Send + Sync>,
}

impl LeaseAsk {
    /// For how many microseconds an instance counts that has asked.
    pub(crate) fn lately(&self) -> u64 {
        micros(LEASE.max(self.interval.saturating_mul(2)))
    }

    /// For how many nanoseconds units are leased that no window bounds.
    pub(crate) fn lasts(&self) -> u64 {
        LEASE.max(self.interval.saturating_mul(4))
    }
}

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
        let now = context.limiter_time(now);
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
            key: context.counter_key(charge, tier),
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
    pub(crate) fn undo(set: &ChargeSet, outcome: &Outcome) -> Vec<Self> {
        let OutcomeKind::Admitted { wait } = outcome.answer else { return Vec::new() };
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
