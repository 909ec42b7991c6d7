//! The levels of consistency: stands between a request and `dispatch`, and decides
//! in this process what no round trip is needed for. Charges of exact rules pass
//! through unchanged.
//!
//! A request that is charged by rules of several levels is all or nothing: the
//! levels that decide here take first, the store decides last, and what was taken is
//! put back if it rejects. A request that may wait, or that a level cannot decide,
//! is decided by the store as a whole.
//!
//! Invariant: no level has a connection, a batch or a queue of its own. What it
//! needs of the store it asks the dispatcher for.

mod eventual;
mod leased;
mod mixed;
mod pool_key;
mod refills;
mod taken;

use std::sync::Arc;

use self::{
    eventual::Eventual,
    leased::Leased,
    taken::{Taken, of_level},
};
use super::{dispatch::Dispatcher, plan::ReceiptOp};
use crate::{
    backend::{Acquire, AcquireRequest, Charge, ChargeAtOnce, QuotaStatuses, Receipt, Reset},
    policy::{Consistency, charge::LocalCharge},
    time::Timestamp,
};

/// Decides requests at the level that each of their rules asks for.
pub(super) struct Levels {
    pub(super) dispatcher: Arc<Dispatcher>,
    leased: Arc<Leased>,
    eventual: Arc<Eventual>,
}

impl ChargeAtOnce for Levels {
    fn try_charge(&self, charge: &LocalCharge<'_>, now: u64, statuses: &mut QuotaStatuses) -> bool {
        match charge.rule.options.consistency {
            Consistency::Exact => false,
            Consistency::Leased => self.leased.try_charge(charge, now, statuses),
            Consistency::Eventual => self.eventual.try_charge(charge, now, statuses),
        }
    }
}

impl Levels {
    pub(super) fn new(dispatcher: Arc<Dispatcher>) -> Self {
        Self { leased: Leased::new(&dispatcher), eventual: Eventual::new(&dispatcher), dispatcher }
    }

    pub(super) fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire {
        let mut levels = request.charges.iter().map(|charge| charge.rule.options.consistency);
        let first = levels.next().unwrap_or_default();
        if !levels.all(|level| level == first) {
            return self.acquire_mixed(request);
        }
        match first {
            Consistency::Exact => self.dispatcher.acquire(request),
            Consistency::Leased => self.leased.acquire(request),
            Consistency::Eventual => self.eventual.acquire(request),
        }
    }

    pub(super) fn peek(&self, request: &AcquireRequest<'_>) -> Acquire {
        match request.charges.iter().all(|charge| charge.consistency() == Consistency::Leased) {
            true => self.leased.peek(request),
            false => self.eventual.peek(request),
        }
    }

    /// Forgets what these charges have used, here and in the store.
    pub(super) fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Reset {
        let leased = of_level(charges.iter().copied(), Consistency::Leased);
        if !leased.is_empty() {
            self.leased.forget(&leased, now);
        }
        self.before_change(charges.iter().copied(), now);
        self.dispatcher.reset(charges, now)
    }

    /// Takes the charges of one level, all of a request or none, without a wait.
    fn take(&self, level: Consistency, request: &AcquireRequest<'_>) -> Taken {
        match level {
            Consistency::Exact => Taken::Undecided,
            Consistency::Leased => self.leased.take(request),
            Consistency::Eventual => self.eventual.take(request),
        }
    }

    /// Changes what a receipt was charged, after what this process has not reported yet.
    pub(super) fn change(&self, receipt: &Receipt, op: ReceiptOp, now: Timestamp) {
        if op.moves_claims() {
            self.before_change(receipt.charges(), now);
        }
        self.dispatcher.change(receipt, op, now);
    }

    /// Before something else changes these counters in the store.
    fn before_change<'a>(&self, charges: impl Iterator<Item = Charge<'a>>, now: Timestamp) {
        let eventual = of_level(charges, Consistency::Eventual);
        if !eventual.is_empty() {
            self.eventual.before_change(&eventual, now.as_nanos());
        }
    }

    /// Gives back and reports all that the levels hold.
    pub(super) async fn drain(&self, now: Timestamp) {
        self.leased.drain(now).await;
        self.eventual.drain().await;
    }
}
