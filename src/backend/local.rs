//! The default backend: [`Local`].

use std::sync::Arc;

use super::{
    contract::{Backend, forward_backend},
    in_process::{InProcess, Kind},
    memory::{MAX_KEYS, engine::Engine, machine_source::FullQuota},
};

/// Decides in this process. Exact, synchronous, bounded in memory.
///
/// **Bounded**: the number of counters (one for each tier of a key) is capped,
/// at 1,000,000 by default. At the cap, a new key replaces an idle counter. If
/// a short search finds none, the key uses its rule's overflow counter instead
/// of evicting a live one. So a flood of invented tenants does not grow
/// memory, and gets no more than the overflow counter admits. A key that gets an entry
/// later starts there with a full quota. A settlement charges the overflow
/// counter at most one capacity of the quota (its burst, or what a window
/// holds) and forgives the rest, so one tenant's debt does not shut out all
/// others that share the counter.
///
/// **All or nothing**: all tiers of all rules that apply are decided and
/// charged under their locks, taken in one order. N threads never admit N+1.
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

impl Backend for Local {
    forward_backend!(self => self.engine);

    fn in_process(&self) -> Option<InProcess> {
        Some(InProcess(Kind::Full(Arc::clone(&self.engine))))
    }
}
