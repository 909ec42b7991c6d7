//! What a lane of the Redis backend carries, and what is left of it: operations,
//! their completions, and the guard that undoes an admission. `round_trip`
//! turns operations into calls.
//!
//! Invariant: an admission that no caller receives is undone.

use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::{
    blocked_refunds::BlockedRefunds,
    leases::Leases,
    plan::{Change, ChargeSet, ClaimUpdate, CounterCharge, PlanContext, ReceiptOp},
    transport::{lane::Lane, link::Link},
};
use crate::{
    backend::{Outcome, OutcomeKind, Receipt},
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
    /// Changes without a receipt: of leases, and of charge sets that are undone.
    Change(Vec<Change>),
}

/// The result of an operation.
pub(super) enum Completion {
    Charged(Outcome, UndoGuard),
    Changed,
}

/// Undoes an admission when it is dropped: its caller may be gone by now. Units
/// in flight are released, and a future reservation is refunded. A request that
/// was admitted at once stays charged, as if it had been served.
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

/// Carries out the operations of one lane.
pub(super) struct ScriptExecutor {
    /// The index of the lane.
    pub(super) index: usize,
    pub(super) context: Arc<PlanContext>,
    pub(super) link: Arc<Link>,
    /// Identifies this process.
    pub(super) instance: u64,
    pub(super) leases: Arc<Leases>,
    pub(super) blocked_refunds: BlockedRefunds,
    /// Notified when claims were changed, since other changes may wait for it.
    pub(super) claims_changed: Arc<Notify>,
    /// The lane itself, for operations that follow.
    pub(super) lane: Weak<Lane<Self>>,
}

impl ScriptExecutor {
    /// Tries refunds again that were blocked by these changes.
    pub(super) fn retry_refunds(&self, changes: impl Iterator<Item = (Change, ClaimUpdate, bool)>) {
        let again = self.blocked_refunds.update(changes);
        if !again.is_empty()
            && let Some(lane) = self.lane.upgrade()
        {
            lane.push(Operation::Change(again));
        }
    }

    /// The guard over what an admission holds: units in flight, and its
    /// reservation.
    pub(super) fn guard(&self, set: &ChargeSet, outcome: &Outcome) -> UndoGuard {
        let OutcomeKind::Admitted { wait } = outcome.answer else { return UndoGuard::default() };
        if wait == 0 && set.in_flight.is_empty() {
            return UndoGuard::default();
        }
        let changes = match wait {
            0 => CounterCharge::leases(set).map(|lease| lease.release(set.now)).collect(),
            _ => Change::undo(set, outcome, wait),
        };
        self.leases.add(CounterCharge::leases(set), self.index);
        UndoGuard { changes, lane: self.lane.clone() }
    }
}
