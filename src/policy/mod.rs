//! The policy: a set of rules, how to write them, and their compiled form.
//!
//! Not here: deciding (`backend`, `limiter`) and loading at run time
//! (`policy_source`). A [`Policy`] is plain data. It is validated once, when it
//! is read from a file or compiled, and a compiled policy never changes.

mod adaptive;
mod carried;
pub(crate) mod charge;
mod compiled;
#[cfg(feature = "serde")]
mod config;
mod exceptions;
mod explain;
#[cfg(feature = "serde")]
mod forms;
mod keys;
mod matcher;
mod networks;
mod pattern;
#[allow(clippy::module_inception, reason = "the file of the type that the module is named for")]
mod policy;
mod resolve;
mod rule;
mod settings;
mod tiers;
mod validate;
mod validate_tiers;
mod warnings;

use crate::headers::statuses;

#[cfg(test)]
pub(crate) use self::adaptive::per_second;
#[cfg(feature = "admin")]
pub(crate) use self::carried::Carried;
#[cfg(feature = "watch")]
pub(crate) use self::validate::check_instances;
pub use self::{
    adaptive::AdaptiveRate,
    policy::Policy,
    rule::Rule,
    settings::{Consistency, Dimension, FailureMode, Messages, Unsettled},
    statuses::Statuses,
    tiers::Tier,
};
pub(crate) use self::{
    adaptive::{LimitBounds, LimitSteps, RateBounds, RateSteps},
    carried::Overrides,
    charge::{ChargedRule, OwnedCharge, ReservationOwner},
    compiled::{CompiledPolicy, CompiledRule},
    explain::RuleExplanation,
    networks::{Networks, addresses, canonical_network},
    resolve::{Resolved, Unidentified, UnusableTiers},
};
