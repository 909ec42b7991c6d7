//! Checks whether a [`Backend`] keeps the contract: limits are never exceeded,
//! charges are all or nothing, times are exact, waits are in order, usage
//! outlives a reload, memory is bounded.
//!
//! Use [`run`] for a backend that reads the time from the limiter, and a
//! [`Suite`] for one with a clock of its own, or with a cap on its keys.

mod acquire;
mod admission;
mod bench;
mod cap;
mod checks;
mod in_flight;
mod reload;
mod remote;
mod suite;
mod waits;

pub use self::suite::Suite;
use crate::backend::Backend;

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
