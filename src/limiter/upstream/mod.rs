//! What a limiter learns from an upstream, for each key that a request is charged
//! to: see [`keys::UpstreamKeys`]. It neither counts nor decides requests.
//!
//! | a key has | from | until |
//! |---|---|---|
//! | a cooldown | the upstream, this instance's caller or another instance | its end |
//! | a resume schedule | a response with nothing left, or a rejection | a minute after it delays nothing |
//! | an adaptive rate | each answer, where the rule adapts | an hour without an answer |
//!
//! Invariant: nothing that is learned admits a request earlier than the rules do.

mod adaptive;
mod aimd;
mod cooldown;
mod feedback;
pub(super) mod keys;
mod response;
mod resume;

pub use self::adaptive::AdaptiveRateStatus;
pub(crate) use self::response::{Feedback, Pause};
pub(super) use self::{aimd::Times, keys::Postponement};
