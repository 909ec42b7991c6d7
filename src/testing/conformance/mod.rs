//! Checks whether a [`Backend`] keeps the contract: limits are never exceeded,
//! charges are all or nothing, times are exact, waits are in order, usage
//! outlives a reload, a peek charges nothing and a reset forgets (where a backend
//! supports them), memory is bounded.
//!
//! Use [`run`] for a backend that reads the time from the limiter, and a
//! [`Suite`] for one with a clock of its own, or with a cap on its keys.

mod admission;
mod bench;
mod waits;

use std::{any::Any, fmt, sync::Arc, thread, time::Duration};

use self::bench::{Executor, Fixture};
use crate::{
    backend::Backend,
    policy::{Consistency, Policy},
    quota::Algorithm,
};

type Check = fn(&Fixture<'_>);

const CHECKS: [(&str, Check); 18] = [
    ("limits are never exceeded", admission::limits_are_never_exceeded),
    ("all or nothing over tiers", admission::all_or_nothing_over_tiers),
    ("all or nothing over rules", admission::all_or_nothing_over_rules),
    ("all or nothing over keys", admission::all_or_nothing_over_keys),
    ("a rejection charges nothing", admission::a_rejection_charges_nothing),
    ("retry_after is exact", admission::retry_after_is_exact),
    ("a reload keeps usage", admission::outlives_a_reload),
    ("limits of the request", admission::limits_of_the_request),
    ("waits are reservations", waits::are_reservations),
    ("a wait suits all tiers", waits::suit_all_tiers),
    ("a dropped wait is refunded", waits::are_refunded_when_dropped),
    ("the whole rate is used", waits::use_the_whole_rate),
    ("concurrency limits are never exceeded", waits::in_flight_limits_are_never_exceeded),
    ("concurrency limits are all or nothing", waits::in_flight_is_all_or_nothing),
    ("concurrency limits queue in order", waits::waiters_are_admitted_in_order),
    ("a peek charges nothing", admission::is_not_changed_by_a_peek),
    ("a reset forgets what was used", admission::is_forgotten_by_a_reset),
    ("the cap on keys holds", admission::is_bounded),
];

/// Runs the whole suite on backends from `make`, on a manual clock. Every check
/// takes a new backend.
///
/// # Panics
///
/// If the backend breaks the contract. The message starts with the name of the
/// check.
///
/// ```no_run
/// use tower_ratelimit::{backend::Local, testing::conformance};
///
/// conformance::run(Local::new);
/// ```
pub fn run<B: Backend>(make: impl Fn() -> B + Send + Sync + 'static) {
    Suite::new(make).run();
}

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
    make: Box<dyn Fn() -> Arc<dyn Backend> + Send + Sync>,
    make_capped: Option<MakeCapped>,
    algorithms: Vec<Algorithm>,
    keys: usize,
    waits: bool,
    in_flight: bool,
    /// Real time, and how late a request may be admitted.
    real_time: Option<Duration>,
    /// The time after which a refund has arrived.
    lag: Duration,
    consistency: Consistency,
}

type MakeCapped = Box<dyn Fn(usize) -> Arc<dyn Backend> + Send + Sync>;

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

    /// Runs every check, each on a new backend.
    ///
    /// # Panics
    ///
    /// If the backend breaks the contract. The message starts with the check's
    /// name.
    pub fn run(self) {
        let executor = Executor::of_caller();
        let fixture = Fixture { suite: &self, executor: &executor };
        for (name, check) in CHECKS {
            // The caller's thread may belong to a runtime, where blocking on
            // futures is not allowed.
            let result = thread::scope(|scope| scope.spawn(|| check(&fixture)).join());
            if let Err(panic) = result {
                panic!("{name}: {}", message(&*panic));
            }
        }
    }

    /// The policy with all rules at the level that is checked.
    fn at_level(&self, mut policy: Policy) -> Policy {
        policy.rules.iter_mut().for_each(|rule| rule.consistency = self.consistency);
        policy
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite")
            .field("algorithms", &self.algorithms)
            .field("keys", &self.keys)
            .field("real_time", &self.real_time)
            .field("lag", &self.lag)
            .finish_non_exhaustive()
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(message), _) => message,
        (None, Some(message)) => message,
        (None, None) => "panicked",
    }
}
