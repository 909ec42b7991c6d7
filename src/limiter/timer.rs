use std::time::Duration;

use crate::time::Timestamp;

/// A timer's longest run: what is further away than it can hold.
const LONGEST_SLEEP: Duration = Duration::from_secs(365 * 86_400);

/// Sleeps until it is `at`, nearly always once. Timers fire late by up to a
/// millisecond, never early; but the clock that is read by `now` may have
/// passed slower than the timer's, and nobody goes before it shows the time.
///
/// A clock that is set back meanwhile does not hold a waiter for as long: all
/// that waited on it keep their order and distances by the timer, and go after
/// a quarter more than they were promised at the latest.
pub(crate) async fn sleep_until(at: Timestamp, now: impl Fn() -> Timestamp) {
    let promised = at.saturating_since(now());
    let mut left = promised;
    let mut patience = promised.saturating_add(promised / 4);
    while !left.is_zero() && !patience.is_zero() {
        let nap = left.min(patience).min(LONGEST_SLEEP);
        #[allow(clippy::disallowed_methods, reason = "the one place that waits: one timer a waiter")]
        tokio::time::sleep(nap).await;
        patience -= nap;
        left = at.saturating_since(now());
    }
}
