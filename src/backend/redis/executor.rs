//! What the lanes of the Redis backend carry, and how a lane's batch is carried out: operations
//! are grouped by the call that they fit in, the calls are sent, and the replies complete each
//! operation. Also what remains of an operation: the guard that undoes an admission, units in
//! flight, and changes that wait for others.
//!
//! Every batch takes one round trip, and one call for each hash slot.
//!
//! Invariant: changes are made before charges, so a caller that refunds and then charges
//! finds its refund. A pool has its units before a request learns that its exchange has ended.
//! An admission that no caller receives is undone.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use foldhash::fast::RandomState;
use futures_util::future::join_all;
use redis::Value;

use super::{
    leased::pools::Pools,
    plan::{Change, ChangeOp, ChargeSet, CounterCharge, PlanContext, ReceiptOp},
    transport::{
        Link,
        lane::{Executor, Lane, RunningCall},
    },
    wire::{Call, CallHead, ChargeReply, DatasetCheck, KEYS_OF_CHANGE, MAX_KEYS, Replies, malformed_reply, max_keys},
};
use crate::{
    algorithm::Claim,
    backend::{ClaimUpdateGuard, Outcome, OutcomeKind, Receipt},
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
    pub(super) parked: Arc<ParkedChanges>,
    /// The lane itself, for operations that follow.
    pub(super) lane: Weak<Lane<Self>>,
}

impl Executor for ScriptExecutor {
    type Item = Operation;
    type Output = Completion;

    async fn execute(
        &self,
        batch: Vec<(Operation, usize)>,
        running: &mut RunningCall<Self>,
    ) -> Vec<Result<Completion, BackendError>> {
        let requests = batch.iter().map(|(_, count)| count).sum();
        let ready = self.link.ready(self.index).await;
        // What it releases is not renewed any more, also if it is not sent.
        let groups = self.groups(batch);
        if let Err(error) = ready {
            return (0..requests).map(|_| Err(error.clone())).collect();
        }
        // The first call checks the dataset if that is due.
        let mut check = if groups.is_empty() { None } else { self.link.dataset_check() };
        let calls: Vec<_> = groups.iter().map(|group| group.encode(self, check.take().as_ref())).collect();
        let replies = join_all(calls.iter().map(|call| self.link.call(self.index, call)));
        let replies = running.send(replies).await;
        let mut results: Vec<_> = (0..requests).map(|_| None).collect();
        for ((group, call), reply) in groups.into_iter().zip(&calls).zip(replies) {
            let replies = reply.and_then(|reply| group.read(&reply, call));
            group.complete(self, replies, &mut results);
        }
        results.into_iter().map(|result| result.unwrap_or(Ok(Completion::Changed(0)))).collect()
    }
}

impl ScriptExecutor {
    /// What the calls do that are sent at the same time.
    fn groups(&self, batch: Vec<(Operation, usize)>) -> Vec<Group> {
        let (mut groups, mut first) = (Vec::new(), 0);
        for (operation, count) in batch {
            let (mut changes, moving) = match operation {
                Operation::Charge(set) => {
                    let group = with_room(&mut groups, &set.hash_tag, set.now, max_keys(&set));
                    group.sets.push(Charged { set, count, first });
                    (Vec::new(), None)
                }
                Operation::ChangeReceipt { receipt, op, now } => self.changes_of(receipt, op, now),
                Operation::Change(changes) => (changes, None),
            };
            self.leases.update(&mut changes);
            let moving = moving.map(Arc::new);
            for change in changes {
                let group = with_room(&mut groups, &change.charge.hash_tag, change.now, KEYS_OF_CHANGE);
                group.changes.push(Changed { change, moving: moving.clone(), result: first });
            }
            first += count;
        }
        for Group { changes, sets, .. } in &mut groups {
            // The latest reservation first: one that others are built upon is not
            // refunded.
            changes.sort_by_key(|Changed { change, moving, .. }| {
                Reverse(change.refunded_until().filter(|_| moving.is_none()).unwrap_or(u64::MAX))
            });
            sets.sort_by_key(|charged| charged.set.lease.is_none());
        }
        groups
    }

