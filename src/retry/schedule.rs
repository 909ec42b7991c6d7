//! When to retry: delays with jitter.
//!
//! A delay is never shorter than the time that was asked for.

use std::time::Duration;

use crate::{jitter::doubled, time::nanos};

/// The settings of delays.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) base: Duration,
    pub(super) cap: Duration,
    /// `None`: a tenth of the time that was asked for, or `base` if that is
    /// more.
    pub(super) jitter: Option<Duration>,
    pub(super) max_wait: Duration,
}

impl Schedule {
    /// The delay after `retries` retries. `None` if it would be too long.
    /// `draw` returns a number between zero and its argument.
    pub(super) fn delay(
        &self,
        asked: Option<Duration>,
        retries: u32,
        draw: impl FnOnce(u64) -> u64,
    ) -> Option<Duration> {
        // Zero would not spread retries either.
        let Some(asked) = asked.filter(|asked| !asked.is_zero()) else {
            let most = doubled(self.base, retries, self.cap.min(self.max_wait));
            return Some(Duration::from_nanos(draw(nanos(most))));
        };
        let most = self.jitter.unwrap_or_else(|| self.base.max(asked / 10));
        (asked <= self.max_wait).then(|| asked.saturating_add(Duration::from_nanos(draw(nanos(most)))))
    }
}
