//! The units in flight that this process holds in the store by one lane, so that it can
//! renew them. A lease bounds for how long a process that died holds its units.
//! Renewing restores a lease that the store has lost. If others were admitted in
//! between, more than the limit may be in flight for a while.
//!
//! Invariant: what is released is not renewed afterwards, in whatever order
//! release and renewal were queued.

use std::{collections::HashMap, sync::Mutex};

use foldhash::fast::RandomState;

use super::{
    plan::{Change, ChangeOp, CounterCharge},
    sync::lock,
};

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
