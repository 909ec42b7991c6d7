//! Requests that are charged in several hash slots of a cluster. No script
//! reaches into two of them, so each is charged with its own call, all at once.
//! What one slot has admitted is undone if another rejects.
//!
//! A request that may wait needs one time that suits all slots. A slot that
//! would admit it earlier is undone and charged again for not before the
//! latest time.
//!
//! Invariant: unless all slots agree, nothing stays charged.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    executor::{Guarded, Lanes},
    plan::ChargeSet,
};
use crate::{
    backend::{Outcome, OutcomeKind, TierState, TierStates},
    error::BackendError,
    time::nanos,
};

/// Times of the slots that differ by at most this, in nanoseconds, and by what
/// their replies took, are the same: a timer is no more exact.
const TOLERANCE: u64 = 2_000_000;

/// How often slots are charged again for a later time.
const MAX_ROUNDS: usize = 4;

/// A charge set and its outcome, which is undone when it is dropped.
struct SlotCharge {
    lanes: Arc<Lanes>,
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

    async fn charged(mut self, now: u64, elapsed: impl Fn() -> u64) -> Self {
        if self.outcome.is_none() {
            let earliest = elapsed();
            let outcome = self.lanes.charge(self.set.clone(), now).await;
            self.outcome = Some((outcome, Between { earliest, latest: elapsed() }));
        }
        self
    }
}

/// Charges all sets of one request. `now` is the limiter's, in nanoseconds.
pub(super) async fn charge_all(lanes: Arc<Lanes>, sets: Vec<ChargeSet>, now: u64) -> Result<Outcome, BackendError> {
    let start = Instant::now();
    // A clock that is stepped by hand stands still meanwhile.
    let elapsed = || if lanes.context.uses_limiter_time { 0 } else { nanos(start.elapsed()) };
    let slot = |set| SlotCharge { lanes: Arc::clone(&lanes), set, outcome: None };
    let mut slots: Vec<_> = sets.into_iter().map(slot).collect();
    for _ in 0..MAX_ROUNDS {
        slots = join_all(slots.into_iter().map(|slot| slot.charged(now, elapsed))).await;
        let at = elapsed();
        let Some(admitted) = slots.iter().map(|slot| slot.admitted_at(at)).collect::<Option<Vec<_>>>() else { break };
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
