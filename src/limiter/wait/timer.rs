//! Sleeps until a time on the limiter's clock. A request never leaves before
//! that clock shows its time, unless the clock was set back.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Sleep;

use crate::time::Timestamp;

/// The longest run of one timer; longer sleeps take several.
const LONGEST_SLEEP: Duration = Duration::from_secs(365 * 86_400);

/// Sleeps until it is `at` by `now`, nearly always with one timer. Timers fire
/// up to a millisecond late, never early; but the limiter's clock may run
/// slower than the timer's.
///
/// A clock that is set back does not delay a waiter by as much. It leaves at
/// most a quarter of its wait late, by the timer; all that waited on that clock
/// keep their order and their distances.
pub(crate) async fn sleep_until(at: Timestamp, now: impl Fn() -> Timestamp) {
    let longest = longest_sleep(at.saturating_since(now()));
    let mut timer = pin!(Timer::default());
    poll_fn(|cx| timer.as_mut().poll_until(at, longest, &now, cx)).await;
}

/// The longest sleep for a wait of this length: a quarter more.
pub(in crate::limiter) fn longest_sleep(wait: Duration) -> Duration {
    wait.saturating_add(wait / 4)
}

pin_project_lite::pin_project! {
    /// A timer that is set at its first poll, and can be reset.
    #[derive(Debug, Default)]
    pub(in crate::limiter) struct Timer {
        #[pin]
        sleep: Option<Sleep>,
        // How long it may still sleep after that; `None` until it is set.
        left: Option<Duration>,
    }
}

impl Timer {
    /// The next poll sets the timer again.
    pub(in crate::limiter) fn reset(self: Pin<&mut Self>) {
        let mut this = self.project();
        this.sleep.set(None);
        *this.left = None;
    }

    /// Ready once it is `at` by `now`, or after `longest` by the timer.
    pub(in crate::limiter) fn poll_until(
        self: Pin<&mut Self>,
        at: Timestamp,
        longest: Duration,
        now: impl Fn() -> Timestamp,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut this = self.project();
        let left = this.left.get_or_insert(longest);
        loop {
            if let Some(sleep) = this.sleep.as_mut().as_pin_mut() {
                ready!(sleep.poll(cx));
                this.sleep.set(None);
            }
            let nap = at.saturating_since(now()).min(*left).min(LONGEST_SLEEP);
            if nap.is_zero() {
                return Poll::Ready(());
            }
            *left -= nap;
            #[allow(clippy::disallowed_methods, reason = "the only sleep of the crate: one timer per waiter")]
            this.sleep.set(Some(tokio::time::sleep(nap)));
        }
    }

    /// Ready after `time`.
    pub(in crate::limiter) fn poll_after(self: Pin<&mut Self>, time: Duration, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_until(Timestamp::from_nanos(u64::MAX), time, || Timestamp::UNIX_EPOCH, cx)
    }
}
