//! Carries out a lane's batch of operations: groups them by the call that they fit in, sends
//! the calls, and says what becomes of each operation.
//!
//! Nearly every batch takes one round trip. A charge set takes a second one if only
//! `decide.lua` can decide it. A change is parked while another change of the same claim is
//! on its way, since the claim's position is unknown until that is done.
//!
//! Invariant: changes are sent before charges, so a caller that refunds and then charges
//! finds its refund.

use futures_util::future::join_all;
use redis::Value;

use super::{
    executor::{ClaimMove, Completion, Operation, ScriptExecutor},
    leased::replies::complete_leases,
    plan::{Change, ChargeSet, ClaimUpdate, Decider},
    transport::lane::{Executor, SendGuard},
    wire::{Call, CallHead, DatasetCheck, decode, encode, malformed_reply},
};
use crate::error::BackendError;

/// The result of each request of a batch, once it is known.
type Results = [Option<Result<Completion, BackendError>>];

/// An operation, the first of its results, and for how many requests it is.
type Item = (Operation, usize, usize);

impl Executor for ScriptExecutor {
    type Item = Operation;
    type Output = Completion;

    async fn execute(
        &self,
        batch: Vec<(Operation, usize)>,
        mut guard: SendGuard,
    ) -> Vec<Result<Completion, BackendError>> {
        let requests = batch.iter().map(|(_, count)| count).sum();
        let mut next = 0;
        let item = |(operation, count)| {
            next += count;
            (operation, next - count, count)
        };
        let items = batch.into_iter().map(item).collect();
        let ready = self.link.ready(self.index).await;
        // What it releases is not renewed any more, also if it is not sent.
        let round_trip = RoundTrip::new(self, items);
        if let Err(error) = ready {
            return (0..requests).map(|_| Err(error.clone())).collect();
        }
        let mut results: Vec<_> = (0..requests).map(|_| None).collect();
        let undecided = round_trip.run(self, &mut guard, &mut results).await;
        guard.release();
        if !undecided.is_empty() {
            RoundTrip::new(self, undecided).run(self, &mut guard, &mut results).await;
        }
        results.into_iter().map(|result| result.unwrap_or(Ok(Completion::Changed))).collect()
    }
}

/// Calls that are sent at the same time.
#[derive(Default)]
struct RoundTrip {
    groups: Vec<Group>,
    /// The receipts whose claims are changed.
    moves: Vec<ClaimMove>,
}

/// What one call does: changes, and then charge sets. All of it is in one hash slot, and of
/// one time.
#[derive(Default)]
struct Group {
    changes: Vec<Change>,
    /// For each change the index of the receipt that owns it, and that of its result.
    origins: Vec<(Option<usize>, usize)>,
    /// Each with how many requests it is for.
    sets: Vec<(ChargeSet, usize)>,
    /// The first result of each charge set.
    firsts: Vec<usize>,
    /// When leased units were asked for, on the limiter's clock: before the store decides.
    sent: Vec<u64>,
    keys: usize,
}

impl RoundTrip {
    fn new(executor: &ScriptExecutor, items: Vec<Item>) -> Self {
        let mut round_trip = Self::default();
        let mut refunds = Vec::new();
        for (operation, first, count) in items {
            match operation {
                Operation::Charge(mut set) => {
                    // Only `decide.lua` reads counters of a clock that was set back.
                    set.needs_decide |= executor.link.latest_time() > 0;
                    round_trip.add_charges(set, first, count);
                }
                Operation::ChangeReceipt { receipt, op, now } => {
                    let (mut changes, moving) = executor.changes_of(receipt, (op, now));
                    executor.leases.update(&mut changes);
                    let owner = moving.is_some().then_some(round_trip.moves.len());
                    round_trip.moves.extend(moving);
                    changes.into_iter().for_each(|change| round_trip.add_change(change, (owner, first)));
                }
                Operation::Change(mut changes) => {
                    executor.leases.update(&mut changes);
                    let own = changes.extract_if(.., |change| change.is_refund());
                    refunds.extend(own.map(|change| (change, first)));
                    changes.into_iter().for_each(|change| round_trip.add_change(change, (None, first)));
                }
            }
        }
        // The latest reservation first: one that others are built upon is not
        // refunded.
        refunds.sort_by(|(one, _), (other, _)| one.refund_order(other));
        refunds.into_iter().for_each(|(change, first)| round_trip.add_change(change, (None, first)));
        round_trip.join_leases();
        round_trip
    }

