//! The limiter's time, for what is done without a request: [`LimiterTime`], by the
//! last request and the time that has passed since. It does not decide when
//! anything happens.
//!
//! Invariant: where the limiter's clock decides, which a test may step, time passes
//! only with requests.

use std::sync::Mutex;

use tokio::time::Instant;

use crate::{backend::redis::sync::lock, time::nanos};

#[derive(Debug)]
pub(super) struct LimiterTime {
    /// The limiter's time in nanoseconds, and when it was that.
    last: Mutex<Option<(u64, Instant)>>,
    /// Whether it decides instead of the store's clock.
    pub(super) decides: bool,
}

impl LimiterTime {
    pub(super) fn new(decides: bool) -> Self {
        Self { last: Mutex::default(), decides }
    }

    /// The limiter's clock is at `now`, in nanoseconds.
    pub(super) fn observe(&self, now: u64) {
        *lock(&self.last) = Some((now, Instant::now()));
    }

    /// `None` before the first request.
    pub(super) fn now(&self) -> Option<u64> {
        let (at, since) = (*lock(&self.last))?;
        Some(if self.decides { at } else { at.saturating_add(nanos(since.elapsed())) })
    }
}
