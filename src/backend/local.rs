//! The default backend: [`Local`]. It passes every call to its engine, and decides nothing.

use std::sync::Arc;

use super::{
    contract::{Extension, forward_backend},
    in_process::InProcess,
    memory::{MAX_KEYS, engine::Engine, machine_source::FullQuota},
};

/// Decides in this process. Exact, synchronous, bounded in memory.
///
/// **Bounded**: the number of counters (one for each tier of a key) is capped,
/// at 1,000,000 by default. At the cap, a new key replaces an idle counter. If a
/// short search finds none, it displaces a counter in use: of up to 128 counters
/// of the same rule and tier, the one with the most units left. If the search
/// finds none of these either, the rule with the most counters gives one up. So
/// a flood of invented tenants rejects no newcomer, displaces itself before
/// tenants that sent more than it does, and rejects no request of another rule.
/// Counters with units in flight are never displaced. Nor are those with a debt,
/// or with reservations beyond a full quota, by keys of their own rule. Where
/// counters that stay fill the store, new keys share the rule's overflow counter.
///
/// **A flood buys little quota**: a displaced counter is kept aside as it is, and
/// counts again when its key returns: its use, refill, reservations, debt and
/// refunds. It does so until about `max_keys / 8` counters were displaced after it,
/// by keys of any rule. So for every `max_keys / 8` newcomers that a flood sends, a
/// tenant may get back what it had used, at most one quota, or be forgiven a debt.
/// A newcomer counts once for each tier; so does a displaced key that returns and
/// is admitted. The share of each shard is kept separately: `max_keys / 8` is the
/// mean, and small caps vary around it. The counters that are kept aside take a fifth
/// more memory at the default cap, and up to two thirds more at smaller ones, from the
/// first that is displaced. If a flood can send so many, raise the cap: the number grows
/// with it.
///
/// A settlement charges the overflow counter at most one capacity of the quota
/// (its burst, or what a window holds) and forgives the rest, so one tenant's
/// debt does not lock out all others that share the counter.
///
/// **Sliding logs are bounded in bytes**: all logs of a backend together take at
/// most 64 bytes for each counter of the cap (64 MB by default, 2 MB at least),
/// and 64 bytes for each log, displaced ones included. At that bound a log stops
/// growing. It then admits as many requests in a window as it has entries for, at
/// least four, until logs of other keys are idle and are dropped. Reservations of
/// requests that wait are not bounded by this, but by the limits on waiters.
///
/// **All or nothing**: all tiers of all rules that apply are decided and
/// charged under their locks, taken in one order. N threads never admit N+1.
///
/// **A clock that is set back** by ten seconds or more (only a custom
/// [`Clock`](crate::time::Clock) can be) does not reject keys for the whole jump:
/// a counter that is further ahead of the clock than it can be is moved back, with
/// what it has used; of a debt, what exceeds that is forgiven. So a key waits for
/// at most its window (two for sliding windows, for buckets the time in which they
/// fill) and the longest wait that was reserved so far. When the clock is set
/// forward again, a key may be admitted one more quota.
///
/// **Alone**: it talks to no other process. Cooldowns
/// ([`cool_down`](crate::RateLimiter::cool_down)) stay in this one.
///
/// ```
/// use tower_ratelimit::{Quota, RateLimiter, backend::Local};
///
/// let limiter = RateLimiter::builder()
///     .policy(Quota::per_second(10))
///     .backend(Local::builder().max_keys(50_000).build())
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Local {
    engine: Arc<Engine<FullQuota>>,
}

/// Builds a [`Local`].
///
/// ```
/// use tower_ratelimit::backend::Local;
///
/// // For a small machine: a key takes one counter for each tier.
/// let backend = Local::builder().max_keys(50_000).build();
/// # let _ = backend;
/// ```
#[derive(Clone, Debug)]
pub struct LocalBuilder {
    max_keys: usize,
}

impl Local {
    /// A backend for up to 1,000,000 counters.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Sets up a backend.
    #[must_use]
    pub fn builder() -> LocalBuilder {
        LocalBuilder { max_keys: MAX_KEYS }
    }
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

impl LocalBuilder {
    /// The most counters that are kept; a key takes one for each tier.
    #[must_use]
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// The backend.
    #[must_use]
    pub fn build(self) -> Local {
        Local { engine: Arc::new(Engine::full(self.max_keys)) }
    }
}

forward_backend!([] Local, self => self.engine, Some(self));

impl Extension for Local {
    fn engine(&self) -> Option<InProcess> {
        Some(InProcess(Arc::clone(&self.engine) as _))
    }
}
