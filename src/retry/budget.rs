//! A shared bound on retries: [`RetryBudget`].
//!
//! Invariant: threads never take more than there is.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use tokio::time::Instant;
use tower::retry::budget::Budget;

use crate::{sync::lock, time::nanos};

/// One retry in units of the budget's level. Both a nanosecond at a whole rate
/// and a request at a whole percentage then add whole units.
const RETRY: u64 = 1_000_000_000;

/// A bound on retries: a share of the requests, and a number per second.
///
/// It is a bucket of retries, full at first. Each request that is no retry adds
/// a fraction of a retry, and so does time. Whatever the number of threads, N
/// requests in t seconds permit at most `reserve + N * percent / 100 + t *
/// per_second` retries.
///
/// By default 20 percent, 5 a second, and a reserve of 100. Clones share the
/// level; give one budget to all policies that call the same upstream.
///
/// Any other tower [`Budget`] works in its place. This one differs from
/// [`TpsBudget`](tower::retry::budget::TpsBudget): threads never take more than
/// there is, a share such as 70 percent is not rounded up to 100, and no value
/// makes it panic.
///
/// ```
/// use tower::retry::budget::Budget;
/// use tower_ratelimit::retry::RetryBudget;
///
/// let budget = RetryBudget::new().percent(10).per_second(0).reserve(1);
/// assert!(budget.withdraw());
/// assert!(!budget.withdraw());
/// for _request in 0..10 {
///     budget.deposit();
/// }
/// assert!(budget.withdraw());
/// ```
#[derive(Clone)]
#[must_use]
pub struct RetryBudget {
    /// Added by a request.
    per_request: u64,
    /// Added by a nanosecond.
    per_nano: u64,
    most: u64,
    state: Arc<Mutex<State>>,
}

struct State {
    level: u64,
    /// The time up to which the level is filled.
    filled: Instant,
}

impl RetryBudget {
    /// The default budget, full.
    pub fn new() -> Self {
        Self::full(20 * RETRY / 100, 5, 100 * RETRY)
    }

    /// The number of retries per 100 requests.
    pub fn percent(self, percent: u32) -> Self {
        Self::full(u64::from(percent) * (RETRY / 100), self.per_nano, self.most)
    }

    /// The number of retries per second on top of that share, for clients with
    /// few requests.
    pub fn per_second(self, retries: u32) -> Self {
        Self::full(self.per_request, u64::from(retries), self.most)
    }

    /// The most retries that are saved up, and the number at the start. 0
    /// disables retries.
    pub fn reserve(self, retries: u32) -> Self {
        Self::full(self.per_request, self.per_nano, u64::from(retries) * RETRY)
    }

    /// A new level: settings never change under clones that share one.
    fn full(per_request: u64, per_nano: u64, most: u64) -> Self {
        let state = State { level: most, filled: Instant::now() };
        Self { per_request, per_nano, most, state: Arc::new(Mutex::new(state)) }
    }

    /// Adds the retries of the elapsed time, and lets `change` change the level.
    fn with_level<T>(&self, change: impl FnOnce(&mut u64) -> T) -> T {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let passed = nanos(now.saturating_duration_since(state.filled));
        state.filled = now;
        state.level = state.level.saturating_add(passed.saturating_mul(self.per_nano)).min(self.most);
        change(&mut state.level)
    }

    /// The whole retries that are left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.with_level(|level| *level / RETRY)
    }
}

impl Budget for RetryBudget {
    fn deposit(&self) {
        self.with_level(|level| *level = level.saturating_add(self.per_request).min(self.most));
    }

    fn withdraw(&self) -> bool {
        self.with_level(|level| {
            let left = level.checked_sub(RETRY);
            *level = left.unwrap_or(*level);
            left.is_some()
        })
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBudget")
            .field("percent", &(self.per_request / (RETRY / 100)))
            .field("per_second", &self.per_nano)
            .field("reserve", &(self.most / RETRY))
            .field("left", &self.left())
            .finish()
    }
}
