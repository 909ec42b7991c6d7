//! The lanes of the backend: which of them carries an operation, and what a request is charged
//! by several of them.
//!
//! No script reaches into two hash slots of a cluster. So a request that is charged in several
//! is charged in each with a call of its own, all at once, and what one slot has admitted is
//! undone if another rejects. A request that may wait needs one time that suits all slots. A
//! slot that would admit it earlier is undone and charged again for not before the latest time.
//!
//! Invariant: unless all slots agree, nothing stays charged.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, Weak, atomic::AtomicU64},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{
    executor::{Completion, Leases, Operation, ScriptExecutor, UndoGuard},
    leased::pools::Pools,
    plan::{ChargeSet, PlanContext},
    transport::{
        Link,
        cluster::{LANES, lane_of},
        lane::{Lane, LaneLimits},
    },
    wire::malformed_reply,
};
use crate::{
    backend::{Charge, Outcome, OutcomeKind, TierState, TierStates},
    error::BackendError,
    time::nanos,
};

/// Where the limiter's clock decides, which may pass any lease in one step: ten
/// years.
const LEASE_BY_LIMITER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How many leases are renewed in one call.
const MAX_RENEWALS: usize = 500;

/// The lanes of the backend. With one connection there is one lane, with several one for
/// each; a cluster has 256. All operations on one counter go through one lane, which keeps
/// their order.
pub(super) struct Lanes {
    pub(super) context: Arc<PlanContext>,
    pub(super) all: Box<[Arc<Lane<ScriptExecutor>>]>,
}

/// An outcome, and the guard over what was charged.
type Guarded = Result<(Outcome, UndoGuard), BackendError>;

impl Lanes {
    /// Lanes that carry operations over this link, and renew what they lease.
    pub(super) fn new(link: &Arc<Link>, pools: &Arc<Pools>) -> Arc<Self> {
        let settings = &link.settings;
        let lease = if settings.uses_limiter_time { LEASE_BY_LIMITER } else { settings.lease };
        let context = Arc::new(PlanContext {
            prefix: settings.prefix.clone(),
            lease,
            longest_wait: AtomicU64::new(0),
            uses_limiter_time: settings.uses_limiter_time,
            is_single_slot: !settings.is_cluster(),
        });
        let (limits, parked) = (LaneLimits::new(settings.max_batch), Arc::default());
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
                    parked: Arc::clone(&parked),
                    lane: Weak::clone(lane),
                };
                Lane::new(executor, limits, link.deadline.clone())
            })
        };
        let count = if settings.is_cluster() { LANES } else { settings.connections };
        let lanes = Arc::new(Self { all: (0..count).map(lane).collect(), context });
        link.runtime.keep(renew_leases(Arc::downgrade(&lanes), lease / 3));
        lanes
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

    /// Charges all sets of one request. `now` is the limiter's, in nanoseconds.
    pub(super) async fn charge_all(&self, sets: Vec<ChargeSet>, now: u64) -> Result<Outcome, BackendError> {
        let start = Instant::now();
        // A clock that is stepped by hand stands still meanwhile.
        let elapsed = || if self.context.uses_limiter_time { 0 } else { nanos(start.elapsed()) };
        let mut slots: Vec<_> = sets.into_iter().map(|set| SlotCharge { set, outcome: None }).collect();
        for _ in 0..MAX_ROUNDS {
            slots = join_all(slots.into_iter().map(|slot| slot.charged(self, now, elapsed))).await;
            let at = elapsed();
            let Some(admitted) = slots.iter().map(|slot| slot.admitted_at(at)).collect::<Option<Vec<_>>>() else {
                break;
            };
            let needed = admitted.iter().map(|own| own.earliest).fold(at, u64::max);
            let wait = admitted.iter().map(|own| own.latest).fold(at, u64::max) - at;
            let mut is_agreed = true;
            for (slot, own) in slots.iter_mut().zip(admitted) {
                if needed > own.latest.saturating_add(TOLERANCE) {
                    slot.outcome = None;
                    slot.set.not_before = wait.div_ceil(1_000);
                    is_agreed = false;
                }
            }
            if is_agreed {
                let outcome = admitted_outcome(&slots, wait);
                slots.into_iter().filter_map(|slot| slot.outcome?.0.ok()).for_each(|(_, guard)| guard.disarm());
                return Ok(outcome);
            }
        }
        rejected_outcome(slots)
    }

    /// Charges a set in its hash slot. `now` is the limiter's, in nanoseconds.
    async fn charge(&self, set: ChargeSet, now: u64) -> Guarded {
        let completion = self.of(&[], &set.hash_tag).submit(Operation::Charge(set), None).await;
        self.outcome(completion, now)
    }

    /// The outcome at `now`, and the guard over what it has charged.
    pub(super) fn outcome(&self, completion: Result<Completion, BackendError>, now: u64) -> Guarded {
        let Completion::Charged(outcome, guard) = completion? else { return Err(malformed_reply()) };
        Ok((if self.context.uses_limiter_time { since(outcome, now) } else { outcome }, guard))
    }
}

