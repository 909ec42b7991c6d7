//! How late timers fire: [`SchedulingDelay`].
//!
//! Measured by the standard library's clock: Tokio's may be paused. Invariant: its task
//! ends with the signal.

#![allow(clippy::disallowed_methods, reason = "it measures timers, and decides nothing")]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::runtime::Handle;

use super::signal::{LoadSignal, SCHEDULING_DELAY};

/// How often a timer fires.
const TICK: Duration = Duration::from_millis(20);

/// For how long a delay counts.
const MEMORY: Duration = Duration::from_secs(1);

/// See [`scheduling_delay`](super::scheduling_delay).
#[derive(Debug, Default)]
pub(super) struct SchedulingDelay {
    /// `None` until the first request within a runtime.
    ticks: Mutex<Option<Arc<Mutex<Ticks>>>>,
}

#[derive(Debug)]
struct Ticks {
    /// When the timers fired, and how late.
    fired: VecDeque<(Instant, Duration)>,
    /// When the next one is due.
    due: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LoadSignal for SchedulingDelay {
    fn load(&self) -> f64 {
        let mut ticks = lock(&self.ticks);
        if ticks.is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            let started = Arc::new(Mutex::new(Ticks { fired: VecDeque::new(), due: Instant::now() + TICK }));
            runtime.spawn(tick(Arc::downgrade(&started)));
            *ticks = Some(started);
        }
        ticks.as_ref().map_or(0.0, |ticks| lock(ticks).delay(Instant::now()).as_secs_f64())
    }

    fn name(&self) -> &str {
        SCHEDULING_DELAY
    }
}

async fn tick(ticks: Weak<Mutex<Ticks>>) {
    while let Some(due) = ticks.upgrade().map(|ticks| lock(&ticks).due) {
        tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
        let Some(ticks) = ticks.upgrade() else { return };
        lock(&ticks).fire(Instant::now());
    }
}

impl Ticks {
    fn fire(&mut self, now: Instant) {
        self.fired.push_back((now, now.saturating_duration_since(self.due)));
        self.due = now + TICK;
        self.forget(now);
    }

    fn forget(&mut self, now: Instant) {
        while self.fired.front().is_some_and(|(fired, _)| now.saturating_duration_since(*fired) > MEMORY) {
            self.fired.pop_front();
        }
    }

    /// The 90th percentile of the last second. A timer that is due and has not fired yet
    /// counts as well: nothing fires while the executor is blocked.
    fn delay(&mut self, now: Instant) -> Duration {
        self.forget(now);
        let overdue = Some(now.saturating_duration_since(self.due)).filter(|late| !late.is_zero());
        let mut late: Vec<Duration> = self.fired.iter().map(|(_, late)| *late).chain(overdue).collect();
        late.sort_unstable();
        late.len().checked_sub(1).map_or(Duration::ZERO, |last| late[last * 9 / 10])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(start: Instant, delays: &[u64]) -> Ticks {
        let mut ticks = Ticks { fired: VecDeque::new(), due: start + TICK };
        for delay in delays {
            let now = ticks.due + Duration::from_millis(*delay);
            ticks.fire(now);
        }
        ticks
    }

    #[test]
    fn the_delay_is_a_percentile_of_the_last_second() {
        let start = Instant::now();
        let mut some = ticks(start, &[0, 0, 0, 0, 0, 0, 0, 0, 30, 30, 30]);
        let now = some.due;
        assert_eq!(some.delay(now), Duration::from_millis(30));
        assert_eq!(ticks(start, &[0; 40]).delay(start), Duration::ZERO);
        assert_eq!(some.delay(now + 2 * MEMORY), 2 * MEMORY, "no timer has fired for two seconds");
    }

    /// One timer fires for all that were due while the executor was blocked.
    #[test]
    fn a_blocked_executor_shows_at_once() {
        let start = Instant::now();
        let mut blocked = ticks(start, &[0, 0, 0, 0, 1_500]);
        let now = blocked.due;
        assert_eq!(blocked.delay(now), Duration::from_millis(1_500));
    }

    #[tokio::test(start_paused = true)]
    async fn its_task_ends_with_it() {
        let signal = SchedulingDelay::default();
        assert!(signal.load() < 1.0);
        let task = Arc::downgrade(lock(&signal.ticks).as_ref().unwrap());
        tokio::time::sleep(10 * TICK).await;
        assert_eq!(task.strong_count(), 1);
        drop(signal);
        tokio::time::sleep(10 * TICK).await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
    }
}
