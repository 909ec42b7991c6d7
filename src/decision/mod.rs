//! The full answer to a request: [`Decision`], and [`RateLimited`], the error
//! of a rejection.
//!
//! It decides nothing and renders nothing: the limiter fills a decision, and
//! `headers` writes it into a response. The invariant: a decision is one
//! pointer, and in steady state creating one allocates nothing.

#[allow(clippy::module_inception, reason = "the file of the type that the module is named for")]
mod decision;
mod rate_limited;
mod tier_status;

pub(crate) use self::tier_status::{Naming, RuleName};
pub use self::{
    decision::{Decision, RateLimitedKind, Verdict},
    rate_limited::RateLimited,
    tier_status::TierStatus,
};
