//! What an upstream's response says about its limits. Plain data: what follows
//! from it is in `feedback.rs`.
//!
//! Invariant: a response says one thing, so that it is followed once.

use std::time::Duration;

/// What an upstream's response says about its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feedback {
    /// Neither a rejection nor a failure.
    Success,
    /// A failure that says nothing about a limit.
    Failure,
    /// Not a rejection, but nothing is left for this time.
    Exhausted(Pause),
    /// A rejection that asks for a cooldown.
    RejectedFor(Pause),
    /// A rejection without a time.
    Rejected,
    /// The service is unavailable, and says nothing about a limit: its endpoint
    /// cools down, for the time that it asks for.
    Unavailable(Option<Pause>),
}

/// The time that an upstream asks for, between two bounds: many upstreams round
/// it up to whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

impl Pause {
    pub(crate) const fn exactly(time: Duration) -> Self {
        Self { least: time, most: time }
    }
}
