//! Leaving alone for a while what has failed: [`Backoff`].

mod items;

use std::{
    borrow::Borrow,
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hash},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use self::items::Items;
use crate::{
    decision::{Decision, RateLimited, RateLimitedKind},
    descriptor::Descriptor,
    limiter::{Permit, RateLimiter, sleep_until},
    time::{Clock, SystemClock, nanos},
};

/// Exponential backoff for each item by itself, as controllers know it: after
/// its first failure in a row an item is left alone for `base`, then for twice
/// as long each time, up to `max`; a success forgets it all.
///
/// How many items are remembered is bounded, by 100,000 unless set. At the
/// bound, one that fails anew takes the place of the one whose wait is over
/// for the longest, or is the first to be: so items that are idle go first.
/// Nothing is remembered of items that have not failed.
///
/// Composes with any policy by [`Backoff::acquire`], the worse of both
/// deciding.
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
pub struct Backoff<K = String> {
    base: u64,
    max: u64,
    max_items: usize,
    /// Where the next random number comes from; `None` without jitter.
    jitter: Option<AtomicU64>,
    clock: Box<dyn Clock>,
    items: Mutex<Items<K>>,
}

impl<K> Backoff<K> {
    /// Waits from `base` on, doubled with each failure in a row, up to `max`.
    #[must_use]
    pub fn new(base: Duration, max: Duration) -> Self {
        Self {
            base: nanos(base),
            max: nanos(max),
            max_items: 100_000,
            jitter: None,
            clock: Box::new(SystemClock::new()),
            items: Mutex::new(Items::new()),
        }
    }

    /// How many items are remembered at the most, at least one.
    #[must_use]
    pub fn max_items(mut self, items: usize) -> Self {
        self.max_items = items.max(1);
        self
    }

    /// Whether each wait is cut at random, to between half of it and all of
    /// it, so that what failed together is not tried together. Not by default.
    #[must_use]
    pub fn jitter(mut self, jitter: bool) -> Self {
        self.jitter = jitter.then(|| AtomicU64::new(RandomState::new().hash_one(0)));
        self
    }

    /// Where the time is read; the [`SystemClock`] by default.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// How many items are remembered.
    #[must_use]
    pub fn items(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Items<K>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The wait after so many failures in a row, in nanoseconds.
    fn delay(&self, failures: u32) -> u64 {
        let doubled = match failures.saturating_sub(1) {
            shift if shift < self.base.leading_zeros() => self.base << shift,
            _ if self.base == 0 => 0,
            _ => u64::MAX,
        };
        let delay = doubled.min(self.max);
        match &self.jitter {
            Some(seed) => delay - scale(random(seed), delay / 2),
            None => delay,
        }
    }
}

impl<K: Hash + Eq + Clone> Backoff<K> {
    /// Notes a failure; for how long the item is left alone now.
    pub fn failed<Q>(&self, item: &Q) -> Duration
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let now = self.clock.now().as_nanos();
        let delay = self.lock().fail(item, self.max_items, |failures| {
            let delay = self.delay(failures);
            (now.saturating_add(delay), delay)
        });
        Duration::from_nanos(delay)
    }

    /// Notes a success: the item's failures are forgotten.
    pub fn succeeded<Q>(&self, item: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.lock().forget(item);
    }

    /// How often the item has failed in a row, as far as is remembered.
    pub fn failures<Q>(&self, item: &Q) -> u32
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.lock().get(item).map_or(0, |item| item.failures)
    }

    /// For how long the item is still to be left alone. Never longer than it
    /// was when it failed: where the clock was set back to before that, the
    /// wait starts anew when this is asked, and is over as long after it.
    pub fn wait<Q>(&self, item: &Q) -> Duration
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.left(item).map_or(Duration::ZERO, |(wait, _)| wait)
    }

    /// The wait that is left, and for which failure; `None` where it is over.
    fn left<Q>(&self, item: &Q) -> Option<(Duration, u64)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut items = self.lock();
        // Read under the lock: not before the failure, unless set back.
        let now = self.clock.now().as_nanos();
        let known = items.get_at(item, now)?;
        let wait = known.until.saturating_sub(now);
        (wait > 0).then(|| (Duration::from_nanos(wait), known.number))
    }

    /// Waits until the item's backoff is over, and then for its turn with
    /// `limiter`; both within `max_wait`.
    ///
    /// The turn is reserved only then: one made ahead of its time would hold
    /// up others who could go meanwhile. Whoever calls this says later how it
    /// went, by [`failed`](Self::failed) or [`succeeded`](Self::succeeded).
    /// While it sleeps the item may fail again: then it waits for longer.
    /// A clock that is set back meanwhile holds it up by no more than a quarter
    /// of what it was to wait.
    ///
    /// # Errors
    ///
    /// `BackingOff`, at once, where the backoff alone is longer than the wait
    /// allowed, with what is left of it as `retry_after`; else as
    /// [`RateLimiter::acquire`].
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
        let mut served = None;
        loop {
            let left = longest.saturating_sub(start.elapsed());
            // A failure is slept for once, whatever the clock says then.
            let waits = self.left(item).filter(|(_, failure)| served != Some(*failure));
            let Some((wait, failure)) = waits else {
                // A deadline in the descriptor is either a point in time or as
                // long as it was: `left` is right for both.
                return limiter.acquire(descriptor, left).await;
            };
            let now = self.clock.now();
            if wait > left {
                let mut decision = Decision::unlimited();
                decision.reject(RateLimitedKind::BackingOff, now, Some(nanos(wait)));
                return Err(RateLimited::new(decision));
            }
            sleep_until(now.saturating_add(wait), || self.clock.now()).await;
            served = Some(failure);
        }
    }
}

impl<K> fmt::Debug for Backoff<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backoff")
            .field("base", &Duration::from_nanos(self.base))
            .field("max", &Duration::from_nanos(self.max))
            .field("max_items", &self.max_items)
            .field("jitter", &self.jitter.is_some())
            .finish_non_exhaustive()
    }
}

/// SplitMix64: nobody has to be kept from guessing.
fn random(seed: &AtomicU64) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let z = seed.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Maps a word to 0..=most, evenly.
#[allow(clippy::cast_possible_truncation, reason = "no more than `most`")]
fn scale(word: u64, most: u64) -> u64 {
    ((u128::from(word) * (u128::from(most) + 1)) >> 64) as u64
}

#[cfg(test)]
mod tests;
