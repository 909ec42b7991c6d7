//! One exchange of a pool with the store: [`Exchange`]. It has no units.
//!
//! Invariant: a pool has at most one under way. So the store knows by one number, that of
//! the last reply received, whether the reply that it recorded last was lost.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

/// What an exchange has brought as long as it has no reply.
const NO_REPLY: u64 = u64::MAX;

/// An exchange that is under way, or one that has ended without a reply.
#[derive(Debug)]
pub(super) struct Exchange {
    /// The policy that it leases under.
    pub(super) version: u64,
    /// The last one of the pool whose reply was received.
    pub(super) known: u64,
    /// The units of the requests that wait for it, and those that it has brought.
    waiting: AtomicU64,
    brought: AtomicU64,
    /// Closed when it ends.
    under_way: Semaphore,
}

impl Exchange {
    pub(super) fn new(version: u64, known: u64, waiting: u64) -> Self {
        let (waiting, brought) = (AtomicU64::new(waiting), AtomicU64::new(NO_REPLY));
        Self { version, known, waiting, brought, under_way: Semaphore::new(0) }
    }

    pub(super) fn is_under_way(&self) -> bool {
        !self.under_way.is_closed()
    }

    /// A request of so many units waits for it.
    pub(super) fn join(&self, units: u64) {
        self.waiting.fetch_add(units, Ordering::Relaxed);
    }

    pub(super) fn on_reply(&self, units: u64) {
        self.brought.store(units.min(NO_REPLY - 1), Ordering::Release);
    }

    pub(super) fn has_reply(&self) -> bool {
        self.brought.load(Ordering::Acquire) != NO_REPLY
    }

    pub(super) fn has_brought_units(&self) -> bool {
        self.has_reply() && self.brought.load(Ordering::Acquire) > 0
    }

    /// The units that requests waited for and that it did not bring.
    pub(super) fn missing(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed).saturating_sub(self.brought.load(Ordering::Acquire))
    }

    /// Wakes what waits for it.
    pub(super) fn end(&self) {
        self.under_way.close();
    }

    pub(super) async fn ended(&self) {
        // It never has a permit, so this ends when it is closed.
        let _ = self.under_way.acquire().await;
    }
}
