//! Says whether a [`Backend`] keeps the contract: never one too many, all or
//! nothing, exact times, turns in order, counts that outlive a reload, bounded
//! memory.
//!
//! [`run`] for a backend that reads the time from the limiter; a [`Suite`] for
//! one with a clock of its own, or with a cap on its keys.

mod acquire;
mod admission;
mod bench;
mod cap;
mod in_flight;
mod reload;
mod remote;
mod waits;

use std::{any::Any, fmt, sync::Arc, thread, time::Duration};

use self::bench::{Executor, Time};
use crate::{backend::Backend, quota::Algorithm};

/// Runs the whole suite on the backends that `make` makes, on a clock moved
/// by hand. Every check takes a new one.
///
/// # Panics
///
/// Where the contract is broken: names the check.
///
/// ```no_run
/// use tower_ratelimit::{backend::Local, testing::conformance};
///
/// conformance::run(Local::new);
/// ```
pub fn run<B: Backend>(make: impl Fn() -> B + Send + Sync + 'static) {
    Suite::new(make).run();
}

/// The suite, with settings.
///
/// A backend that needs a Tokio runtime is checked inside one that has several
/// threads: the suite blocks the thread that it is run on, and asks from
/// threads of its own.
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
    /// Real time, and how much later than promised a request may pass.
    real_time: Option<Duration>,
    /// How long what is given back may be under way.
    lag: Duration,
}

type MakeCapped = Box<dyn Fn(usize) -> Arc<dyn Backend> + Send + Sync>;

type Check = fn(&Checked<'_>);

impl Suite {
    /// The suite for the backends that `make` makes. They may share a store,
    /// if it holds nothing yet: no two checks use the same rule.
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
        }
    }

    /// Checks the cap on keys as well, on backends that hold at most so many.
    pub fn capped<B: Backend>(mut self, make: impl Fn(usize) -> B + Send + Sync + 'static) -> Self {
        self.make_capped = Some(Box::new(move |max_keys| Arc::new(make(max_keys))));
        self
    }

    /// The algorithms that the backend supports; all that have a window, by
    /// default. The token bucket has to be one of them.
    pub fn algorithms(mut self, algorithms: impl IntoIterator<Item = Algorithm>) -> Self {
        self.algorithms = algorithms.into_iter().collect();
        self
    }

    /// How many keys eight threads compete for; 20,000 by default.
    pub fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// For a backend that never holds a request back, but rejects it.
    pub fn without_waits(mut self) -> Self {
        self.waits = false;
        self
    }

    /// For a backend that does not limit what is in flight: rules with
    /// [`Quota::concurrent`](crate::Quota::concurrent) are not for it.
    pub fn without_in_flight(mut self) -> Self {
        self.in_flight = false;
        self
    }

    /// For a backend with a clock of its own: time is not moved by hand, but
    /// passes. What is promised for a time is then asked for `tolerance`
    /// later, and that it is rejected until just before is not checked.
    pub fn real_time(mut self, tolerance: Duration) -> Self {
        self.real_time = Some(tolerance);
        self
    }

    /// For a backend that is asked over a network, and gives back without
    /// waiting for it to be done: what was given back is asked for again `lag`
    /// later. In [real time](Self::real_time) the tolerance has to be more than
    /// twice as long.
    ///
    /// It has to work on a runtime other than that of whoever asks: the
    /// suite's own ones stand still at times. Built inside a runtime of several
    /// threads, as is said above, it does.
    pub fn remote(mut self, lag: Duration) -> Self {
        self.lag = lag;
        self
    }

    /// Runs every check, each on a backend of its own.
    ///
    /// # Panics
    ///
    /// Where the contract is broken: names the check.
    pub fn run(self) {
        let executor = Executor::of_caller();
        let checks: [(&str, Check); 16] = [
            ("never one too many", admission::never_one_too_many),
            ("all or nothing over tiers", admission::all_or_nothing_over_tiers),
            ("all or nothing over rules", admission::all_or_nothing_over_rules),
            ("a rejection charges nothing", admission::a_rejection_charges_nothing),
            ("retry_after is exact", admission::retry_after_is_exact),
            ("a reload keeps what was used", reload::keeps_what_was_used),
            ("waits are reservations", waits::are_reservations),
            ("waits are for all tiers together", waits::are_for_all_tiers_together),
            ("a dropped wait gives its place back", waits::dropped_gives_its_place_back),
            ("callers go in turn", acquire::in_turn),
            ("callers that leave harm nobody", acquire::who_leaves_harms_nobody),
            ("the whole rate is used", acquire::the_whole_rate_is_used),
            ("never one too many in flight", in_flight::never_one_too_many),
            ("in flight is all or nothing", in_flight::all_or_nothing),
            ("a line for what is in flight", in_flight::a_line),
            ("the cap on keys holds", cap::holds),
        ];
        let checked = Checked { suite: &self, executor: &executor };
        for (name, check) in checks {
            // On a thread of its own: the caller's may be a runtime's, which
            // must not block on futures.
            let result = thread::scope(|scope| scope.spawn(|| check(&checked)).join());
            if let Err(panic) = result {
                panic!("{name}: {}", message(&*panic));
            }
        }
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite")
            .field("algorithms", &self.algorithms)
            .field("keys", &self.keys)
            .field("waits", &self.waits)
            .field("in_flight", &self.in_flight)
            .field("real_time", &self.real_time)
            .field("lag", &self.lag)
            .field("capped", &self.make_capped.is_some())
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

/// What a check is given.
struct Checked<'s> {
    suite: &'s Suite,
    executor: &'s Executor,
}

impl Checked<'_> {
    /// Lets what was given back arrive.
    fn settle(&self) {
        remote::pause(self.suite.lag);
    }

    fn time(&self) -> Time {
        self.suite.real_time.map_or_else(Time::manual, Time::Real)
    }

    /// Those that admit several at once.
    fn bursting(&self) -> impl Iterator<Item = Algorithm> {
        self.suite.algorithms.iter().copied().filter(|algorithm| *algorithm != Algorithm::LeakyBucket)
    }
}
