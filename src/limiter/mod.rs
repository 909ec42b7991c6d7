//! A policy, a backend and a clock: [`RateLimiter`]. Usable without tower.

mod builder;
mod check;
mod current;
mod decide;
mod report;
mod stats;

use std::{
    any::Any,
    sync::{Arc, OnceLock},
};

use self::current::Current;
pub(crate) use self::decide::{Deciding, Reservation, Unfinished};
pub use self::{builder::RateLimiterBuilder, check::Check, stats::Stats};
use crate::{
    backend::{Backend, Local},
    descriptor::Descriptor,
    error::ConfigError,
    policy::{Compiled, Policy},
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
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    current: Current,
    backend: Backing,
    clock: Timepiece,
    /// Decides for rules that fail to a local limiter.
    fallback: OnceLock<Local>,
}

/// The backend; the one that comes with every limiter is called directly.
#[derive(Debug)]
enum Backing {
    Local(Local),
    Other(Box<dyn Backend>),
}

/// The clock; the default one is called directly.
#[derive(Debug)]
enum Timepiece {
    System(SystemClock),
    Other(Box<dyn Clock>),
}

impl Timepiece {
    #[inline]
    fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Other(clock) => clock.now(),
        }
    }
}

impl Backing {
    fn new(backend: impl Backend) -> Self {
        let mut backend = Some(backend);
        // The one way to know a type by its value without naming it.
        match (&mut backend as &mut dyn Any).downcast_mut::<Option<Local>>().and_then(Option::take) {
            Some(local) => Self::Local(local),
            None => match backend {
                Some(backend) => Self::Other(Box::new(backend)),
                None => Self::Local(Local::new()),
            },
        }
    }

    fn get(&self) -> &dyn Backend {
        match self {
            Self::Local(local) => local,
            Self::Other(backend) => &**backend,
        }
    }
}

impl RateLimiter {
    /// A limiter in this process, on the system's clock.
    ///
    /// # Errors
    ///
    /// Where the policy cannot hold: names the rule, the key and the value.
    pub fn new(policy: impl Into<Policy>) -> Result<Self, ConfigError> {
        Self::builder().policy(policy).build()
    }

    /// A limiter with a backend or a clock of its own.
    pub fn builder() -> RateLimiterBuilder {
        RateLimiterBuilder::new()
    }

    /// Decides a request, and charges it where all rules that apply let it
    /// pass. Never waits for a turn.
    ///
    /// Without a backend that has to be asked over a network, the answer is
    /// there at the first poll.
    #[inline]
    pub fn check<'a>(&'a self, descriptor: &'a Descriptor<'_>) -> Check<'a> {
        Check { limiter: self, descriptor, deciding: None }
    }

    /// Puts another policy in force, at once and for all clones.
    ///
    /// Each key keeps what it has *used* of the tiers whose rule, algorithm
    /// and window stay; limits, bursts and all else may change. (But a bucket
    /// whose exact rate needs more than 32 bits, or whose burst takes more
    /// than four centuries, is kept in another form: changing to or from it
    /// starts it anew.) A rule's id is kept for as long as the process lives:
    /// change what is in a rule, not its name.
    ///
    /// # Errors
    ///
    /// Where the policy cannot hold; then the old one stays in force.
    pub fn set_policy(&self, policy: impl Into<Policy>) -> Result<(), ConfigError> {
        self.inner.current.set(Compiled::new(policy.into())?);
        Ok(())
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.inner.current.policy().policy)
    }

    /// What was decided since the limiter was made, and what is held. Sums up
    /// what every thread has counted: for a page of figures, not for a hot
    /// path. With the feature `metrics`, sets the gauge `rate_limiting.keys`
    /// as well.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let usage = self.inner.backend.get().usage();
        #[cfg(feature = "metrics")]
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("rate_limiting.keys").set(usage.keys as f64);
        Stats::new(&self.inner.current.totals(), usage)
    }

    /// The time on the limiter's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }
}
