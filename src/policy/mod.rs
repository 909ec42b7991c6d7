//! The policy: a set of rules, [`Policy`], how to write them, and their compiled form.
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
mod pattern;
mod resolve;
mod rule;
mod settings;
mod tiers;
mod validate;
mod validate_tiers;
mod warnings;

use self::settings::{Limits, Match};
use crate::{headers::statuses, overload::Overload, quota::Quota};

#[cfg(test)]
pub(crate) use self::adaptive::per_second;
#[cfg(feature = "admin")]
pub(crate) use self::carried::Carried;
#[cfg(feature = "watch")]
pub(crate) use self::validate::check_instances;
pub use self::{
    adaptive::AdaptiveRate,
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
    exceptions::{Networks, addresses, canonical_network},
    explain::RuleExplanation,
    resolve::{Resolved, Unidentified, UnusableTiers},
};

/// The whole set of rules.
///
/// Every enabled rule that matches a request applies, and all their tiers must
/// pass. A fallback rule applies only if no other rule does. A request that no
/// rule matches is allowed.
///
/// The time of a decision grows with the rules that match, not with all rules:
/// patterns are found segment by segment, in a tree.
///
/// A policy has at most 700,000 tiers, and paths of at most 450,000 segments and
/// methods: otherwise it is an error. An adaptive rate has a copy of the tiers of
/// all plans and tenants for each of its steps, so a small policy may become a
/// large one.
///
/// ```
/// use tower_ratelimit::{Policy, Quota, RateLimiter, Rule};
///
/// let policy = Policy::new()
///     .rule(Rule::new("search").path("/search").tier(Quota::per_second(2)))
///     .rule(Rule::new("everything-else").fallback(true).tier(Quota::per_minute(100).burst(20)));
/// let limiter = RateLimiter::new(policy)?;
///
/// // One quota, counted per tenant.
/// let limiter = RateLimiter::new(Quota::per_second(50))?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Policy {
    pub(crate) rules: Vec<Rule>,
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "forms::is_default"))]
    pub(crate) ignore_case: bool,
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "forms::is_default"))]
    pub(crate) instances: Option<u64>,
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "forms::is_default"))]
    pub(crate) overload: Option<Overload>,
}

impl Policy {
    /// A policy without rules: every request is allowed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule. Ids must be unique.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Matches paths without regard to ASCII case, for routers that do so.
    #[must_use]
    pub fn ignore_case(mut self, ignore: bool) -> Self {
        self.ignore_case = ignore;
        self
    }

    /// How many instances share the limits. A watch gives each its share: see
    /// [`Watch::share`](crate::policy_source::Watch::share). Elsewhere it is for the
    /// application: [`Share::new`](crate::backend::Share::new) takes it.
    #[must_use]
    pub fn instances(mut self, count: u64) -> Self {
        self.instances = Some(count);
        self
    }

    /// How many instances share the limits, if the policy says so.
    #[must_use]
    pub fn instance_count(&self) -> Option<u64> {
        self.instances
    }

    /// Sheds requests while the process is overloaded, the lowest
    /// [`Priority`](crate::Priority) first.
    #[must_use]
    pub fn overload(mut self, overload: Overload) -> Self {
        self.overload = Some(overload);
        self
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The ids of rules that apply to some requests only, and should to some.
    pub(crate) fn conditional_rules(&self) -> impl Iterator<Item = &str> {
        let is_conditional = |rule: &&Rule| {
            let has_match = rule.matches != Match::default();
            rule.enabled && has_match && !rule.fallback && !rule.exempt
        };
        self.rules.iter().filter(is_conditional).map(|rule| &*rule.id)
    }

    /// The enabled rules, each with the tenants and networks that it names, and whether
    /// those are unlimited.
    pub(crate) fn named_tenants(&self) -> impl Iterator<Item = (&Rule, &str, bool)> {
        let enabled = self.rules.iter().filter(|rule| rule.enabled);
        enabled.flat_map(|rule| {
            let tenants = rule.tenants.iter();
            tenants.map(move |(tenant, exception)| (rule, &**tenant, exception.limits == Some(Limits::Unlimited)))
        })
    }
}

impl From<Quota> for Policy {
    /// One rule, `default`, with one counter per tenant.
    fn from(quota: Quota) -> Self {
        Self::new().rule(Rule::new("default").per([Dimension::Tenant]).tier(quota))
    }
}
