//! Checks whether a [`Backend`] keeps the contract: limits are never exceeded,
//! charges are all or nothing, times are exact, waits are in order, usage
//! outlives a reload, a peek charges nothing and a reset forgets (where a backend
//! supports them), memory is bounded.
//!
//! Use [`run`] for a backend that reads the time from the limiter, and a
//! [`Suite`] for one with a clock of its own, or with a cap on its keys.

mod admission;
mod suite;
mod waits;

use std::{any::Any, thread};

pub use self::suite::Suite;
use self::suite::{Executor, Fixture};
use crate::backend::Backend;

type Check = fn(&Fixture<'_>);

const CHECKS: [(&str, Check); 18] = [
    ("limits are never exceeded", admission::limits_are_never_exceeded),
    ("all or nothing over tiers", admission::all_or_nothing_over_tiers),
    ("all or nothing over keys", admission::all_or_nothing_over_keys),
    ("a rejection charges nothing", admission::a_rejection_charges_nothing),
    ("retry_after is exact", admission::retry_after_is_exact),
    ("calendar months end where they end", admission::months_end_where_they_end),
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

impl Suite {
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
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(message), _) => message,
        (None, Some(message)) => message,
        (None, None) => "panicked",
    }
}
