//! Lets paused time wait for backends behind a network.

use std::{
    cell::Cell,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use tokio::task::spawn_blocking;

use crate::{
    backend::{Backend, Charge, Decide, Receipt, Request, Reset},
    time::Timestamp,
};

thread_local! {
    /// The pending answers for this thread.
    static PENDING: Cell<usize> = const { Cell::new(0) };
}

/// The longest time for an answer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Stops paused time while an answer is pending. Otherwise time would jump to
/// the next timer, which is the deadline of the call.
#[derive(Debug)]
pub(super) struct Remote(pub(super) Arc<dyn Backend>);

impl Backend for Remote {
    fn decide(&self, request: &Request<'_>) -> Decide {
        stopped(self.0.decide(request))
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.0.refund(receipt, now);
    }

    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.0)
    }

    fn peek(&self, request: &Request<'_>) -> Decide {
        stopped(self.0.peek(request))
    }

    fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Reset {
        match self.0.reset(charges, now) {
            Reset::Ready(result) => Reset::Ready(result),
            Reset::Pending(resetting) => Reset::Pending(Box::pin(while_stopped(resetting))),
        }
    }
}

fn stopped(answer: Decide) -> Decide {
    match answer {
        Decide::Now(result) => Decide::Now(result),
        Decide::Later(answering) => Decide::Later(Box::pin(while_stopped(answering))),
    }
}

/// Time stops at once, not when the future is polled.
fn while_stopped<F: Future>(answering: F) -> impl Future<Output = F::Output> {
    let stopped = StoppedTime::new();
    async move {
        let answer = answering.await;
        drop(stopped);
        answer
    }
}

/// Blocks a thread of the runtime, which stops paused time.
struct StoppedTime {
    _ends_when_dropped: mpsc::Sender<()>,
}

impl StoppedTime {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        spawn_blocking(move || receiver.recv());
        PENDING.set(PENDING.get() + 1);
        Self { _ends_when_dropped: sender }
    }
}

impl Drop for StoppedTime {
    fn drop(&mut self) {
        PENDING.set(PENDING.get() - 1);
    }
}

/// Polls until a value is found, or no answer is pending on this thread.
pub(super) fn settled<T>(mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let mut left = LONGEST_WAIT;
    loop {
        let found = poll();
        if found.is_some() || PENDING.get() == 0 || left.is_zero() {
            return found;
        }
        left = left.saturating_sub(POLL_INTERVAL);
        pause(POLL_INTERVAL);
    }
}

/// Lets real time pass, whatever clock the limiter uses.
#[allow(clippy::disallowed_methods, reason = "nothing signals that a network has delivered a message")]
pub(super) fn pause(duration: Duration) {
    if !duration.is_zero() {
        thread::sleep(duration);
    }
}
