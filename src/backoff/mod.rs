//! Exponential backoff per item: [`Backoff`].
//!
//! It knows neither policies nor backends, and keeps no names. Invariants: its memory is
//! bounded, and every item has exactly one entry in `ends`.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

use crate::{
    decision::{Decision, RateLimited, RateLimitedKind},
    descriptor::Descriptor,
    jitter::{doubled, shorten},
    limiter::{Permit, RateLimiter, sleep_until},
    sync::lock,
    time::{Clock, SystemClock, Timestamp, nanos},
};

/// Exponential backoff per item, as in Kubernetes controllers. After the first
/// failure in a row an item backs off for `base`, then for twice as long each
/// time, up to `max`. A success resets it.
///
/// The number of items is bounded, by 100,000 by default. At the bound, a new
/// failed item replaces the one whose wait ended first or ends next, so idle
/// items are replaced first. Items without failures take no memory. An item is what is
/// hashed, such as a name or a number, and is kept as 64 bits of a hash that is seeded at
/// random. So use one type: `7_u32` and `7_u64` are two items.
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
pub struct Backoff {
    base: Duration,
    max: Duration,
    max_items: usize,
    has_jitter: bool,
    clock: Box<dyn Clock>,
    hasher: RandomState,
    failed: Mutex<Failed>,
}

/// The items with failures, and which one to replace when they are at their bound.
#[derive(Default)]
struct Failed {
    /// By their hashes.
    items: HashMap<u64, Item>,
    /// The items by the end of their wait, then by age.
    ends: BTreeMap<(Timestamp, u64), u64>,
    next: u64,
}

#[derive(Clone, Copy)]
struct Item {
    failures: u32,
    until: Timestamp,
    delay: Duration,
    /// Unique to each failure.
    number: u64,
}

impl Backoff {
    /// Waits of `base`, doubled with each failure in a row, up to `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self {
            base,
            max,
            max_items: 100_000,
            has_jitter: false,
            clock: Box::new(SystemClock::new()),
            hasher: RandomState::new(),
            failed: Mutex::default(),
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
        self.lock().items.len()
    }

    fn lock(&self) -> MutexGuard<'_, Failed> {
        lock(&self.failed)
    }

    /// Records a failure. Returns the wait that follows.
    pub fn failed(&self, item: &(impl Hash + ?Sized)) -> Duration {
        let (item, now) = (self.hasher.hash_one(item), self.clock.now());
        let mut failed = self.lock();
        let before = failed.items.get(&item).copied();
        if let Some(before) = before {
            failed.ends.remove(&(before.until, before.number));
        } else if failed.items.len() >= self.max_items
            && let Some((_, first)) = failed.ends.pop_first()
        {
            failed.items.remove(&first);
        }
        let failures = before.map_or(0, |before| before.failures);
        let delay = doubled(self.base, failures, self.max);
        let delay = if self.has_jitter { shorten(delay) } else { delay };
        let (until, number) = (now.saturating_add(delay), failed.next);
        failed.next += 1;
        failed.items.insert(item, Item { failures: failures.saturating_add(1), until, delay, number });
        failed.ends.insert((until, number), item);
        delay
    }

    /// Records a success, which resets the item.
    pub fn succeeded(&self, item: &(impl Hash + ?Sized)) {
        let item = self.hasher.hash_one(item);
        let mut failed = self.lock();
        if let Some(known) = failed.items.remove(&item) {
            failed.ends.remove(&(known.until, known.number));
        }
    }

    /// The item's failures in a row, as far as they are remembered.
    pub fn failures(&self, item: &(impl Hash + ?Sized)) -> u32 {
        let item = self.hasher.hash_one(item);
        self.lock().items.get(&item).map_or(0, |item| item.failures)
    }

    /// The wait that is left. It never exceeds the wait at the time of the
    /// failure: if the clock was set back to before the failure, the wait
    /// restarts with this call.
    pub fn wait(&self, item: &(impl Hash + ?Sized)) -> Duration {
        self.left(item).map_or(Duration::ZERO, |(wait, _)| wait)
    }

    /// The wait that is left, and the number of its failure. `None` if it is
    /// over.
    fn left(&self, item: &(impl Hash + ?Sized)) -> Option<(Duration, u64)> {
        let item = self.hasher.hash_one(item);
        let mut failed = self.lock();
        let Failed { items, ends, .. } = &mut *failed;
        // Read under the lock, so that it is not before the failure, unless the
        // clock was set back.
        let now = self.clock.now();
        let known = items.get_mut(&item)?;
        if now.saturating_add(known.delay) < known.until {
            // The clock was set back: the wait restarts.
            ends.remove(&(known.until, known.number));
            known.until = now.saturating_add(known.delay);
            ends.insert((known.until, known.number), item);
        }
        let wait = known.until.saturating_since(now);
        (!wait.is_zero()).then_some((wait, known.number))
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
    /// rest of it as `retry_after`. Otherwise as [`RateLimiter::acquire`]: `NoRuntime` if
    /// the backoff would have to be waited for outside of a Tokio runtime.
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
    pub async fn acquire(
        &self,
        limiter: &RateLimiter,
        item: &(impl Hash + ?Sized),
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
    ) -> Result<Permit, RateLimited> {
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
            let rejection = if wait > left {
                Some((RateLimitedKind::BackingOff, Some(nanos(wait))))
            } else if Handle::try_current().is_err() {
                Some((RateLimitedKind::NoRuntime, None))
            } else {
                None
            };
            if let Some((kind, retry_after)) = rejection {
                let mut decision = Decision::unlimited();
                decision.reject(kind, now, retry_after);
                return Err(RateLimited::new(decision));
            }
            sleep_until(now.saturating_add(wait), || self.clock.now()).await;
            waited_for = Some(failure);
        }
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backoff")
            .field("base", &self.base)
            .field("max", &self.max)
            .field("max_items", &self.max_items)
            .field("jitter", &self.has_jitter)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
