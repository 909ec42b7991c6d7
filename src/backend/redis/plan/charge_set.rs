//! What one request is charged in one hash slot of a cluster, or everywhere
//! where there is one server. It says what to charge, not what becomes of it.
//!
//! Invariant: the store decides a charge set all or nothing.

use std::{fmt, sync::Arc};

use tokio::time::Instant;

use super::{
    definition::{Definition, DefinitionContext},
    fixed_point::micros,
    key::{counter_key, hash_tag},
};
use crate::{
    backend::{Charge, Request},
    error::{BackendError, BackendErrorKind},
    fingerprint::Fingerprint,
    time::nanos,
};

/// The most tiers that one request can be charged: the scripts name the tiers
/// that delay it as bits of one number.
const MAX_TIERS: usize = 50;

/// What all charge sets of a backend have in common.
#[derive(Debug)]
pub(crate) struct PlanContext {
    pub(crate) prefix: String,
    pub(crate) definitions: DefinitionContext,
    /// Whether the limiter's clock decides, instead of the server's.
    pub(crate) uses_limiter_time: bool,
    /// Whether one script call may name any keys: there is no cluster.
    pub(crate) is_single_slot: bool,
}

impl PlanContext {
    /// Chooses the hash slot of a charge; empty without a cluster.
    pub(crate) fn hash_tag(&self, charge: &Charge<'_>) -> String {
        if self.is_single_slot { String::new() } else { hash_tag(charge) }
    }
}

/// The charges of one request in one hash slot.
#[derive(Clone, Debug)]
pub(crate) struct ChargeSet {
    pub(crate) hash_tag: String,
    pub(crate) tiers: Vec<TierCharge>,
    /// The tiers that limit concurrency: their index, and the counter's key to
    /// report when it is full.
    pub(crate) in_flight: Vec<(usize, Fingerprint)>,
    /// Microseconds.
    pub(crate) max_wait: u64,
    /// Microseconds from now.
    pub(crate) not_before: u64,
    /// Microseconds since the Unix epoch, where the limiter's clock decides.
    pub(crate) now: Option<u64>,
    /// Unique within this process.
    pub(crate) request_id: u64,
    /// Set when `plain.lua` could not decide it.
    pub(crate) needs_decide: bool,
    /// Only asks: charges nothing, and there is nothing to undo.
    pub(crate) is_peek: bool,
    /// Where units are leased beside those that requests wait for.
    pub(crate) lease: Option<LeaseAsk>,
}

/// Which script decides a charge set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decider {
    Plain,
    General,
    Lease,
}

/// Units to lease ahead of demand, for a pool of this process.
#[derive(Clone, Debug)]
pub(crate) struct LeaseAsk {
    pub(crate) pool: Fingerprint,
    /// Names the policy that the units are leased under.
    pub(crate) version: u64,
    pub(crate) ahead: u64,
    /// Whether it may bring units for the pool. Else a request asks for itself only.
    pub(crate) is_refill: bool,
    /// For how many microseconds an instance counts that has asked.
    pub(crate) lately: u64,
    /// Whether no request waits for it.
    pub(crate) is_background: bool,
    /// When the limiter asked, in nanoseconds on its clock, and on the monotonic
    /// one.
    pub(crate) asked: (u64, Instant),
    /// The interval of refills, in nanoseconds.
    pub(crate) interval: u64,
    /// For how many nanoseconds units are leased that no window bounds.
    pub(crate) lasts: u64,
    /// Numbers the asks of a pool.
    pub(crate) number: u32,
    /// The last one that the pool has received.
    pub(crate) known: u32,
    /// The last one whose reply was lost. What the store has leased for those after `known`
    /// and up to this one is leased again.
    pub(crate) lost: u32,
    /// Tells the pool when the ask is gone, with or without a reply.
    #[expect(dead_code, reason = "its drop tells the pool")]
    pub(crate) guard: Arc<dyn AskGuard>,
}