    /// The changes that an operation makes of a receipt, and what ends when they have been
    /// made. No changes if there is nothing to change, or if it is parked.
    fn changes_of(&self, receipt: Receipt, op: ReceiptOp, now: Timestamp) -> (Vec<Change>, Option<ClaimMove>) {
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
    fn guard(&self, set: &ChargeSet, outcome: &Outcome) -> UndoGuard {
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

/// The result of each request of a batch, once it is known.
type Results = [Option<Result<Completion, BackendError>>];

/// What one call does: changes, then leases, then charges. All of it is in one hash slot, and
/// of one time.
struct Group {
    hash_tag: String,
    now: Option<u64>,
    changes: Vec<Changed>,
    sets: Vec<Charged>,
    keys: usize,
}

/// A change, the receipt whose claim it moves, and the index of its result.
struct Changed {
    change: Change,
    moving: Option<Arc<ClaimMove>>,
    result: usize,
}

/// A charge set, for how many requests it is, and the first of their results.
struct Charged {
    set: ChargeSet,
    count: usize,
    first: usize,
}

/// The last group of a hash slot and time, if it has room for so many keys, or a new one.
fn with_room<'g>(groups: &'g mut Vec<Group>, hash_tag: &str, now: Option<u64>, keys: usize) -> &'g mut Group {
    let last = groups.iter().rposition(|group| group.hash_tag == hash_tag && group.now == now);
    let index = last.filter(|last| groups[*last].keys + keys <= MAX_KEYS).unwrap_or_else(|| {
        let (hash_tag, changes, sets) = (hash_tag.to_owned(), Vec::new(), Vec::new());
        groups.push(Group { hash_tag, now, changes, sets, keys: 0 });
        groups.len() - 1
    });
    groups[index].keys += keys;
    &mut groups[index]
}

impl Group {
    fn encode(&self, executor: &ScriptExecutor, check: Option<&DatasetCheck>) -> Call {
        let head = CallHead {
            now: self.now,
            instance: executor.instance,
            latest: executor.link.dataset.latest_time(),
            prefix: &executor.context.prefix,
        };
        let sets = self.sets.iter().map(|charged| (&charged.set, charged.count));
        Call::decide(self.changes(), sets, head, check)
    }

    fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().map(|changed| &changed.change)
    }

    fn read(&self, reply: &Value, call: &Call) -> Result<Replies, BackendError> {
        let Value::BulkString(bytes) = reply else { return Err(malformed_reply()) };
        Replies::read(self.changes(), self.sets.iter().map(|charged| &charged.set), bytes, call)
    }

    /// Sets the results that the replies tell.
    fn complete(self, executor: &ScriptExecutor, replies: Result<Replies, BackendError>, results: &mut Results) {
        let Replies { claims, sets } = replies.unwrap_or_else(|error| Replies {
            claims: vec![Err(error.clone()); self.changes.len()],
            sets: vec![Err(error); self.sets.len()],
        });
        for (changed, claim) in self.changes.into_iter().zip(claims) {
            changed.complete(claim, results);
        }
        for (charged, reply) in self.sets.into_iter().zip(sets) {
            charged.complete(executor, reply, results);
        }
    }
}

impl Changed {
    /// Updates the receipt's claim, and counts a counter that was forgotten.
    fn complete(self, claim: Result<Claim, BackendError>, results: &mut Results) {
        if let Some(moving) = &self.moving {
            self.change.update(&moving.receipt, claim.as_ref().ok());
        }
        let result = &mut results[self.result];
        match claim {
            Err(error) => *result = Some(Err(error)),
            Ok(claim) => {
                if let Ok(Completion::Changed(count)) = result.get_or_insert(Ok(Completion::Changed(0))) {
                    *count += self.change.forgotten(&claim);
                }
            }
        }
    }
}

impl Charged {
    fn complete(self, executor: &ScriptExecutor, reply: Result<ChargeReply, BackendError>, results: &mut Results) {
        let Self { set, count, first } = self;
        if set.lease.is_some() {
            if let Ok(reply) = reply {
                executor.pools.add(&set, &reply, executor.index);
            }
            return;
        }
        for (index, result) in results[first..first + count].iter_mut().enumerate() {
            *result = Some(reply.as_ref().map_err(BackendError::clone).map(|reply| {
                let outcome = reply.outcome(&set, index as u64, count);
                let guard = executor.guard(&set, &outcome);
                Completion::Charged(outcome, guard)
            }));
        }
    }
}

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
struct ClaimMove {
    receipt: Receipt,
    moving: Option<ClaimUpdateGuard>,
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
    fn add(&self, leases: impl Iterator<Item = CounterCharge>) {
        lock(&self.0).extend(leases.map(|lease| (id(&lease), lease)));
    }

    /// Removes what the changes release, and leaves out renewals of what was
    /// released.
    fn update(&self, changes: &mut Vec<Change>) {
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
