//! Carries out a lane's batch of operations: groups them by the call that they fit in, sends
//! the calls, and says what becomes of each operation.
//!
//! Every batch takes one round trip, and one call for each hash slot.
//!
//! Invariant: changes are made before charges, so a caller that refunds and then charges
//! finds its refund. A pool has its units before a request learns that its exchange has ended.

use std::{cmp::Reverse, sync::Arc};

use futures_util::future::join_all;
use redis::Value;

use super::{
    executor::{ClaimMove, Completion, Operation, ScriptExecutor},
    plan::{Change, ChargeSet},
    transport::lane::{Executor, RunningCall},
    wire::{Call, CallHead, ChargeReply, DatasetCheck, KEYS_OF_CHANGE, MAX_KEYS, Replies, malformed_reply, max_keys},
};
use crate::{algorithm::Claim, error::BackendError};

/// The result of each request of a batch, once it is known.
type Results = [Option<Result<Completion, BackendError>>];

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
        let groups = groups(self, batch);
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

/// What the calls do that are sent at the same time.
fn groups(executor: &ScriptExecutor, batch: Vec<(Operation, usize)>) -> Vec<Group> {
    let (mut groups, mut first) = (Vec::new(), 0);
    for (operation, count) in batch {
        let (mut changes, moving) = match operation {
            Operation::Charge(set) => {
                let group = with_room(&mut groups, &set.hash_tag, set.now, max_keys(&set));
                group.sets.push(Charged { set, count, first });
                (Vec::new(), None)
            }
            Operation::ChangeReceipt { receipt, op, now } => executor.changes_of(receipt, (op, now)),
            Operation::Change(changes) => (changes, None),
        };
        executor.leases.update(&mut changes);
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