impl LeaseAsk {
    /// When the store was asked at the earliest, on the limiter's clock.
    pub(crate) fn sent_at(&self, uses_limiter_time: bool) -> u64 {
        let waited = if uses_limiter_time { 0 } else { nanos(self.asked.1.elapsed()) };
        self.asked.0.saturating_add(waited)
    }
}

/// What is dropped with the last copy of an ask, or once the store is told of what is
/// given back.
pub(crate) trait AskGuard: fmt::Debug + Send + Sync {}

/// One tier of a charge.
#[derive(Clone, Debug)]
pub(crate) struct TierCharge {
    pub(crate) key: String,
    pub(crate) definition: Definition,
}

/// Which charge set a charge of the request is in, and how many tiers it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeIndex {
    pub(crate) set: usize,
    pub(crate) tiers: usize,
}

impl ChargeSet {
    /// The charge sets of one request, one for each hash slot, and the index of
    /// every charge in them.
    pub(crate) fn split(
        context: &PlanContext,
        request: &Request<'_>,
        request_id: u64,
    ) -> Result<(Vec<Self>, Vec<ChargeIndex>), BackendError> {
        let tiers: usize = request.charges.iter().map(|charge| charge.tiers().len()).sum();
        if tiers > MAX_TIERS {
            let reason = format!("a request is charged {tiers} tiers at once, more than {MAX_TIERS}");
            return Err(BackendError::new(BackendErrorKind::Unsupported, reason));
        }
        let (mut sets, mut indexes) = (Vec::<Self>::new(), Vec::new());
        let max_wait = micros(nanos(request.max_wait));
        for charge in request.charges {
            context.definitions.record_wait(max_wait.min(micros(charge.max_wait)));
            let hash_tag = context.hash_tag(charge);
            let index = sets.iter().position(|set| set.hash_tag == hash_tag).unwrap_or_else(|| {
                sets.push(Self {
                    hash_tag,
                    tiers: Vec::with_capacity(1),
                    in_flight: Vec::new(),
                    max_wait,
                    not_before: 0,
                    now: context.uses_limiter_time.then(|| micros(request.now.as_nanos())),
                    request_id,
                    needs_decide: false,
                    is_peek: false,
                    lease: None,
                });
                sets.len() - 1
            });
            indexes.push(ChargeIndex { set: index, tiers: charge.tiers().len() });
            sets[index].add(context, charge);
        }
        Ok((sets, indexes))
    }

    fn add(&mut self, context: &PlanContext, charge: &Charge<'_>) {
        for tier in charge.tiers() {
            if tier.is_in_flight() {
                self.in_flight.push((self.tiers.len(), charge.key.tier(tier.salt)));
            }
            self.tiers.push(TierCharge {
                key: counter_key(&context.prefix, charge, tier),
                definition: Definition::new(&context.definitions, charge, tier, charge.cost),
            });
        }
    }

    /// The key that records what was leased, and the numbers of the present ask, of the
    /// last one that was received, and of the last one that was lost. `None` where units do
    /// not end with a window: what is lost of those refills.
    pub(crate) fn record(&self, prefix: &str, instance: u64) -> Option<(String, [u32; 3])> {
        let ask = self.lease.as_ref()?;
        let is_kept = self.tiers.iter().all(|tier| tier.definition.ends_with_window());
        let key = || format!("{prefix}:lease:{{{}}}:{instance}:{:032x}", self.hash_tag, ask.pool.to_u128());
        is_kept.then(|| (key(), [ask.number, ask.known, ask.lost]))
    }

    pub(crate) fn decider(&self) -> Decider {
        match (&self.lease, &self.tiers[..]) {
            (Some(_), _) => Decider::Lease,
            (None, [only]) if self.is_plain(&only.definition) => Decider::Plain,
            _ => Decider::General,
        }
    }

    /// Whether `plain.lua` decides its one tier: it cannot be delayed, and is a bucket, a
    /// fixed or an anchored window.
    fn is_plain(&self, definition: &Definition) -> bool {
        let waits = definition.longest_wait.min(self.max_wait) > 0 || self.not_before > 0;
        definition.kind.is_plain() && !waits && !self.needs_decide && !self.is_peek
    }
}
