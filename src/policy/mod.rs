//! The policy: a set of rules, how to write them, and their compiled form.
//!
//! Not here: deciding (`backend`, `limiter`) and loading at run time
//! (`policy_source`). A [`Policy`] is plain data. It is validated once, when it
//! is read from a file or compiled, and a compiled policy never changes.

mod adaptive_rate;
pub(crate) mod charge;
mod choices;
mod compiled;
mod compiled_rule;
#[cfg(feature = "serde")]
mod config;
#[cfg(feature = "serde")]
mod duration;
#[cfg(feature = "serde")]
mod forms;
mod identity;
mod matcher;
mod networks;
mod owned_charge;
mod pattern;
mod resolve;
mod rule;
mod rule_keys;
mod spelling;
mod tiers;
mod uniform;
mod validate;
mod warnings;

use crate::headers::statuses;

#[cfg(test)]
pub(crate) use self::adaptive_rate::per_second;
pub use self::{
    adaptive_rate::AdaptiveRate,
    choices::{Consistency, Dimension, FailureMode, Messages, UnknownName},
    rule::{Policy, Rule},
    statuses::Statuses,
    tiers::Tier,
};
pub(crate) use self::{
    adaptive_rate::{RateBounds, RateSteps},
    charge::Target,
    compiled::CompiledPolicy,
    compiled_rule::CompiledRule,
    networks::{Networks, addresses},
    owned_charge::{ChargedRule, OwnedCharge, ReservationOwner},
    resolve::{Resolved, Unidentified},
};
