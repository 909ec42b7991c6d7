//! What operators see: counters, and events for the log. Those about a request are
//! reported by `limiter/observe.rs`.
//!
//! It reports and decides nothing; without the features `metrics` and `tracing`
//! it does nothing. The invariant: no report names a tenant, whose name may be
//! a secret; only the top tenants do, which an operator asks for.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(dead_code, unused_variables, reason = "each feature uses some of the arguments")
)]

mod counters;
#[cfg(feature = "metrics")]
mod describe;
mod events;
pub(crate) mod facade;
mod mistakes;
#[cfg(feature = "redis")]
mod store;
mod top;

#[cfg(feature = "metrics")]
pub use self::describe::describe_metrics;
#[cfg(feature = "watch")]
pub(crate) use self::events::Reload;
#[cfg(feature = "gossip")]
pub(crate) use self::events::{report_fleet, report_shares};
#[cfg(feature = "redis")]
pub(crate) use self::store::{MEASURES, StoreReport, log_cooldown_sharing, log_cooldown_subscription};
pub use self::top::TopTenant;
pub(crate) use self::{
    counters::{Gauge, RequestResult, RuleReports},
    events::{count_shed, log_ignored_level, log_share_source, log_shedding, report_shed_fraction},
    mistakes::{Mistake, Reported, count_unknown_priority},
    top::{Measure, Sampler, TopTenants, minute},
};
