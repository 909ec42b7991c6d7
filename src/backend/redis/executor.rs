//! The lanes of the Redis backend, what they carry, and what remains of it: operations,
//! their completions, the guard that undoes an admission, units in flight, and changes that
//! wait for others. `batch` turns operations into calls.
//!
//! Invariant: an admission that no caller receives is undone.

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{Arc, Mutex, Weak},
};

use foldhash::fast::RandomState;

use super::{
    leased::pools::Pools,
    plan::{Change, ChangeOp, ChargeSet, CounterCharge, PlanContext, ReceiptOp},
    transport::{
        Link,
        cluster::{LANES, lane_of},
        lane::{Lane, LaneLimits},
    },
    wire::malformed_reply,
};
use crate::{
    backend::{Charge, Moving, Outcome, OutcomeKind, Receipt},
    error::BackendError,
    sync::lock,
    time::Timestamp,
};

/// What is submitted to a lane.
pub(super) enum Operation {
    Charge(ChargeSet),
    ChangeReceipt {
        receipt: Receipt,
        op: ReceiptOp,
        now: Timestamp,
    },
    /// Changes without a receipt, in one hash slot: of leases, of charge sets that are
    /// undone, of counters that are forgotten.
    Change(Vec<Change>),
}

/// The result of an operation.
pub(super) enum Completion {
    Charged(Outcome, UndoGuard),
    /// With how many counters were forgotten.
    Changed(u64),
}

/// An outcome, and the guard over what was charged.
pub(super) type Guarded = Result<(Outcome, UndoGuard), BackendError>;

/// Undoes an admission when it is dropped: its caller may be gone by now. Units
/// in flight are released, and a future reservation is refunded. A request that
/// was admitted at once stays charged, as if it had been served, unless other hash slots
/// may reject it.
#[derive(Default)]
pub(super) struct UndoGuard {
    changes: Vec<Change>,
    lane: Weak<Lane<ScriptExecutor>>,
}

impl UndoGuard {
    /// The caller has received the admission.
    pub(super) fn disarm(mut self) {
        self.changes.clear();
    }
}

impl Drop for UndoGuard {
    fn drop(&mut self) {
        if !self.changes.is_empty()
            && let Some(lane) = self.lane.upgrade()
        {
            lane.push(Operation::Change(std::mem::take(&mut self.changes)));
        }
    }
}

/// Changes of receipts whose claims another change is moving: where a claim is, only the
/// reply to that tells. They are queued again once it has ended, and hold no call until
/// then.
type ParkedChanges = Mutex<Vec<(Weak<Lane<ScriptExecutor>>, Operation)>>;

/// A change that is moving the claims of a receipt. Dropping it ends that, with or without
/// a reply, and queues what was parked.
pub(super) struct ClaimMove {
    pub(super) receipt: Receipt,
    moving: Option<Moving>,
    parked: Arc<ParkedChanges>,
}

impl Drop for ClaimMove {
    fn drop(&mut self) {
        self.moving = None;
        let parked = std::mem::take(&mut *lock(&self.parked));
        for (lane, operation) in parked {
            if let Some(lane) = lane.upgrade() {
                lane.push(operation);
            }
        }
    }
}

/// Carries out the operations of one lane.
pub(super) struct ScriptExecutor {
    /// The index of the lane.
    pub(super) index: usize,
    pub(super) context: Arc<PlanContext>,
    pub(super) link: Arc<Link>,
    /// Identifies this process.
    pub(super) instance: u64,
    pub(super) leases: Leases,
    pub(super) pools: Arc<Pools>,
    parked: Arc<ParkedChanges>,
    /// The lane itself, for operations that follow.
    pub(super) lane: Weak<Lane<Self>>,
}

