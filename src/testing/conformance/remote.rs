//! Backends that are asked over a network, while time is paused.

use std::{
    cell::Cell,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::task::spawn_blocking;

use crate::{
    backend::{Acquire, AcquireRequest, Backend, Receipt, Settlement, Usage},
    time::Timestamp,
};

thread_local! {
    /// Answers that are under way to those who ask on this thread.
    static UNDER_WAY: Cell<usize> = const { Cell::new(0) };
}

/// How long an answer may be under way.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it takes to look again.
const GLANCE: Duration = Duration::from_micros(50);

/// A backend for as long as whose answers are under way paused time stands
/// still. Else it would jump to the next timer, and that is a deadline's.
#[derive(Debug)]
pub(super) struct Remote(pub(super) Arc<dyn Backend>);

impl Backend for Remote {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire {
        match self.0.acquire(request) {
            Acquire::Ready(result) => Acquire::Ready(result),
            Acquire::Pending(answering) => {
                let still = Still::new();
                Acquire::Pending(Box::pin(async move {
                    let answer = answering.await;
                    drop(still);
                    answer
                }))
            }
        }
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.0.refund(receipt, now);
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        self.0.release(receipt, now);
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        self.0.settle(receipt, settlement, now);
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }
}

/// Paused time does not pass while a thread of the runtime is blocked: this
/// keeps one so.
struct Still {
    _ends_when_dropped: mpsc::Sender<()>,
}

impl Still {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        spawn_blocking(move || receiver.recv());
        UNDER_WAY.set(UNDER_WAY.get() + 1);
        Self { _ends_when_dropped: sender }
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        UNDER_WAY.set(UNDER_WAY.get() - 1);
    }
}

/// Looks again for as long as that may help: until nobody on this thread waits
/// for a backend.
pub(super) fn settled<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let mut left = PATIENCE;
    loop {
        let found = look();
        if found.is_some() || UNDER_WAY.get() == 0 || left.is_zero() {
            return found;
        }
        left = left.saturating_sub(GLANCE);
        pause(GLANCE);
    }
}

/// Lets real time pass, whatever the time is that is looked at.
#[allow(clippy::disallowed_methods, reason = "nobody says when a network has carried something")]
pub(super) fn pause(duration: Duration) {
    if !duration.is_zero() {
        thread::sleep(duration);
    }
}
