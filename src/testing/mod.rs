//! Test utilities (feature `test-util`): manual clocks, repeatable jitter, a
//! backend that fails on demand, and the conformance suite for backends.

pub mod conformance;
mod faulty;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

pub use self::faulty::{Fault, FaultyBackend};
pub use crate::jitter::seeded::SeededJitter;
use crate::time::{Clock, Timestamp};

/// 2024-01-01T00:00:00Z, a Monday: the start of every wall-clock window of up
/// to a day that divides it.
const START: Timestamp = Timestamp::from_secs(1_704_067_200);

/// A clock that only moves when told to.
///
/// It starts at 2024-01-01T00:00:00Z, a Monday, where windows of a second, a
/// minute, an hour and a day all begin. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter, testing::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::builder().policy(Quota::per_second(1)).clock(clock.clone()).build().unwrap();
/// let caller = Descriptor::new("/").tenant("acme");
///
/// assert!(limiter.check(&caller).await.is_allowed());
/// assert!(!limiter.check(&caller).await.is_allowed());
/// clock.advance(Duration::from_secs(1));
/// assert!(limiter.check(&caller).await.is_allowed());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    nanos: Arc<AtomicU64>,
}

impl ManualClock {
    /// A new clock at 2024-01-01T00:00:00Z.
    #[must_use]
    pub fn new() -> Self {
        Self { nanos: Arc::new(AtomicU64::new(START.as_nanos())) }
    }

    /// Advances the time, up to the last [`Timestamp`].
    pub fn advance(&self, duration: Duration) {
        let later = |nanos| Some(Timestamp::from_nanos(nanos).saturating_add(duration).as_nanos());
        // Always succeeds: the closure always returns a value.
        let _ = self.nanos.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
    }

    /// Sets the time, forwards or backwards.
    pub fn set(&self, time: Timestamp) {
        self.nanos.store(time.as_nanos(), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.nanos.load(Ordering::SeqCst))
    }
}

/// A clock that follows Tokio's time, so that decisions and waits share it.
///
/// With Tokio's time paused, a test that waits takes no real time. A new clock
/// reads 2024-01-01T00:00:00Z. Copies of a clock read the same; other clocks
/// may differ.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter, testing::TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let limiter = RateLimiter::builder().policy(Quota::per_hour(1)).clock(TokioClock::default()).build().unwrap();
/// let caller = Descriptor::new("/").tenant("acme");
///
/// assert!(limiter.check(&caller).await.is_allowed());
/// let rejected = limiter.check(&caller).await;
/// tokio::time::sleep(rejected.retry_after().unwrap()).await;
/// assert!(limiter.check(&caller).await.is_allowed());
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: Instant,
}

impl Default for TokioClock {
    fn default() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        START.saturating_add(self.origin.elapsed())
    }
}
