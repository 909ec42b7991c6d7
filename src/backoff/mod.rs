//! Exponential backoff per item: [`Backoff`].
//!
//! It knows neither policies nor backends. Its memory is bounded.

mod items;

use std::{
    borrow::Borrow,
    fmt,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use self::items::Items;
use crate::{
    decision::{Decision, RateLimited, RateLimitedKind},
    descriptor::Descriptor,
    jitter::shorten,
    limiter::{Permit, RateLimiter, sleep_until},
    time::{Clock, SystemClock, nanos},
};

/// Exponential backoff per item, as in Kubernetes controllers. After the first
/// failure in a row an item backs off for `base`, then for twice as long each
/// time, up to `max`. A success resets it.
///
/// The number of items is bounded, by 100,000 by default. At the bound, a new
/// failed item replaces the one whose wait ended first or ends next, so idle
/// items are replaced first. Items without failures take no memory.
///
/// [`Backoff::acquire`] combines it with any limiter: the longer wait of both
/// counts.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Backoff, testing::ManualClock};
///
/// let clock = ManualClock::new();
/// let backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1)).clock(clock.clone());
/// assert_eq!(backoff.failed("pod-7"), Duration::from_millis(5));
/// assert_eq!(backoff.failed("pod-7"), Duration::from_millis(10));
/// assert_eq!(backoff.wait("pod-7"), Duration::from_millis(10));
/// assert_eq!(backoff.wait("pod-8"), Duration::ZERO);
///
/// clock.advance(Duration::from_millis(4));
/// assert_eq!(backoff.wait("pod-7"), Duration::from_millis(6));
/// backoff.succeeded("pod-7");
/// assert_eq!((backoff.failures("pod-7"), backoff.wait("pod-7")), (0, Duration::ZERO));
/// ```
#[must_use]
pub struct Backoff<K = String> {
    base: u64,
    max: u64,
    max_items: usize,
    has_jitter: bool,
    clock: Box<dyn Clock>,
    items: Mutex<Items<K>>,
}

impl<K> Backoff<K> {
    /// Waits of `base`, doubled with each failure in a row, up to `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self {
            base: nanos(base),
            max: nanos(max),
            max_items: 100_000,
            has_jitter: false,
            clock: Box::new(SystemClock::new()),
            items: Mutex::new(Items::new()),
        }
    }

    /// The most items, at least one.
    pub fn max_items(mut self, items: usize) -> Self {
        self.max_items = items.max(1);
        self
    }

    /// Whether to shorten each wait at random, by up to half, so that items
    /// that failed together are not retried together. Off by default.
    pub fn jitter(mut self, jitter: bool) -> Self {
        self.has_jitter = jitter;
        self
    }

    /// The clock; the [`SystemClock`] by default.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// The number of items with failures.
    #[must_use]
    pub fn items(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Items<K>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The wait after `failures` failures in a row.
    fn delay(&self, failures: u32) -> Duration {
        let doubled = match failures.saturating_sub(1) {
            shift if shift < self.base.leading_zeros() => self.base << shift,
            _ if self.base == 0 => 0,
            _ => u64::MAX,
        };
        let delay = Duration::from_nanos(doubled.min(self.max));
        if self.has_jitter { shorten(delay) } else { delay }
    }
}

impl<K: Hash + Eq + Clone> Backoff<K> {
    /// Records a failure. Returns the wait that follows.
    pub fn failed<Q>(&self, item: &Q) -> Duration
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let now = self.clock.now().as_nanos();
        let delay = self.lock().fail(item, self.max_items, |failures| {
            let delay = nanos(self.delay(failures));
            (now.saturating_add(delay), delay)
        });
        Duration::from_nanos(delay)
    }

    /// Records a success, which resets the item.
    pub fn succeeded<Q>(&self, item: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.lock().forget(item);
    }

    /// The item's failures in a row, as far as they are remembered.
    pub fn failures<Q>(&self, item: &Q) -> u32
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.lock().get(item).map_or(0, |item| item.failures)
    }

    /// The wait that is left. It never exceeds the wait at the time of the
    /// failure: if the clock was set back to before the failure, the wait
    /// restarts with this call.
    pub fn wait<Q>(&self, item: &Q) -> Duration
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.left(item).map_or(Duration::ZERO, |(wait, _)| wait)
    }

    /// The wait that is left, and the number of its failure. `None` if it is
    /// over.
    fn left<Q>(&self, item: &Q) -> Option<(Duration, u64)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut items = self.lock();
        // Read under the lock, so that it is not before the failure, unless the
        // clock was set back.
        let now = self.clock.now().as_nanos();
        let known = items.get_at(item, now)?;
        let wait = known.until.saturating_sub(now);
        (wait > 0).then(|| (Duration::from_nanos(wait), known.number))
    }

    /// Waits until the item's backoff is over, then acquires from `limiter`,
    /// both within `max_wait`.
    ///
    /// It reserves with the limiter only then: an earlier reservation would
    /// delay others. The caller reports the outcome by [`failed`](Self::failed)
    /// or [`succeeded`](Self::succeeded). If the item fails again during the
    /// sleep, the wait is extended. If the clock is set back, the wait grows by
    /// at most a quarter.
    ///
    /// # Errors
    ///
    /// `BackingOff`, at once, if the backoff alone exceeds `max_wait`, with the
    /// rest of it as `retry_after`. Otherwise as [`RateLimiter::acquire`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Backoff, Descriptor, Quota, RateLimitedKind, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::new(Quota::per_second(50)).unwrap();
    /// let backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(3_600));
    /// backoff.failed("pod-7");
    ///
    /// let calls = Descriptor::new("/reconcile");
    /// let rejected = backoff.acquire(&limiter, "pod-7", &calls, Duration::from_secs(1)).await.unwrap_err();
    /// assert_eq!(rejected.kind(), RateLimitedKind::BackingOff);
    /// assert!(backoff.acquire(&limiter, "pod-8", &calls, Duration::from_secs(1)).await.is_ok());
    /// # }
    /// ```
    pub async fn acquire<Q>(
        &self,
        limiter: &RateLimiter,
        item: &Q,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
    ) -> Result<Permit, RateLimited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let longest = max_wait.min(descriptor.longest_wait());
        let start = Instant::now();
        let mut waited_for = None;
        loop {
            let left = longest.saturating_sub(start.elapsed());
            // Each failure is waited for once, even if the clock is set back.
            let waits = self.left(item).filter(|(_, failure)| waited_for != Some(*failure));
            let Some((wait, failure)) = waits else {
                // The descriptor's deadline is a point in time or a duration.
                // `left` is right for both.
                return limiter.acquire(descriptor, left).await;
            };
            let now = self.clock.now();
            if wait > left {
                let mut decision = Decision::unlimited();
                decision.reject(RateLimitedKind::BackingOff, now, Some(nanos(wait)));
                return Err(RateLimited::new(decision));
            }
            sleep_until(now.saturating_add(wait), || self.clock.now()).await;
            waited_for = Some(failure);
        }
    }
}

impl<K> fmt::Debug for Backoff<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backoff")
            .field("base", &Duration::from_nanos(self.base))
            .field("max", &Duration::from_nanos(self.max))
            .field("max_items", &self.max_items)
            .field("jitter", &self.has_jitter)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
