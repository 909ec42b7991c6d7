//! Carries out a lane's batch of operations: groups them by the call that they fit in, sends
//! the calls, and says what becomes of each operation.
//!
//! Every batch takes one round trip, and one call for each hash slot. A change is parked
//! while another change of the same claim is on its way, since the claim's position is unknown
//! until that is done.
//!
//! Invariant: changes are made before charges, so a caller that refunds and then charges
//! finds its refund. A pool has its units before a request learns that its exchange has ended.

use futures_util::future::join_all;
use redis::Value;

use super::{
    executor::{ClaimMove, Completion, Operation, ScriptExecutor},
    plan::{Change, ChargeSet, ClaimUpdate},
    transport::lane::{Executor, SendGuard},
    wire::{
        Call, CallHead, DatasetCheck,
        decode::{self, ChargeReply, Replies},
        encode, malformed_reply,
    },
};
use crate::error::BackendError;

/// The result of each request of a batch, once it is known.
type Results = [Option<Result<Completion, BackendError>>];

impl Executor for ScriptExecutor {
    type Item = Operation;
    type Output = Completion;

    async fn execute(
        &self,
        batch: Vec<(Operation, usize)>,
        mut guard: SendGuard,
    ) -> Vec<Result<Completion, BackendError>> {
        let requests = batch.iter().map(|(_, count)| count).sum();
        let ready = self.link.ready(self.index).await;
        // What it releases is not renewed any more, also if it is not sent.
        let round_trip = RoundTrip::new(self, batch);
        if let Err(error) = ready {
            return (0..requests).map(|_| Err(error.clone())).collect();
        }
        let mut results: Vec<_> = (0..requests).map(|_| None).collect();
        round_trip.run(self, &mut guard, &mut results).await;
        results.into_iter().map(|result| result.unwrap_or(Ok(Completion::Changed(0)))).collect()
    }
}

/// Calls that are sent at the same time.
#[derive(Default)]
struct RoundTrip {
    groups: Vec<Group>,
    /// The receipts whose claims are changed.
    moves: Vec<ClaimMove>,
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

/// A change, the index of the receipt that owns it, and that of its result.
struct Changed {
    change: Change,
    owner: Option<usize>,
    result: usize,
}

/// A charge set, for how many requests it is, and the first of their results.
struct Charged {
    set: ChargeSet,
    count: usize,
    first: usize,
    /// When leased units were asked for, on the limiter's clock: before the store decides.
    sent: u64,
}

impl RoundTrip {
    fn new(executor: &ScriptExecutor, batch: Vec<(Operation, usize)>) -> Self {
        let mut round_trip = Self::default();
        let (mut refunds, mut sets, mut first) = (Vec::new(), Vec::new(), 0);
        for (operation, count) in batch {
            match operation {
                Operation::Charge(set) => sets.push(Charged { set, count, first, sent: 0 }),
                Operation::ChangeReceipt { receipt, op, now } => {
                    let (mut changes, moving) = executor.changes_of(receipt, (op, now));
                    executor.leases.update(&mut changes);
                    let owner = moving.is_some().then_some(round_trip.moves.len());
                    round_trip.moves.extend(moving);
                    changes.into_iter().for_each(|change| round_trip.add_change(change, owner, first));
                }
                Operation::Change(mut changes) => {
                    executor.leases.update(&mut changes);
                    let own = changes.extract_if(.., |change| change.is_refund());
                    refunds.extend(own.map(|change| (change, first)));
                    changes.into_iter().for_each(|change| round_trip.add_change(change, None, first));
                }
            }
            first += count;
        }
        // The latest reservation first: one that others are built upon is not
        // refunded.
        refunds.sort_by(|(one, _), (other, _)| one.refund_order(other));
        refunds.into_iter().for_each(|(change, first)| round_trip.add_change(change, None, first));
        sets.sort_by_key(|charged| charged.set.lease.is_none());
        for charged in sets {
            let keys = encode::max_keys(&charged.set);
            round_trip.group(&charged.set.hash_tag, charged.set.now, keys).sets.push(charged);
        }
        round_trip
    }

    fn add_change(&mut self, change: Change, owner: Option<usize>, result: usize) {
        let group = self.group(&change.charge.hash_tag, change.now, encode::KEYS_OF_CHANGE);
        group.changes.push(Changed { change, owner, result });
    }