    fn add_charges(&mut self, set: ChargeSet, first_result: usize, count: usize) {
        let keys = encode::max_keys(&set);
        let group = self.group(keys, |group| group.takes_set(&set));
        group.firsts.push(first_result);
        group.sets.push((set, count));
    }

    fn add_change(&mut self, change: Change, origin: (Option<usize>, usize)) {
        let group = self.group(encode::KEYS_OF_CHANGE, |group| group.takes_change(&change));
        group.changes.push(change);
        group.origins.push(origin);
    }

    /// The last group with room for so many keys that takes something, or a new one.
    fn group(&mut self, keys: usize, takes: impl Fn(&Group) -> bool) -> &mut Group {
        let fits = |group: &Group| takes(group) && group.keys + keys <= encode::MAX_KEYS;
        let index = self.groups.iter().rposition(fits).unwrap_or_else(|| {
            self.groups.push(Group::default());
            self.groups.len() - 1
        });
        self.groups[index].keys += keys;
        &mut self.groups[index]
    }

    /// Moves changes to the call that leases in the same hash slot, if there is one: what is
    /// given back is leased again, and takes no call of its own. Changes are before all
    /// charges.
    fn join_leases(&mut self) {
        let is_lease = |group: &mut Group| group.decider() == Some(Decider::Lease);
        let leases: Vec<_> = self.groups.extract_if(.., is_lease).collect();
        for mut lease in leases {
            let fits = |group: &Group| {
                group.sets.is_empty()
                    && lease.keys + group.keys <= encode::MAX_KEYS
                    && group.changes.first().is_some_and(|change| lease.is_near(&change.charge.hash_tag, change.now))
            };
            if let Some(at) = self.groups.iter().position(fits) {
                let changes = self.groups.remove(at);
                (lease.changes, lease.origins) = (changes.changes, changes.origins);
                lease.keys += changes.keys;
            }
            self.groups.push(lease);
        }
        self.groups.sort_by_key(|group| group.changes.is_empty());
    }

    /// Sends the calls, and sets the results that are known then. Returns what only
    /// `decide.lua` can decide.
    async fn run(mut self, executor: &ScriptExecutor, guard: &mut SendGuard, results: &mut Results) -> Vec<Item> {
        let head = CallHead {
            instance: executor.instance,
            latest: executor.link.latest_time(),
            prefix: &executor.context.prefix,
        };
        let mut check = executor.link.dataset_check();
        let uses_limiter_time = executor.context.uses_limiter_time;
        let encode = |group: &mut Group| group.encode(head, &mut check, uses_limiter_time);
        let calls: Vec<_> = self.groups.iter_mut().map(encode).collect();
        let replies = join_all(calls.iter().map(|call| executor.link.call(executor.index, call)));
        let replies = guard.with(replies).await;
        let mut undecided = Vec::new();
        for ((group, call), reply) in self.groups.into_iter().zip(&calls).zip(replies) {
            let bytes = match &reply {
                Ok(Value::BulkString(bytes)) => Ok(bytes.as_slice()),
                Ok(_) => Err(malformed_reply()),
                Err(error) => Err(error.clone()),
            };
            undecided.extend(group.complete(executor, &self.moves, (bytes, call), results));
        }
        undecided
    }
}

impl Group {
    /// Which script it needs: `None` for changes alone.
    fn decider(&self) -> Option<Decider> {
        self.sets.first().map(|(set, _)| set.decider())
    }

    fn is_near(&self, hash_tag: &str, now: Option<u64>) -> bool {
        self.sets.first().is_some_and(|(first, _)| first.hash_tag == hash_tag && first.now == now)
    }

    fn takes_set(&self, set: &ChargeSet) -> bool {
        self.is_near(&set.hash_tag, set.now) && self.decider() == Some(set.decider())
    }

    fn takes_change(&self, change: &Change) -> bool {
        let first = self.changes.first();
        first.is_some_and(|first| first.charge.hash_tag == change.charge.hash_tag && first.now == change.now)
    }

