//! What becomes of leased units: the pools get them. It sends nothing.
//!
//! Invariant: a pool has its units before a request learns that its exchange has ended.

use crate::{
    backend::redis::{executor::ScriptExecutor, plan::ChargeSet, wire::decode},
    error::BackendError,
};

/// Hands leased units to the pools. `asked` has each charge set, and when the store was
/// asked. Dropping a charge set ends its exchange.
pub(crate) fn complete_leases<'s>(
    executor: &ScriptExecutor,
    asked: impl Iterator<Item = (&'s ChargeSet, u64)>,
    leased: Result<Vec<decode::Leased>, BackendError>,
) {
    for ((set, sent), reply) in asked.zip(leased.into_iter().flatten()) {
        let Ok(reply) = reply else { continue };
        executor.add_leases(set, reply.units);
        executor.pools.add(set, &reply, sent, executor.index);
    }
}
