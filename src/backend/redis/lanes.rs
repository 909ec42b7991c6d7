//! The lanes of the backend, and which of them carries what. With one
//! connection there is one lane, with several one for each; a cluster has 256.
//!
//! Invariant: all operations on one counter go through one lane, which keeps
//! their order.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex},
};

use super::{
    executor::{Completion, Operation, ScriptExecutor},
    leased::pools::Pools,
    leases::Leases,
    plan::{ChargeSet, PlanContext},
    transport::{
        cluster::{LANES, lane_of},
        lane::{Lane, LaneLimits},
        link::Link,
    },
    wire::malformed_reply,
};
use crate::{
    backend::{Charge, Outcome, OutcomeKind},
    error::BackendError,
};

pub(super) struct Lanes {
    pub(super) context: Arc<PlanContext>,
    pub(super) all: Box<[Arc<Lane<ScriptExecutor>>]>,
}

impl Lanes {
    pub(super) fn new(context: PlanContext, link: &Arc<Link>, pools: &Arc<Pools>) -> Arc<Self> {
        let limits = LaneLimits::new(link.settings.max_batch);
        let (context, parked) = (Arc::new(context), Arc::default());
        // Names this process in the store.
        let instance = RandomState::new().hash_one(0) >> 11;
        let lane = |index| {
            Arc::new_cyclic(|lane| {
                let executor = ScriptExecutor {
                    index,
                    context: Arc::clone(&context),
                    link: Arc::clone(link),
                    instance,
                    leases: Leases::default(),
                    pools: Arc::clone(pools),
                    blocked_refunds: Mutex::default(),
                    parked: Arc::clone(&parked),
                    lane: lane.clone(),
                };
                Lane::new(executor, limits, link.deadline.clone(), Arc::clone(&link.runtime))
            })
        };
        let count = if link.settings.is_cluster() { LANES } else { link.settings.connections.max(1) };
        let all = (0..count).map(lane).collect();
        Arc::new(Self { context, all })
    }

    /// The lane of a request's charges in one hash slot.
    pub(super) fn of(&self, charges: &[Charge<'_>], hash_tag: &str) -> &Arc<Lane<ScriptExecutor>> {
        &self.all[self.index_of(charges, hash_tag)]
    }

    /// Its index. Only in a cluster the hash slot decides.
    pub(super) fn index_of(&self, charges: &[Charge<'_>], hash_tag: &str) -> usize {
        if !self.context.is_single_slot {
            return lane_of(hash_tag);
        }
        let hash = charges.first().map_or(0, Charge::fingerprint);
        usize::try_from(hash % self.all.len() as u128).unwrap_or(0)
    }

    /// Charges a set in its hash slot. `now` is the limiter's, in nanoseconds.
    pub(super) async fn charge(&self, set: ChargeSet, now: u64) -> Result<Outcome, BackendError> {
        let completion = self.of(&[], &set.hash_tag).submit(Operation::Charge(set), None).await;
        self.outcome(completion, now)
    }

    /// The outcome for a caller that receives it now.
    pub(super) fn outcome(
        &self,
        completion: Result<Completion, BackendError>,
        now: u64,
    ) -> Result<Outcome, BackendError> {
        let Completion::Charged(outcome, guard) = completion? else { return Err(malformed_reply()) };
        guard.disarm();
        Ok(if self.context.uses_limiter_time { since(outcome, now) } else { outcome })
    }
}

/// The limiter's time was rounded down to a whole microsecond for the script;
/// subtracts what was cut off from all times of the outcome.
pub(super) fn since(mut outcome: Outcome, now: u64) -> Outcome {
    let passed = now.saturating_sub(outcome.decided_at.take().unwrap_or(now));
    match &mut outcome.answer {
        OutcomeKind::Admitted { wait } | OutcomeKind::Rejected { retry_after: Some(wait) } => {
            *wait = wait.saturating_sub(passed)
        }
        OutcomeKind::Rejected { retry_after: None } | OutcomeKind::Busy { .. } => {}
    }
    outcome.tiers.iter_mut().for_each(|tier| tier.reset = tier.reset.saturating_sub(passed));
    outcome
}
