//! The levels of consistency: stands between a request and `dispatch`, and decides
//! in this process what no round trip is needed for. Charges of exact rules pass
//! through unchanged.
//!
//! A request that is charged by rules of both levels is all or nothing: leased units
//! are taken first, the store decides last, and what was taken is put back if it
//! rejects. A request that may wait, or for which units are missing, is decided by the
//! store as a whole.
//!
//! Invariant: no level has a connection, a batch or a queue of its own. What it
//! needs of the store it asks the dispatcher for.

mod leased;
mod mixed;
mod pool_key;
mod refills;

use std::sync::Arc;

use self::leased::Leased;
use super::{dispatch::Dispatcher, plan::ReceiptOp};
use crate::{
    backend::{Charge, Decide, Receipt, Request, Reset},
    policy::{Consistency, charge::Charges},
    time::Timestamp,
};

/// Decides requests at the level that each of their rules asks for.
pub(super) struct Levels {
    pub(super) dispatcher: Arc<Dispatcher>,
    leased: Arc<Leased>,
}

impl Levels {
    pub(super) fn new(dispatcher: Arc<Dispatcher>) -> Self {
        Self { leased: Leased::new(&dispatcher), dispatcher }
    }

    pub(super) fn decide(&self, request: &Request<'_>) -> Decide {
        let leased = request.charges.iter().filter(|charge| is_leased(charge)).count();
        match leased {
            0 => self.dispatcher.acquire(request),
            all if all == request.charges.len() => self.leased.acquire(request),
            _ => self.acquire_mixed(request),
        }
    }

    pub(super) fn peek(&self, request: &Request<'_>) -> Decide {
        match request.charges.iter().all(is_leased) {
            true => self.leased.peek(request),
            false => self.dispatcher.peek(request),
        }
    }

    /// Forgets what these charges have used, here and in the store.
    pub(super) fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Reset {
        let leased: Charges<'_> = charges.iter().filter(|charge| is_leased(charge)).copied().collect();
        if !leased.is_empty() {
            self.leased.forget(&leased, now);
        }
        self.dispatcher.reset(charges, now)
    }

    /// Changes what a receipt was charged.
    pub(super) fn change(&self, receipt: &Receipt, op: ReceiptOp, now: Timestamp) {
        self.dispatcher.change(receipt, op, now);
    }

    /// Gives back all that is reserved.
    pub(super) async fn drain(&self, now: Timestamp) {
        self.leased.drain(now).await;
    }
}

fn is_leased(charge: &Charge<'_>) -> bool {
    charge.rule.options.consistency == Consistency::Leased
}
