//! One deadline that all calls share, without a timer for each. Setting and
//! clearing a runtime's timer may wake the thread that waits for the next one,
//! which costs more than a call of the store. So one timer per runtime fires in
//! sixteenths of the deadline. It does not cancel anything but its caller.
//!
//! Invariant: a timeout fires at most one sixteenth (plus 1 ms) early, and only
//! as late as that plus what the runtime is late.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::backend::redis::sync::lock;

/// The deadline is checked this often while it passes.
const TICKS: usize = 16;

/// Timers fire at whole milliseconds, so a tick may be this much shorter than
/// the next.
const GRANULARITY: Duration = Duration::from_millis(1);

/// The timer stops after this many ticks without a new caller.
const IDLE_TICKS: usize = 8 * TICKS;

/// A deadline that many callers share.
#[derive(Debug)]
pub(crate) struct SharedDeadline {
    deadline: Duration,
    /// Runs the timer of callers outside a runtime.
    runtime: Handle,
    /// One for each runtime: a runtime that is not driven delays no other.
    timers: Mutex<Vec<(Id, Timer)>>,
}

/// The callers on one runtime; it exists while its timer task runs.
#[derive(Debug, Default)]
struct Timer {
    /// Callers of the current tick.
    current: Arc<Notify>,
    /// Callers of earlier ticks, oldest first, with the end of their tick.
    earlier: VecDeque<(Instant, Arc<Notify>)>,
    /// Ticks without a new caller.
    idle: usize,
}

impl SharedDeadline {
    pub(crate) fn new(deadline: Duration, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { deadline, runtime, timers: Mutex::default() })
    }

    /// `None` if the deadline passes first.
    pub(crate) async fn within<F: Future>(self: &Arc<Self>, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let tick = self.enter();
        let mut expired = pin!(tick.notified());
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            expired.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    fn enter(self: &Arc<Self>) -> Arc<Notify> {
        let runtime = Handle::try_current().unwrap_or_else(|_| self.runtime.clone());
        let id = runtime.id();
        let mut timers = lock(&self.timers);
        if let Some((_, timer)) = timers.iter_mut().find(|(own, _)| *own == id) {
            timer.idle = 0;
            return Arc::clone(&timer.current);
        }
        let timer = Timer::default();
        let current = Arc::clone(&timer.current);
        timers.push((id, timer));
        drop(timers);
        runtime.spawn(TimerTask { deadline: Arc::clone(self), id, is_stopped: false }.run());
        current
    }

    /// A tick has passed: returns the callers whose deadline that was. `None`
    /// if the timer stops, since there was no caller for long.
    fn tick(&self, id: Id) -> Option<SmallVec<[Arc<Notify>; 1]>> {
        let mut timers = lock(&self.timers);
        let (_, timer) = timers.iter_mut().find(|(own, _)| *own == id)?;
        timer.idle += 1;
        if timer.idle > IDLE_TICKS {
            // Under the lock, so that the next caller starts another one.
            timers.retain(|(own, _)| *own != id);
            return None;
        }
        let now = Instant::now();
        timer.earlier.push_back((now, std::mem::take(&mut timer.current)));
        let mut expired = SmallVec::new();
        // The ticks after a late one are shorter, so they are not only counted.
        let others = self.deadline - self.deadline / TICKS as u32;
        let is_over = |end: Instant| now.duration_since(end) + GRANULARITY >= others;
        while timer.earlier.len() >= TICKS && timer.earlier.front().is_some_and(|(end, _)| is_over(*end)) {
            expired.extend(timer.earlier.pop_front().map(|(_, callers)| callers));
        }
        Some(expired)
    }
}

/// Drives a timer. If its runtime drops it, the timer is removed.
struct TimerTask {
    deadline: Arc<SharedDeadline>,
    id: Id,
    /// The timer is removed already; the runtime may have another one by now.
    is_stopped: bool,
}

impl TimerTask {
    async fn run(mut self) {
        let tick = (self.deadline.deadline / TICKS as u32).max(Duration::from_micros(1));
        let mut ticks = interval(tick);
        // After a late tick, no caller times out before all ticks have passed.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let Some(expired) = self.deadline.tick(self.id) else {
                self.is_stopped = true;
                return;
            };
            expired.iter().for_each(|callers| callers.notify_waiters());
        }
    }
}

impl Drop for TimerTask {
    fn drop(&mut self) {
        if self.is_stopped {
            return;
        }
        let mut timers = lock(&self.deadline.timers);
        if let Some(at) = timers.iter().position(|(own, _)| *own == self.id) {
            let (_, timer) = timers.swap_remove(at);
            drop(timers);
            // No other task would wake them.
            let earlier = timer.earlier.iter().map(|(_, callers)| callers);
            earlier.chain([&timer.current]).for_each(|callers| callers.notify_waiters());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::advance;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(160);
    const TICK: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn a_timeout_fires_at_most_one_tick_early() {
        let deadline = SharedDeadline::new(DEADLINE, Handle::current());
        for early in [0, 3, 9, 10, 25] {
            advance(Duration::from_millis(early)).await;
            let start = Instant::now();
            assert_eq!(deadline.within(pending::<()>()).await, None);
            let took = start.elapsed();
            assert!(took <= DEADLINE && took + TICK >= DEADLINE, "{took:?}");
        }
    }

    #[test]
    fn a_caller_on_another_runtime_is_woken_by_its_own() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (idle, own) = (runtime(), runtime());
        let deadline = idle.block_on(async { SharedDeadline::new(DEADLINE, Handle::current()) });
        assert_eq!(own.block_on(deadline.within(pending::<()>())), None);
        // After that runtime is dropped, the next one drives its own.
        drop(own);
        assert!(lock(&deadline.timers).is_empty());
        assert_eq!(runtime().block_on(deadline.within(pending::<()>())), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_that_ends_in_time_returns_its_output() {
        let deadline = SharedDeadline::new(DEADLINE, Handle::current());
        assert_eq!(deadline.within(async { 5 }).await, Some(5));
        let slow = deadline.within(tokio::time::timeout(DEADLINE - 2 * TICK, pending::<()>()));
        assert!(slow.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_timer_stops_and_restarts() {
        let deadline = SharedDeadline::new(DEADLINE, Handle::current());
        for _ in 0..3 {
            assert_eq!(deadline.within(pending::<()>()).await, None);
            assert!(!lock(&deadline.timers).is_empty());
            advance(DEADLINE).await;
            for _ in 0..2 * IDLE_TICKS {
                advance(TICK).await;
            }
            assert!(lock(&deadline.timers).is_empty());
        }
    }
}
