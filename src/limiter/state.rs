//! What all clones of a limiter share: the policy in force, the backend, the
//! clock, and the queues of those that wait. It decides nothing itself.
//!
//! The types in here know nothing of [`RateLimiter`], so that each can be read
//! and tested without it.

use std::sync::{Arc, OnceLock};

use super::{
    adaptive::rates::Rates,
    cooldown::keys::Cooldowns,
    current::Current,
    grant::Grant,
    observe::{BackendMetrics, Gauge},
    wait::{capacity::WaiterLimit, fifo::WaitQueues, slots::SlotQueues},
};
use crate::{
    backend::{Backend, InProcess},
    time::{Clock, SystemClock, Timestamp},
};

/// Decides requests by a policy. Cheap to clone; clones share everything.
///
/// ```
/// use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// let limiter = RateLimiter::new(Policy::new().rule(
///     // Both must pass, or neither is charged.
///     Rule::new("search").path("/search").tier(Quota::per_second(2)).tier(Quota::per_hour(500)),
/// ))?;
///
/// let decision = limiter.check(&Descriptor::new("/search").method("GET").tenant("acme")).await;
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimiter {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) current: Current,
    pub(super) backend: Backing,
    pub(super) clock: Timepiece,
    /// Decides for rules with `FailureMode::Local` while the backend fails.
    pub(super) fallback: OnceLock<InProcess>,
    pub(super) waiters: Arc<WaiterLimit>,
    pub(super) queues: Arc<WaitQueues>,
    pub(super) slots: SlotQueues<Grant>,
    pub(super) rates: Rates,
    pub(super) cooldowns: Cooldowns,
    /// The requests that keep a lease.
    pub(super) permits: Gauge,
    pub(super) backend_metrics: BackendMetrics,
}

/// The backend. One that decides in this process is called without dynamic
/// dispatch.
#[derive(Debug)]
pub(super) enum Backing {
    InProcess(InProcess),
    Other(Box<dyn Backend>),
}

impl Backing {
    pub(super) fn new(backend: impl Backend) -> Self {
        match backend.in_process() {
            Some(engine) => Self::InProcess(engine),
            None => Self::Other(Box::new(backend)),
        }
    }

    pub(super) fn get(&self) -> &dyn Backend {
        match self {
            Self::InProcess(engine) => engine.as_backend(),
            Self::Other(backend) => &**backend,
        }
    }
}

/// The clock. The default one is called without dynamic dispatch.
#[derive(Debug)]
pub(super) enum Timepiece {
    System(SystemClock),
    Other(Box<dyn Clock>),
}

impl Timepiece {
    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Other(clock) => clock.now(),
        }
    }
}

impl RateLimiter {
    /// The time on the limiter's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The limiter that decides in place of a backend that fails.
    pub(super) fn fallback(&self) -> &InProcess {
        self.inner.fallback.get_or_init(InProcess::default)
    }
}
