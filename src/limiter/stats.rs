//! Counts of decisions: [`Stats`], and the counters of each thread behind it, with
//! its sampler. Each counter is written by one thread only.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    backend::Usage,
    observe::{RequestResult, Sampler},
};

/// One count for each [`RequestResult`]. Written by one thread only, read by any.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Counters {
    results: [AtomicU64; RequestResult::COUNT],
    pub(super) sampler: Sampler,
}

impl Counters {
    /// No other thread writes, so no locked instruction is needed.
    #[inline]
    pub(super) fn count(&self, event: RequestResult) {
        let counter = &self.results[event as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// All that this thread has decided.
    pub(super) fn decisions(&self) -> u64 {
        self.results.iter().fold(0, |sum, counter| sum.wrapping_add(counter.load(Ordering::Relaxed)))
    }

    pub(super) fn add_to(&self, totals: &mut Totals) {
        totals.iter_mut().zip(&self.results).for_each(|(total, counter)| *total += counter.load(Ordering::Relaxed));
    }
}

/// Sums of [`Counters`].
pub(super) type Totals = [u64; RequestResult::COUNT];

/// The decisions of a limiter since it was built, and its current state.
///
/// Requests to which no rule applied are not counted.
///
/// ```
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
/// for _ in 0..3 {
///     limiter.check(&Descriptor::new("/export").tenant("acme")).await;
/// }
/// let stats = limiter.stats();
/// assert_eq!((stats.allowed, stats.rejected), (1, 2));
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that were admitted at once.
    pub allowed: u64,
    /// Requests that were admitted after a wait.
    pub delayed: u64,
    /// Requests that were rejected.
    pub rejected: u64,
    /// How often a shadow rule would have admitted.
    pub shadow_allowed: u64,
    /// How often a shadow rule would have rejected.
    pub shadow_rejected: u64,
    /// Requests that were admitted because the backend failed.
    pub failed_open: u64,
    /// Requests that were rejected because the backend failed.
    pub failed_closed: u64,
    /// Requests that the fallback limiter admitted while the backend failed.
    /// Those that it rejected are counted in `rejected`.
    pub failed_local: u64,
    /// Requests that were rejected before any rule, since the process was
    /// [overloaded](crate::overload).
    pub shed: u64,
    /// Requests that are waiting.
    pub waiting: usize,
    /// Admitted requests that keep a lease: [`Permit`](crate::Permit)s, and
    /// requests in flight under a concurrency limit. If a layer
    /// [names its rule](crate::RateLimitLayer::rule), those of all layers until
    /// their response.
    pub permits: usize,
    /// The counters of the backend.
    pub backend: Usage,
    /// The counters of the fallback limiter
    /// ([`FailureMode::Local`](crate::FailureMode::Local)).
    pub fallback: Usage,
}

impl Stats {
    pub(super) fn new(totals: &Totals, backend: Usage) -> Self {
        let count = |result: RequestResult| totals[result as usize];
        Self {
            allowed: count(RequestResult::Allowed),
            delayed: count(RequestResult::Delayed),
            rejected: count(RequestResult::Rejected),
            shadow_allowed: count(RequestResult::ShadowAllowed),
            shadow_rejected: count(RequestResult::ShadowRejected),
            failed_open: count(RequestResult::FailedOpen),
            failed_closed: count(RequestResult::FailedClosed),
            failed_local: count(RequestResult::FailedLocal),
            shed: count(RequestResult::Shed),
            backend,
            ..Self::default()
        }
    }

    /// The number of counters in this process. Idle ones count until they are removed, which
    /// happens when others are added.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.backend.keys + self.fallback.keys
    }
}
