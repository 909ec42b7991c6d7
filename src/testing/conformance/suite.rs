//! The settings of the conformance suite: [`Suite`].

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    backend::Backend,
    policy::{Consistency, Policy},
    quota::Algorithm,
};

/// The conformance suite, with settings.
///
/// To check a backend that needs a Tokio runtime, run the suite inside one with
/// several threads. The suite blocks its thread, and asks from threads of its
/// own.
///
/// ```
/// use tower_ratelimit::{backend::Local, testing::conformance::Suite};
///
/// Suite::new(Local::new)
///     .capped(|max_keys| Local::builder().max_keys(max_keys).build())
///     .keys(100)
///     .run();
/// ```
#[must_use]
pub struct Suite {
    pub(super) make: Box<dyn Fn() -> Arc<dyn Backend> + Send + Sync>,
    pub(super) make_capped: Option<MakeCapped>,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) keys: usize,
    pub(super) waits: bool,
    pub(super) in_flight: bool,
    /// Real time, and how late a request may be admitted.
    pub(super) real_time: Option<Duration>,
    /// The time after which a refund has arrived.
    pub(super) lag: Duration,
    pub(super) consistency: Consistency,
}

pub(super) type MakeCapped = Box<dyn Fn(usize) -> Arc<dyn Backend> + Send + Sync>;

impl Suite {
    /// A suite for backends from `make`. They may share a store, if it is
    /// empty: no two checks use the same rule.
    pub fn new<B: Backend>(make: impl Fn() -> B + Send + Sync + 'static) -> Self {
        Self {
            make: Box::new(move || Arc::new(make())),
            make_capped: None,
            algorithms: Algorithm::WINDOWED.into(),
            keys: 20_000,
            waits: true,
            in_flight: true,
            real_time: None,
            lag: Duration::ZERO,
            consistency: Consistency::Exact,
        }
    }

    /// Also checks the cap on keys, on backends that hold at most that many.
    pub fn capped<B: Backend>(mut self, make: impl Fn(usize) -> B + Send + Sync + 'static) -> Self {
        self.make_capped = Some(Box::new(move |max_keys| Arc::new(make(max_keys))));
        self
    }

    /// The algorithms that the backend supports, by default all that have a
    /// window. The token bucket must be one of them.
    pub fn algorithms(mut self, algorithms: impl IntoIterator<Item = Algorithm>) -> Self {
        self.algorithms = algorithms.into_iter().collect();
        self
    }

    /// The keys that eight threads compete for; 20,000 by default.
    pub fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// For a backend that never delays a request, but rejects it.
    pub fn without_waits(mut self) -> Self {
        self.waits = false;
        self
    }

    /// For a backend without concurrency limits, so without rules that use
    /// [`Quota::concurrent`](crate::Quota::concurrent).
    pub fn without_in_flight(mut self) -> Self {
        self.in_flight = false;
        self
    }

    /// For a backend with a clock of its own: real time passes. The suite then
    /// checks promised times `tolerance` later, and does not check that a
    /// request is rejected until just before.
    pub fn real_time(mut self, tolerance: Duration) -> Self {
        self.real_time = Some(tolerance);
        self
    }

    /// For a backend behind a network, which refunds in the background: the
    /// suite expects refunded units `lag` later. In [real
    /// time](Self::real_time), the tolerance must be more than twice `lag`.
    ///
    /// The backend must work on another runtime than the caller's, since the
    /// suite's own runtimes block at times. A backend built inside a runtime
    /// with several threads does.
    pub fn remote(mut self, lag: Duration) -> Self {
        self.lag = lag;
        self
    }

    /// The level at which all rules of the suite are decided; exact by default. A
    /// single instance that decides on leased units keeps the whole contract.
    pub fn consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }
}

impl Suite {
    /// The policy with all rules at the level that is checked.
    pub(super) fn at_level(&self, mut policy: Policy) -> Policy {
        policy.rules.iter_mut().for_each(|rule| rule.consistency = self.consistency);
        policy
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").finish_non_exhaustive()
    }
}
