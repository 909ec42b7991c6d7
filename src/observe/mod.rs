//! What operators see: counters, and events for the log.
//!
//! It reports and decides nothing; without the features `metrics` and `tracing`
//! it does nothing. The invariant: no report names a tenant, whose name may be
//! a secret.

#[cfg(feature = "metrics")]
mod counters;
#[cfg(feature = "tracing")]
mod log_limiter;
#[cfg(feature = "watch")]
mod reloads;
mod request_result;
mod share_source;
#[cfg(feature = "redis")]
mod store;

#[cfg(feature = "metrics")]
pub(crate) use self::counters::RuleCounters;
#[cfg(feature = "tracing")]
pub(crate) use self::log_limiter::LogLimiter;
#[cfg(feature = "watch")]
pub(crate) use self::reloads::Reload;
#[cfg(feature = "redis")]
pub(crate) use self::store::{StoreReport, TIMES_CALLS, log_cooldown_sharing, log_cooldown_subscription};
pub(crate) use self::{request_result::RequestResult, share_source::log_share_source};
