//! One deadline that all calls share, without a timer for each. Setting and
//! clearing a runtime's timer may wake the thread that waits for the next one,
//! which costs more than a call of the store. So callers that arrive within the
//! same sixteenth of the deadline share a timer. It does not cancel anything but
//! its caller.
//!
//! Invariant: a timeout fires at most one sixteenth early, and only as late as
//! that plus what the runtime is late.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    sync::Semaphore,
    time::{Instant, sleep_until},
};

use super::home::Home;
use crate::{backend::redis::sync::lock, error::BackendError};

/// Callers that arrive within one of so many parts of the deadline share a
/// timer.
const TICKS: u32 = 16;

/// A deadline that many callers share.
pub(crate) struct SharedDeadline {
    deadline: Duration,
    /// Runs the timers of callers outside a runtime.
    home: Arc<Home>,
    /// The present tick of each runtime: one that is not driven must delay no
    /// other.
    ticks: Mutex<Vec<Tick>>,
}

/// The callers that arrive on one runtime until it ends.
#[derive(Debug)]
struct Tick {
    runtime: Id,
    end: Instant,
    callers: Callers,
}

/// Closed when their deadline passes. Unlike a notification, that reaches those
/// who only then begin to wait.
type Callers = Arc<Semaphore>;

impl SharedDeadline {
    pub(crate) fn new(deadline: Duration, home: Arc<Home>) -> Arc<Self> {
        Arc::new(Self { deadline, home, ticks: Mutex::default() })
    }

    /// Starts now, for several futures that follow each other.
    pub(crate) fn start(self: &Arc<Self>) -> StartedDeadline<'_> {
        StartedDeadline { callers: self.enter(), home: &self.home }
    }

    /// `None` if the deadline passes first.
    pub(crate) async fn within<F: Future>(self: &Arc<Self>, future: F) -> Option<F::Output> {
        self.start().within(future).await
    }

    /// A decision, or a timeout if the deadline passes first.
    pub(crate) async fn decide<T>(
        self: &Arc<Self>,
        decision: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        self.within(decision).await.unwrap_or_else(|| Err(timed_out()))
    }

    fn tick(&self) -> Duration {
        self.deadline / TICKS
    }

    /// Joins the present tick of the caller's runtime, or starts one.
    fn enter(self: &Arc<Self>) -> Callers {
        let runtime = Handle::try_current().unwrap_or_else(|_| self.home.runtime().handle);
        let now = Instant::now();
        let mut ticks = lock(&self.ticks);
        ticks.retain(|tick| now < tick.end);
        if let Some(tick) = ticks.iter().find(|tick| tick.runtime == runtime.id()) {
            return Arc::clone(&tick.callers);
        }
        let callers = Arc::new(Semaphore::new(0));
        ticks.push(Tick { runtime: runtime.id(), end: now + self.tick(), callers: Arc::clone(&callers) });
        // A runtime that has ended drops the timer at once, which locks.
        drop(ticks);
        let timer = Timer { deadline: Arc::clone(self), callers: Arc::clone(&callers) };
        runtime.spawn(timer.run(now + self.deadline));
        callers
    }
}

/// A deadline of one caller.
pub(crate) struct StartedDeadline<'d> {
    callers: Callers,
    home: &'d Home,
}

impl StartedDeadline<'_> {
    /// `None` if the deadline passes first.
    pub(crate) async fn within<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut expired = pin!(self.callers.acquire());
        let output = poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            expired.as_mut().poll(cx).map(|_| None)
        })
        .await;
        if output.is_none() {
            // Perhaps because nothing drives its connections and tasks.
            self.home.suspect();
        }
        output
    }
}

pub(super) fn timed_out() -> BackendError {
    BackendError::timeout("no answer within the deadline")
}

/// Wakes the callers of a tick, even if its runtime drops it early.
struct Timer {
    deadline: Arc<SharedDeadline>,
    callers: Callers,
}

impl Timer {
    async fn run(self, end: Instant) {
        sleep_until(end).await;
        let tick = self.deadline.tick();
        if end.elapsed() > tick {
            // The runtime was late. Replies that have arrived meanwhile are read
            // first.
            sleep_until(Instant::now() + tick).await;
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        lock(&self.deadline.ticks).retain(|tick| !Arc::ptr_eq(&tick.callers, &self.callers));
        self.callers.close();
    }
}

#[cfg(test)]
mod tests;
