//! Deadlines without a timer each. To set a runtime's timer and to clear it
//! again may wake the thread that waits for the next one to go off: more than
//! a whole question to the store costs. So all who have the same deadline
//! share one timer, that goes off in parts of it.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval},
};

/// In so many parts a deadline passes. Who is given one is told of its end
/// after it, or before it by up to one part.
const PARTS: usize = 16;

/// Timers go off at whole milliseconds: by so much one part may be shorter
/// than another.
const GRAIN: Duration = Duration::from_millis(1);

/// After so many parts in which nobody asked, the timer is given up.
const IDLE: usize = 8 * PARTS;

/// A deadline that many share.
#[derive(Debug)]
pub(super) struct Ticker {
    deadline: Duration,
    /// Where the timer goes for those who are on no runtime.
    runtime: Handle,
    /// One for each runtime: whoever waits is told by its own.
    wheels: Mutex<Vec<(Id, Wheel)>>,
}

/// Those who wait on one runtime; it is there while its timer runs.
#[derive(Debug, Default)]
struct Wheel {
    /// Who has come in this part.
    newcomers: Arc<Notify>,
    /// Who came in those before, the eldest first, and when their part was
    /// over.
    waiting: VecDeque<(Instant, Arc<Notify>)>,
    /// Parts in which nobody has come.
    idle: usize,
}

impl Ticker {
    /// Its timer is one of the runtime that somebody waits on, and runs while
    /// somebody does; of `runtime` where that is none.
    pub(super) fn new(deadline: Duration, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { deadline, runtime, wheels: Mutex::default() })
    }

    /// `None` where the deadline has passed: after fifteen sixteenths of it, but
    /// for a millisecond, at the earliest.
    pub(super) async fn within<F: Future>(self: &Arc<Self>, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let newcomers = self.enter();
        let mut over = pin!(newcomers.notified());
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            over.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    fn enter(self: &Arc<Self>) -> Arc<Notify> {
        let runtime = Handle::try_current().unwrap_or_else(|_| self.runtime.clone());
        let id = runtime.id();
        let mut wheels = self.wheels();
        if let Some((_, wheel)) = wheels.iter_mut().find(|(own, _)| *own == id) {
            wheel.idle = 0;
            return Arc::clone(&wheel.newcomers);
        }
        let wheel = Wheel::default();
        let newcomers = Arc::clone(&wheel.newcomers);
        wheels.push((id, wheel));
        drop(wheels);
        runtime.spawn(Turning { ticker: Arc::clone(self), id, is_over: false }.run());
        newcomers
    }

    fn wheels(&self) -> MutexGuard<'_, Vec<(Id, Wheel)>> {
        self.wheels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part has passed; for whom that was the last. `None` where nobody has
    /// come for long.
    fn pass(&self, id: Id) -> Option<SmallVec<[Arc<Notify>; 1]>> {
        let mut wheels = self.wheels();
        let (_, wheel) = wheels.iter_mut().find(|(own, _)| *own == id)?;
        wheel.idle += 1;
        if wheel.idle > IDLE {
            // Under the lock, so that whoever comes next begins another one.
            wheels.retain(|(own, _)| *own != id);
            return None;
        }
        let newcomers = std::mem::take(&mut wheel.newcomers);
        let now = Instant::now();
        wheel.waiting.push_back((now, newcomers));
        let mut over = SmallVec::new();
        // Where the end of a part was late, those that follow are shorter.
        let others = self.deadline - self.deadline / PARTS as u32;
        let is_over = |came: Instant| now.duration_since(came) + GRAIN >= others;
        while wheel.waiting.len() >= PARTS && wheel.waiting.front().is_some_and(|(came, _)| is_over(*came)) {
            over.extend(wheel.waiting.pop_front().map(|(_, waiting)| waiting));
        }
        Some(over)
    }
}

/// The timer of a wheel. With its runtime the wheel goes as well.
struct Turning {
    ticker: Arc<Ticker>,
    id: Id,
    /// The wheel is gone already; there may be another one by now.
    is_over: bool,
}

impl Turning {
    async fn run(mut self) {
        let part = (self.ticker.deadline / PARTS as u32).max(Duration::from_micros(1));
        let mut ticks = interval(part);
        // Behind time, nobody is told sooner than all parts have passed.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let Some(over) = self.ticker.pass(self.id) else {
                self.is_over = true;
                return;
            };
            over.iter().for_each(|over| over.notify_waiters());
        }
    }
}

impl Drop for Turning {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut wheels = self.ticker.wheels();
        if let Some(at) = wheels.iter().position(|(own, _)| *own == self.id) {
            let (_, wheel) = wheels.swap_remove(at);
            drop(wheels);
            // Nobody else would tell them.
            wheel
                .waiting
                .iter()
                .map(|(_, waiting)| waiting)
                .chain([&wheel.newcomers])
                .for_each(|waiting| waiting.notify_waiters());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::advance;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(160);
    const PART: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn a_deadline_passes_once_and_not_much_early() {
        let ticker = Ticker::new(DEADLINE, Handle::current());
        for early in [0, 3, 9, 10, 25] {
            advance(Duration::from_millis(early)).await;
            let start = Instant::now();
            assert_eq!(ticker.within(pending::<()>()).await, None);
            let took = start.elapsed();
            assert!(took <= DEADLINE && took + PART >= DEADLINE, "{took:?}");
        }
    }

    #[test]
    fn who_waits_elsewhere_is_told_by_its_own_runtime() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (idle, own) = (runtime(), runtime());
        let ticker = idle.block_on(async { Ticker::new(DEADLINE, Handle::current()) });
        assert_eq!(own.block_on(ticker.within(pending::<()>())), None);
        // And where that is gone, the next one.
        drop(own);
        assert!(ticker.wheels().is_empty());
        assert_eq!(runtime().block_on(ticker.within(pending::<()>())), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_done_in_time_is_done() {
        let ticker = Ticker::new(DEADLINE, Handle::current());
        assert_eq!(ticker.within(async { 5 }).await, Some(5));
        let slow = ticker.within(tokio::time::timeout(DEADLINE - 2 * PART, pending::<()>()));
        assert!(slow.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_timer_ends_where_nobody_waits_and_begins_again() {
        let ticker = Ticker::new(DEADLINE, Handle::current());
        for _ in 0..3 {
            assert_eq!(ticker.within(pending::<()>()).await, None);
            assert!(!ticker.wheels().is_empty());
            advance(DEADLINE).await;
            for _ in 0..2 * IDLE {
                advance(PART).await;
            }
            assert!(ticker.wheels().is_empty());
        }
    }
}
