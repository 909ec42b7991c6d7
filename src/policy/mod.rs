//! The policy: a set of rules, how to write them, and their compiled form.
//!
//! Not here: deciding (`backend`, `limiter`) and loading at run time
//! (`policy_source`). A [`Policy`] is plain data. It is validated once, when it
//! is read from a file or compiled, and a compiled policy never changes.

mod adapt;
pub(crate) mod charge;
mod choices;
mod compile_own;
mod compiled;
mod compiled_rule;
#[cfg(feature = "serde")]
mod config;
mod identity;
mod ladder;
mod matcher;
mod networks;
mod own_tiers;
mod owned_charge;
mod pattern;
mod prepared;
mod resolve;
mod rule;
mod rule_keys;
mod rule_set;
mod spelling;
mod statuses;
mod tier;
mod tier_sets;
mod uniform;
mod validate;
mod warnings;

#[cfg(test)]
pub(crate) use self::adapt::per_second;
pub use self::{
    adapt::Adapt,
    choices::{Consistency, Dimension, FailureMode, Messages, UnknownName},
    rule::Rule,
    rule_set::Policy,
    statuses::Statuses,
    tier::Tier,
};
pub(crate) use self::{
    charge::{ChargedTarget, Target},
    compiled::CompiledPolicy,
    compiled_rule::CompiledRule,
    ladder::{Ladder, RateBounds},
    networks::is_named,
    owned_charge::{OwnedCharge, ReservationOwner},
    resolve::Resolved,
};