    /// The last group of a hash slot and time, if it has room for so many keys, or a new one.
    fn group(&mut self, hash_tag: &str, now: Option<u64>, keys: usize) -> &mut Group {
        let last = self.groups.iter().rposition(|group| group.hash_tag == hash_tag && group.now == now);
        let index = last.filter(|last| self.groups[*last].keys + keys <= encode::MAX_KEYS).unwrap_or_else(|| {
            let (hash_tag, changes, sets) = (hash_tag.to_owned(), Vec::new(), Vec::new());
            self.groups.push(Group { hash_tag, now, changes, sets, keys: 0 });
            self.groups.len() - 1
        });
        self.groups[index].keys += keys;
        &mut self.groups[index]
    }

    /// Sends the calls, and sets the results.
    async fn run(mut self, executor: &ScriptExecutor, guard: &mut SendGuard, results: &mut Results) {
        let head = CallHead {
            now: None,
            instance: executor.instance,
            latest: executor.link.latest_time(),
            prefix: &executor.context.prefix,
        };
        let (check, uses_limiter_time) = (executor.link.dataset_check(), executor.context.uses_limiter_time);
        let mut calls = Vec::with_capacity(self.groups.len());
        for group in &mut self.groups {
            let check = check.as_ref().filter(|_| calls.is_empty());
            calls.push(group.encode(head, check, uses_limiter_time));
        }
        let replies = join_all(calls.iter().map(|call| executor.link.call(executor.index, call)));
        let replies = guard.with(replies).await;
        for ((group, call), reply) in self.groups.into_iter().zip(&calls).zip(replies) {
            let replies = reply.and_then(|reply| group.read(&reply, call));
            group.complete(executor, &self.moves, replies, results);
        }
    }
}

impl Group {
    fn encode(&mut self, head: CallHead<'_>, check: Option<&DatasetCheck>, uses_limiter_time: bool) -> Call {
        for charged in &mut self.sets {
            if let Some(ask) = &charged.set.lease {
                charged.sent = ask.sent_at(uses_limiter_time);
            }
        }
        let sets = self.sets.iter().map(|charged| (&charged.set, charged.count));
        encode::call(self.changes(), sets, CallHead { now: self.now, ..head }, check)
    }

    fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().map(|changed| &changed.change)
    }

    fn read(&self, reply: &Value, call: &Call) -> Result<Replies, BackendError> {
        let Value::BulkString(bytes) = reply else { return Err(malformed_reply()) };
        decode::replies(self.changes(), self.sets.iter().map(|charged| &charged.set), bytes, call)
    }

    /// Sets the results that the replies tell.
    fn complete(
        self,
        executor: &ScriptExecutor,
        moves: &[ClaimMove],
        replies: Result<Replies, BackendError>,
        results: &mut Results,
    ) {
        let (updates, sets) = match replies {
            Ok(Replies { updates, sets }) => (Ok(updates), sets),
            Err(error) => (Err(error.clone()), self.sets.iter().map(|_| Err(error.clone())).collect()),
        };
        complete_changes(&self.changes, moves, updates, results);
        for (charged, reply) in self.sets.into_iter().zip(sets) {
            charged.complete(executor, reply, results);
        }
    }
}

impl Charged {
    fn complete(self, executor: &ScriptExecutor, reply: Result<ChargeReply, BackendError>, results: &mut Results) {
        let Self { set, count, first, sent } = self;
        if set.lease.is_some() {
            if let Ok(reply) = reply {
                executor.add_leases(&set, reply.admitted);
                executor.pools.add(&set, &reply, sent, executor.index);
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

/// Updates the claims of receipts by what became of changes, sets the results of those
/// that failed, and counts the counters that were forgotten.
fn complete_changes(
    changes: &[Changed],
    moves: &[ClaimMove],
    updates: Result<Vec<ClaimUpdate>, BackendError>,
    results: &mut Results,
) {
    for (index, Changed { change, result, .. }) in changes.iter().enumerate() {
        let error = match &updates {
            Ok(updates) if updates[index].is_done() => {
                if let Ok(Completion::Changed(count)) = results[*result].get_or_insert(Ok(Completion::Changed(0))) {
                    *count += change.forgotten(&updates[index]);
                }
                continue;
            }
            Ok(_) => decode::foreign_key(Some(&change.charge.key)),
            Err(error) => error.clone(),
        };
        results[*result] = Some(Err(error));
    }
    let mut start = 0;
    for own in changes.chunk_by(|one, other| one.owner == other.owner) {
        let end = start + own.len();
        if let Some(owner) = own[0].owner {
            match &updates {
                Ok(updates) => ClaimUpdate::apply(&updates[start..end], &moves[owner].receipt),
                // Without a reply they are forfeited: where they are is unknown.
                Err(_) => ClaimUpdate::forfeit(&moves[owner].receipt),
            }
        }
        start = end;
    }
}
