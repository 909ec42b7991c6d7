//! Carries out a lane's batch in round trips: the calls that one takes, and
//! what becomes of their replies.
//!
//! Nearly every batch takes one round trip. A charge set takes a second one if
//! only `decide.lua` can decide it. A change is parked while another change of the same
//! claim is on its way, since the claim's position is unknown until that is done.
//!
//! Invariant: within a round trip changes are sent before charges, so a caller
//! that refunds and then charges finds its refund.

use futures_util::future::join_all;

use super::{
    executor::{ClaimMove, Completion, Operation, ScriptExecutor},
    groups::{ChangeGroup, ChargeGroup, Groups, Item},
    leased::replies::complete_leases,
    plan::Change,
    transport::lane::executor::{Executor, SendGuard},
    wire::{Call, CallHead, decode, encode, malformed_reply},
};
use crate::error::BackendError;

impl Executor for ScriptExecutor {
    type Item = Operation;
    type Output = Completion;

    async fn execute(
        &self,
        batch: Vec<(Operation, usize)>,
        mut guard: SendGuard,
    ) -> Vec<Result<Completion, BackendError>> {
        let requests = batch.iter().map(|(_, count)| count).sum();
        let unsent = Unsent { executor: self, batch };
        let ready = self.link.ready(self.index).await;
        if let Err(error) = ready {
            return (0..requests).map(|_| Err(error.clone())).collect();
        }
        let mut batch = unsent.send();
        if self.link.latest_time() > 0 {
            // Only `decide.lua` reads counters of a clock that was set back.
            for (operation, _) in &mut batch {
                if let Operation::Charge(set) = operation {
                    set.needs_decide = true;
                }
            }
        }
        let mut results: Vec<_> = (0..requests).map(|_| None).collect();
        let mut next = 0;
        let item = |(operation, count)| {
            next += count;
            Item { operation, count, first: next - count }
        };
        let mut round_trip = RoundTrip::new(self, batch.into_iter().map(item).collect());
        loop {
            if !round_trip.calls.is_empty() {
                round_trip = round_trip.send(self, &mut guard, &mut results).await;
            } else if !round_trip.deferred.is_empty() {
                guard.release();
                round_trip = RoundTrip::new(self, round_trip.deferred);
            } else {
                break;
            }
        }
        results.into_iter().map(|result| result.unwrap_or(Ok(Completion::Changed))).collect()
    }
}

/// A batch that may never be sent. Dropping it forgets the leases that it would
/// have released: they end by themselves if they are not renewed.
struct Unsent<'a> {
    executor: &'a ScriptExecutor,
    batch: Vec<(Operation, usize)>,
}

impl Unsent<'_> {
    fn send(mut self) -> Vec<(Operation, usize)> {
        std::mem::take(&mut self.batch)
    }
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        for (operation, _) in self.batch.drain(..) {
            let mut changes = match operation {
                Operation::Charge(_) | Operation::Forget(_) => continue,
                Operation::ChangeReceipt { receipt, op, now } => {
                    Change::of_receipt(&self.executor.context, &receipt, op, now)
                }
                Operation::Change(changes) => changes,
            };
            self.executor.leases.update(&mut changes);
        }
    }
}

/// Calls that are sent at the same time, and what is deferred to the next round
/// trip.
#[derive(Default)]
struct RoundTrip {
    calls: Vec<(Call, Sent)>,
    /// The receipts whose claims are changed.
    receipts: Vec<ClaimMove>,
    deferred: Vec<Item>,
}

/// What a call was made of.
enum Sent {
    Charges(ChargeGroup),
    Changes(ChangeGroup),
}