impl ScriptExecutor {
    /// The changes that an operation makes of a receipt, and what ends when they have been
    /// made. No changes if there is nothing to change, or if it is parked.
    pub(super) fn changes_of(
        &self,
        receipt: Receipt,
        (op, now): (ReceiptOp, Timestamp),
    ) -> (Vec<Change>, Option<ClaimMove>) {
        // Of a release no reply says where the claims are afterwards: it leaves them.
        if op == ReceiptOp::Release {
            return (Change::of_receipt(&self.context, &receipt, op, now), None);
        }
        // Locked, so that a change that ends meanwhile finds what is parked.
        let mut parked = lock(&self.parked);
        let Some(moving) = receipt.start_moving() else {
            parked.push((self.lane.clone(), Operation::ChangeReceipt { receipt, op, now }));
            return (Vec::new(), None);
        };
        drop(parked);
        let changes = Change::of_receipt(&self.context, &receipt, op, now);
        (changes, Some(ClaimMove { receipt, moving: Some(moving), parked: Arc::clone(&self.parked) }))
    }

    /// The guard over what an admission holds: units in flight, and its
    /// reservation.
    pub(super) fn guard(&self, set: &ChargeSet, outcome: &Outcome) -> UndoGuard {
        let OutcomeKind::Admitted { wait } = outcome.answer else { return UndoGuard::default() };
        if set.is_peek {
            return UndoGuard::default();
        }
        if set.tiers.iter().any(|tier| tier.definition.holds_units()) {
            self.leases.add(CounterCharge::leases(set));
        }
        let changes = match wait {
            0 if !set.is_partial => {
                CounterCharge::leases(set).map(|lease| lease.change(ChangeOp::Release, set.now)).collect()
            }
            _ => Change::undo(set, outcome),
        };
        UndoGuard { changes, lane: self.lane.clone() }
    }
}

/// The units in flight that this process holds in the store by one lane, so that it can
/// renew them. A lease bounds for how long a process that died holds its units.
/// Renewing restores a lease that the store has lost. If others were admitted in
/// between, more than the limit may be in flight for a while.
///
/// What is released is not renewed afterwards, in whatever order release and renewal were
/// queued.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<LeaseId, CounterCharge, RandomState>>);

/// The request, and the counter's key.
type LeaseId = (u64, String);

impl Leases {
    pub(super) fn add(&self, leases: impl Iterator<Item = CounterCharge>) {
        lock(&self.0).extend(leases.map(|lease| (id(&lease), lease)));
    }

    /// Removes what the changes release, and leaves out renewals of what was
    /// released.
    pub(super) fn update(&self, changes: &mut Vec<Change>) {
        changes.retain(|change| match change.op {
            ChangeOp::Renew => lock(&self.0).contains_key(&id(&change.charge)),
            ChangeOp::Release => {
                lock(&self.0).remove(&id(&change.charge));
                true
            }
            ChangeOp::Refund | ChangeOp::AddDebt | ChangeOp::Forget => true,
        });
    }

    /// A renewal of every lease.
    pub(super) fn renewals(&self) -> Vec<Change> {
        lock(&self.0).values().map(|lease| lease.clone().change(ChangeOp::Renew, None)).collect()
    }
}

fn id(lease: &CounterCharge) -> LeaseId {
    (lease.request_id, lease.key.clone())
}

/// The lanes of the backend. With one connection there is one lane, with several one for
/// each; a cluster has 256. All operations on one counter go through one lane, which keeps
/// their order.
pub(super) struct Lanes {
    pub(super) context: Arc<PlanContext>,
    pub(super) all: Box<[Arc<Lane<ScriptExecutor>>]>,
}

impl Lanes {
    pub(super) fn new(context: PlanContext, link: &Arc<Link>, pools: &Arc<Pools>) -> Arc<Self> {
        let limits = LaneLimits::new(link.settings.max_batch);
        let (context, parked) = (Arc::new(context), Arc::default());
        // Names this process in the store.
        let instance = std::hash::RandomState::new().hash_one(0) >> 11;
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
                    lane: lane.clone(),
                };
                Lane::new(executor, limits, link.deadline.clone())
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
    pub(super) async fn charge(&self, set: ChargeSet, now: u64) -> Guarded {
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
