//! Priorities, reserves, and what is shed while the process is overloaded: through the
//! layer and by the limiter, on a clock that the test steps.
#![cfg(all(feature = "metrics", feature = "serde", feature = "test-util"))]
#![allow(clippy::unwrap_used)]

#[path = "overload/adaptive.rs"]
mod adaptive;
#[path = "overload/policies.rs"]
mod policies;
#[path = "overload/priorities.rs"]
mod priorities;
#[path = "overload/reserves.rs"]
mod reserves;
#[path = "overload/shedding.rs"]
mod shedding;
