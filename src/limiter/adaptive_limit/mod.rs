//! Adaptive concurrency limits: one for each key of a rule that has such a tier.
//!
//! A limit is one of the copies of the tier that [`LimitSteps`](crate::policy::LimitSteps)
//! lists, as an adaptive rate is; the backend decides by it as by any other. Invariant: all
//! copies share one counter, so that a change of the limit loses no unit in flight.

pub(super) mod gradient;
pub(super) mod keys;
mod measure;

pub use self::measure::AdaptiveLimitStatus;
