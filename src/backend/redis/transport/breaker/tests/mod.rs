//! The circuit breaker, and what counts as a failure.

mod circuit;
mod failure;