    fn encode(&mut self, head: CallHead<'_>, check: &mut Option<DatasetCheck>, uses_limiter_time: bool) -> Call {
        if self.sets.is_empty() {
            return encode::changes(&self.changes, head);
        }
        self.sent =
            self.sets.iter().filter_map(|(set, _)| Some(set.lease.as_ref()?.sent_at(uses_limiter_time))).collect();
        let check = if self.sent.is_empty() { None } else { check.take() };
        encode::charges(&self.sets, &self.changes, head, check.as_ref())
    }

    /// Sets the results that the reply tells, and returns what is undecided.
    fn complete(
        self,
        executor: &ScriptExecutor,
        moves: &[ClaimMove],
        (reply, call): (Result<&[u8], BackendError>, &Call),
        results: &mut Results,
    ) -> Vec<Item> {
        let Self { changes, origins, sets, firsts, sent, .. } = self;
        let Some((first, _)) = sets.first() else {
            let updates = reply.and_then(|bytes| decode::changes(&changes, bytes));
            complete_changes(executor, (changes, &origins), moves, updates, results);
            return Vec::new();
        };
        if first.decider() == Decider::Lease {
            let replies = reply.and_then(|bytes| decode::leases(&sets, &changes, bytes, call));
            let (leased, updates) = match replies {
                Ok((leased, updates)) => (Ok(leased), Ok(updates)),
                Err(error) => (Err(error.clone()), Err(error)),
            };
            complete_changes(executor, (changes, &origins), moves, updates, results);
            complete_leases(executor, sets.iter().map(|(set, _)| set).zip(sent), leased);
            return Vec::new();
        }
        let decided = reply.and_then(|bytes| decode::charges(&sets, bytes, call));
        complete_charges(executor, firsts.into_iter().zip(sets), decided, results)
    }
}

/// Sets the result of each request, and returns what only `decide.lua` can decide.
fn complete_charges(
    executor: &ScriptExecutor,
    sets: impl Iterator<Item = (usize, (ChargeSet, usize))>,
    decided: Result<Vec<decode::Decided>, BackendError>,
    results: &mut Results,
) -> Vec<Item> {
    let (decided, failure) = match decided {
        Ok(decided) => (decided, malformed_reply()),
        Err(error) => (Vec::new(), error),
    };
    let (mut decided, mut undecided) = (decided.into_iter(), Vec::new());
    for (first, (set, count)) in sets {
        for result in &mut results[first..first + count] {
            *result = match decided.next().unwrap_or_else(|| Err(failure.clone())) {
                Ok(outcome) => outcome.map(|outcome| {
                    let guard = executor.guard(&set, &outcome);
                    Ok(Completion::Charged(outcome, guard))
                }),
                Err(error) => Some(Err(error)),
            };
        }
        if results[first].is_none() {
            undecided.push((Operation::Charge(ChargeSet { needs_decide: true, ..set }), first, count));
        }
    }
    undecided
}

/// Updates the claims of receipts by what became of changes, and sets the results of those
/// that failed.
fn complete_changes(
    executor: &ScriptExecutor,
    (changes, origins): (Vec<Change>, &[(Option<usize>, usize)]),
    moves: &[ClaimMove],
    updates: Result<Vec<ClaimUpdate>, BackendError>,
    results: &mut Results,
) {
    for (index, (change, (_, result))) in changes.iter().zip(origins).enumerate() {
        let error = match &updates {
            Ok(updates) if updates.get(index).is_some_and(ClaimUpdate::is_done) => continue,
            Ok(_) => decode::foreign_key(Some(&change.charge.key)),
            Err(error) => error.clone(),
        };
        results[*result] = Some(Err(error));
    }
    let mut start = 0;
    for own in origins.chunk_by(|(one, _), (other, _)| one == other) {
        let end = start + own.len();
        if let Some(ClaimMove { receipt, .. }) = own[0].0.and_then(|owner| moves.get(owner)) {
            match updates.as_ref().ok().and_then(|updates| updates.get(start..end)) {
                Some(updates) => ClaimUpdate::apply(updates, receipt),
                // Without a reply they are forfeited: where they are is unknown.
                None => ClaimUpdate::forfeit(receipt),
            }
        }
        start = end;
    }
    if let Ok(updates) = updates {
        let is_owned = origins.iter().map(|(owner, _)| owner.is_some());
        let changes = changes.into_iter().zip(updates).zip(is_owned);
        executor.retry_refunds(changes.map(|((change, update), is_owned)| (change, update, is_owned)));
    }
}
