//! What a limiter granted to one request: [`Grant`]. Knows neither the limiter nor the
//! request; giving it back is a lease's task.
//!
//! Invariant: it names the limiter that has to take it back.

use super::adaptive_limit::limits::FoundLimits;
use crate::backend::Receipt;

/// What was charged, and by which limiter.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) decider: Decider,
    pub(super) receipt: Box<Receipt>,
    /// What the fallback limiter has counted of it, to be warm when the
    /// backend fails.
    pub(super) mirror: Option<Box<Receipt>>,
    /// The adaptive concurrency limits that learn how long the request takes.
    pub(super) limits: FoundLimits,
}

/// Which limiter a receipt belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    Backend,
    /// The fallback limiter, which decides while the backend fails.
    Fallback,
    /// The fallback limiter, which only counts what the backend admits.
    Mirror,
}

impl Grant {
    pub(super) fn new(decider: Decider, receipt: Receipt) -> Self {
        Self { decider, receipt: Box::new(receipt), mirror: None, limits: FoundLimits::new() }
    }
}