/// An outcome that was decided at a time of the limiter, as it is at `now`. That time may be
/// `now` rounded down to a whole microsecond, as it was for the script.
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

/// Renews the leases of this process for as long as the lanes exist.
async fn renew_leases(lanes: Weak<Lanes>, every: Duration) {
    let mut ticks = interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(lanes) = lanes.upgrade() else { return };
        for lane in &lanes.all {
            let mut renewals = lane.executor.leases.renewals();
            while !renewals.is_empty() && lane.executor.link.rejection().is_none() {
                let rest = renewals.split_off(renewals.len().min(MAX_RENEWALS));
                lane.push(Operation::Change(std::mem::replace(&mut renewals, rest)));
            }
        }
    }
}

/// Times of the slots that differ by at most this, in nanoseconds, and by what
/// their replies took, are the same: a timer is no more exact.
const TOLERANCE: u64 = 2_000_000;

/// How often slots are charged again for a later time.
const MAX_ROUNDS: usize = 4;

/// A charge set and its outcome, which is undone when it is dropped.
struct SlotCharge {
    set: ChargeSet,
    outcome: Option<(Guarded, Between)>,
}

/// The times, in nanoseconds since the start, between which something was or will be.
#[derive(Clone, Copy)]
struct Between {
    earliest: u64,
    latest: u64,
}

impl SlotCharge {
    fn decided(&self) -> Option<(&Outcome, Between)> {
        self.outcome.as_ref().and_then(|(result, at)| Some((&result.as_ref().ok()?.0, *at)))
    }

    /// When it admits the request. A time that has passed by `now` is as good as that.
    fn admitted_at(&self, now: u64) -> Option<Between> {
        let (outcome, at) = self.decided()?;
        let OutcomeKind::Admitted { wait } = outcome.answer else { return None };
        let after = |time: u64| time.saturating_add(wait).max(now);
        Some(Between { earliest: after(at.earliest), latest: after(at.latest) })
    }

    async fn charged(mut self, lanes: &Lanes, now: u64, elapsed: impl Fn() -> u64) -> Self {
        if self.outcome.is_none() {
            let earliest = elapsed();
            let outcome = lanes.charge(self.set.clone(), now).await;
            self.outcome = Some((outcome, Between { earliest, latest: elapsed() }));
        }
        self
    }
}

/// The status of all tiers, in the order of the request.
fn tiers(slots: &[SlotCharge], status: impl Fn(&Outcome, &TierState) -> TierState) -> TierStates {
    let mut all = Vec::new();
    for slot in slots {
        if let Some((outcome, _)) = slot.decided() {
            let own = slot.set.tiers.iter().zip(&outcome.tiers);
            all.extend(own.map(|(tier, state)| (tier.index, status(outcome, state))));
        }
    }
    all.sort_unstable_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, state)| state).collect()
}

fn admitted_outcome(slots: &[SlotCharge], wait: u64) -> Outcome {
    let decided_at = slots.first().and_then(|slot| slot.decided()?.0.decided_at);
    let in_common_time = |outcome: &Outcome, tier: &TierState| {
        let Some(first) = decided_at else { return *tier };
        let own = if let OutcomeKind::Admitted { wait } = outcome.answer { wait } else { 0 };
        let decided = outcome.decided_at.unwrap_or(first);
        // The slot was charged for a time of its own, by its own clock.
        let ahead = decided.saturating_add(own).cast_signed().wrapping_sub(first.saturating_add(wait).cast_signed());
        TierState { ahead, reset: tier.reset.saturating_add(wait).saturating_sub(own), ..*tier }
    };
    Outcome { answer: OutcomeKind::Admitted { wait }, tiers: tiers(slots, in_common_time), decided_at, later: 0 }
}

/// The first error, or the rejection of all slots together.
fn rejected_outcome(mut slots: Vec<SlotCharge>) -> Result<Outcome, BackendError> {
    let is_failed = |slot: &&mut SlotCharge| matches!(slot.outcome, Some((Err(_), _)));
    if let Some((Err(error), _)) = slots.iter_mut().find(is_failed).and_then(|slot| slot.outcome.take()) {
        return Err(error);
    }
    let (mut is_never, mut is_rejected, mut busy, mut after) = (false, false, None, 0);
    for (outcome, _) in slots.iter().filter_map(SlotCharge::decided) {
        match outcome.answer {
            OutcomeKind::Rejected { retry_after } => {
                is_rejected = true;
                is_never |= retry_after.is_none();
                after = after.max(retry_after.unwrap_or(0));
            }
            OutcomeKind::Busy { key } => busy = busy.or(Some(key)),
            OutcomeKind::Admitted { wait } => after = after.max(wait),
        }
    }
    let answer = match busy {
        _ if is_never => OutcomeKind::Rejected { retry_after: None },
        // All other slots would admit it.
        Some(key) if !is_rejected => OutcomeKind::Busy { key },
        _ => OutcomeKind::Rejected { retry_after: Some(after) },
    };
    let decided_at = slots.first().and_then(|slot| slot.decided()?.0.decided_at);
    Ok(Outcome { answer, tiers: tiers(&slots, |_, tier| *tier), decided_at, later: 0 })
}