impl RoundTrip {
    fn new(executor: &ScriptExecutor, items: Vec<Item>) -> Self {
        let mut round_trip = Self::default();
        let mut groups = Groups::default();
        let mut refunds = Vec::new();
        for item in items {
            match item.operation {
                Operation::Charge(set) => groups.add_charges(set, item.first, item.count),
                Operation::ChangeReceipt { receipt, op, now } => {
                    let (mut changes, moving) = executor.changes_of(receipt, (op, now));
                    executor.leases.update(&mut changes);
                    let owner = moving.is_some().then_some(round_trip.receipts.len());
                    round_trip.receipts.extend(moving);
                    changes.into_iter().for_each(|change| groups.add_change(change, owner, None));
                }
                Operation::Forget(changes) => {
                    changes.into_iter().for_each(|change| groups.add_change(change, None, Some(item.first)));
                }
                Operation::Change(mut changes) => {
                    executor.leases.update(&mut changes);
                    refunds.extend(changes.extract_if(.., |change| change.is_refund()));
                    changes.into_iter().for_each(|change| groups.add_change(change, None, None));
                }
            }
        }
        // The latest reservation first: one that others are built upon is not
        // refunded.
        refunds.sort_by(Change::refund_order);
        refunds.into_iter().for_each(|change| groups.add_change(change, None, None));
        let head = CallHead {
            instance: executor.instance,
            latest: executor.link.latest_time(),
            prefix: &executor.context.prefix,
        };
        groups.join();
        let mut check = executor.link.dataset_check();
        let changes = groups.changes.into_iter();
        round_trip.calls.extend(changes.map(|group| (encode::changes(&group.changes, head), Sent::Changes(group))));
        let uses_limiter_time = executor.context.uses_limiter_time;
        round_trip.calls.extend(groups.charges.into_iter().map(|mut group| {
            let sent = group.sets.iter().filter_map(|(set, _)| Some(set.lease.as_ref()?.sent_at(uses_limiter_time)));
            group.sent = sent.collect();
            let check = if group.sent.is_empty() { None } else { check.take() };
            (encode::charges(&group.sets, &group.changes.changes, head, check.as_ref()), Sent::Charges(group))
        }));
        round_trip
    }

    /// Sends the calls, and returns the next round trip.
    async fn send(
        self,
        executor: &ScriptExecutor,
        guard: &mut SendGuard,
        results: &mut [Option<Result<Completion, BackendError>>],
    ) -> Self {
        let call = |call| executor.link.call(executor.index, call);
        let replies = async {
            match &self.calls[..] {
                [(only, _)] => vec![call(only).await],
                calls => join_all(calls.iter().map(|(one, _)| call(one))).await,
            }
        };
        let replies = guard.with(replies).await;
        let mut deferred = self.deferred;
        for ((call, sent), reply) in self.calls.into_iter().zip(replies) {
            let bytes = match &reply {
                Ok(redis::Value::BulkString(bytes)) => Ok(bytes.as_slice()),
                Ok(_) => Err(malformed_reply()),
                Err(error) => Err(error.clone()),
            };
            match sent {
                Sent::Charges(group) => {
                    if group.sent.is_empty() {
                        let decided = bytes.and_then(|bytes| decode::charges(&group.sets, bytes, &call));
                        group.complete(executor, decided, results, &mut deferred);
                        continue;
                    }
                    let ChargeGroup { sets, firsts, sent, changes, .. } = group;
                    let replies = bytes.and_then(|bytes| decode::leases(&sets, &changes.changes, bytes, &call));
                    let (leased, updates) = match replies {
                        Ok((leased, updates)) => (Ok(leased), Ok(updates)),
                        Err(error) => (Err(error.clone()), Err(error)),
                    };
                    changes.complete(executor, &self.receipts, updates, results);
                    complete_leases(executor, firsts.into_iter().zip(sets).zip(sent), leased, results);
                }
                Sent::Changes(group) => {
                    let updates = bytes.and_then(|bytes| decode::changes(&group.changes, bytes));
                    group.complete(executor, &self.receipts, updates, results);
                }
            }
        }
        drop(self.receipts);
        Self::new(executor, deferred)
    }
}
