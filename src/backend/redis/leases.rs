//! The units in flight that this process holds in the store, so that it can
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

/// Leases, each with the index of its lane.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<CounterCharge, usize, RandomState>>);

impl Leases {
    pub(super) fn add(&self, leases: impl Iterator<Item = CounterCharge>, lane: usize) {
        lock(&self.0).extend(leases.map(|lease| (lease, lane)));
    }

    /// Removes what the changes release, and leaves out renewals of what was
    /// released.
    pub(super) fn update(&self, changes: &mut Vec<Change>) {
        let mut leases = lock(&self.0);
        changes.retain(|change| match change.op {
            ChangeOp::Renew => leases.contains_key(&change.charge),
            ChangeOp::Release => {
                leases.remove(&change.charge);
                true
            }
            ChangeOp::Refund | ChangeOp::AddDebt => true,
        });
    }

    /// A renewal of every lease, by lane.
    pub(super) fn renewals(&self, lanes: usize) -> Vec<Vec<Change>> {
        let mut by_lane: Vec<Vec<Change>> = (0..lanes).map(|_| Vec::new()).collect();
        for (lease, lane) in &*lock(&self.0) {
            by_lane[*lane].push(lease.clone().renew(None));
        }
        by_lane
    }
}
