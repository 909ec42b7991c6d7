use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;
use tower::retry::budget::Budget;

use crate::time::nanos;

/// One retry, in the unit of a budget's level: then both a nanosecond at a
/// whole rate and a request at a whole percentage add whole units.
const RETRY: u64 = 1_000_000_000;

/// How many retries there may be: a share of the requests, and some a second.
///
/// A bucket of retries, full at first. Each request that is not a retry puts a
/// fraction of one in, and so does time; what does not fit is lost. So however
/// many threads ask, N requests in t seconds lead to at most
/// `reserve + N * percent / 100 + t * per_second` retries.
///
/// By default 20 percent, 5 a second, and a reserve of 100. Clones share what
/// is left; give one to several policies that call the same provider.
///
/// Any other [`Budget`] of tower's will do in its place. This one differs from
/// [`TpsBudget`](tower::retry::budget::TpsBudget) in that threads never take
/// more than is there, in that a share like 70 percent is not rounded up to all
/// of them, and in that no value makes it panic.
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
pub struct RetryBudget {
    /// What a request puts in.
    per_request: u64,
    /// What a nanosecond puts in.
    per_nano: u64,
    most: u64,
    state: Arc<State>,
}

struct State {
    level: AtomicU64,
    origin: Instant,
    /// Nanoseconds since `origin`, up to which time has put in its part.
    filled: AtomicU64,
}

impl RetryBudget {
    /// The default budget, full.
    #[must_use]
    pub fn new() -> Self {
        Self::full(20 * RETRY / 100, 5, 100 * RETRY)
    }

    /// How many retries there may be for 100 requests.
    #[must_use]
    pub fn percent(self, percent: u32) -> Self {
        Self::full(u64::from(percent) * (RETRY / 100), self.per_nano, self.most)
    }

    /// How many retries there may be each second on top of that, so that those
    /// who seldom ask have some too.
    #[must_use]
    pub fn per_second(self, retries: u32) -> Self {
        Self::full(self.per_request, u64::from(retries), self.most)
    }

    /// How many retries are saved up at the most, and there at first. With 0
    /// there are none ever.
    #[must_use]
    pub fn reserve(self, retries: u32) -> Self {
        Self::full(self.per_request, self.per_nano, u64::from(retries) * RETRY)
    }

    /// A budget of its own: settings never change under those who share one.
    fn full(per_request: u64, per_nano: u64, most: u64) -> Self {
        let state = State { level: AtomicU64::new(most), origin: Instant::now(), filled: AtomicU64::new(0) };
        Self { per_request, per_nano, most, state: Arc::new(state) }
    }

    fn put(&self, amount: u64) {
        let level = &self.state.level;
        // All can see a full one without taking it from each other.
        if amount > 0 && level.load(Ordering::Relaxed) < self.most {
            let fill = |level: u64| Some(level.saturating_add(amount).min(self.most));
            // Never rejected: the closure always gives a value.
            let _ = level.fetch_update(Ordering::AcqRel, Ordering::Acquire, fill);
        }
    }

    /// Puts in what time has brought. Each nanosecond counts once, for whoever
    /// moves `filled` over it.
    fn fill(&self) {
        let now = nanos(self.state.origin.elapsed());
        let filled = self.state.filled.fetch_max(now, Ordering::AcqRel);
        self.put(now.saturating_sub(filled).saturating_mul(self.per_nano));
    }

    /// How many retries are left, in whole ones.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.fill();
        self.state.level.load(Ordering::Acquire) / RETRY
    }
}

impl Budget for RetryBudget {
    fn deposit(&self) {
        self.put(self.per_request);
    }

    fn withdraw(&self) -> bool {
        self.fill();
        let take = |level: u64| level.checked_sub(RETRY);
        self.state.level.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
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
