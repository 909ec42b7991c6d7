//! What one request is charged in one hash slot of a cluster, or everywhere
//! where there is one server. It says what to charge, not what becomes of it.
//!
//! Invariant: the store decides a charge set all or nothing.

use std::{any::Any, sync::Arc};

use tokio::time::Instant;

use super::{
    definition::{Definition, PlanContext, ends_with_window},
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

impl PlanContext {
    /// Chooses the hash slot of a charge; empty without a cluster.
    pub(crate) fn hash_tag(&self, charge: &Charge<'_>) -> String {
        if self.is_single_slot { String::new() } else { hash_tag(charge) }
    }
}

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
                    now: context.uses_limiter_time.then(|| micros(request.now.as_nanos())),
                    request_id,
                    ..Self::default()
                });
                sets.len() - 1
            });
            for tier in charge.tiers() {
                sets[set].tiers.push(TierCharge {
                    key: counter_key(&context.prefix, charge, tier),
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
        let is_kept = self.tiers.iter().all(|tier| ends_with_window(tier.definition.algorithm));
        let pool = ask.pool.to_u128();
        is_kept.then(|| format!("{prefix}:lease:{{{}}}:{instance}:{pool:032x}", self.hash_tag))
    }
}
