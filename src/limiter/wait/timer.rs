//! Sleeps until a time on the limiter's clock. A request never leaves before
//! that clock shows its time, unless the clock was set back.

use std::time::Duration;

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
    let promised = at.saturating_since(now());
    sleep_for_at_most(at, longest_sleep(promised), now).await;
}

/// The longest sleep for a wait of this length: a quarter more.
pub(in crate::limiter) fn longest_sleep(wait: Duration) -> Duration {
    wait.saturating_add(wait / 4)
}

/// As [`sleep_until`], but for at most `most` by the timer.
pub(in crate::limiter) async fn sleep_for_at_most(at: Timestamp, mut most: Duration, now: impl Fn() -> Timestamp) {
    loop {
        let nap = at.saturating_since(now()).min(most).min(LONGEST_SLEEP);
        if nap.is_zero() {
            break;
        }
        #[allow(clippy::disallowed_methods, reason = "the only sleep of the crate: one timer per waiter")]
        tokio::time::sleep(nap).await;
        most -= nap;
    }
}
