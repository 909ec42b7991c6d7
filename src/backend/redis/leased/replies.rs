//! What becomes of leased units: requests that wait take the first, pools the rest.
//! It sends nothing, but for what no pool can use.
//!
//! Invariant: a pool has its units before a request learns that it is rejected.

use crate::{
    backend::redis::{
        executor::{Completion, ScriptExecutor},
        plan::ChargeSet,
        wire::{decode, malformed_reply},
    },
    error::BackendError,
};

/// Sets the result of each request that waits, and hands the other units to the
/// pools. `asked` has the first result of each charge set, how many requests it is
/// for, and when the store was asked.
pub(crate) fn complete_leases(
    executor: &ScriptExecutor,
    asked: impl Iterator<Item = ((usize, (ChargeSet, usize)), u64)>,
    leased: Result<Vec<decode::Leased>, BackendError>,
    results: &mut [Option<Result<Completion, BackendError>>],
) {
    let (leased, failure) = match leased {
        Ok(leased) => (leased, malformed_reply()),
        Err(error) => (Vec::new(), error),
    };
    let mut leased = leased.into_iter();
    for ((first, (set, count)), sent) in asked {
        let Some(ask) = &set.lease else { continue };
        let waiting = if ask.is_background { 0 } else { count as u64 };
        let results = &mut results[first..first + count];
        let reply = match leased.next().unwrap_or_else(|| Err(failure.clone())) {
            Ok(reply) => reply,
            Err(error) => {
                results.iter_mut().for_each(|result| *result = Some(Err(error.clone())));
                continue;
            }
        };
        executor.add_leases(&set, reply.reply.admitted);
        // The pool has its units before a request learns that it is rejected.
        let surplus = executor.pools.add(&set, waiting.min(reply.reply.admitted), &reply, sent, executor.index);
        if let Some(surplus) = surplus.and_then(|surplus| executor.pools.keep(surplus)) {
            executor.give_back(&surplus, set.now);
        }
        for (result, index) in results.iter_mut().zip(0..waiting) {
            let outcome = reply.reply.outcome(&set, index, count);
            let own = ChargeSet { request_id: set.request_id + index, ..set.clone() };
            let guard = executor.undo_guard(&own, &outcome);
            *result = Some(Ok(Completion::Charged(outcome, guard)));
        }
    }
}
