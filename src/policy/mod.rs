//! The whole set of rules: [`Policy`].

mod adapt;
mod compiled;
mod compiled_rule;
#[cfg(feature = "serde")]
mod config;
mod ladder;
mod matcher;
mod messages;
mod rule;
mod statuses;
mod tier;
mod validate;

#[cfg(test)]
pub(crate) use self::adapt::per_second;
pub(crate) use self::rule::Override;
pub use self::{
    adapt::Adapt,
    messages::Messages,
    rule::{Dimension, FailureMode, Rule},
    statuses::Statuses,
    tier::Tier,
};
pub(crate) use self::{
    compiled::CompiledPolicy,
    compiled_rule::{AppliedRule, CompiledRule, Place, RuleMatch},
    ladder::Ladder,
    matcher::Endpoints,
};

use crate::quota::Quota;

/// The whole set of rules.
///
/// Every enabled rule that matches a request applies, and all their tiers must
/// pass; a fallback rule applies only where no other did. A request that no
/// rule matches passes.
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
pub struct Policy {
    pub(crate) rules: Vec<Rule>,
    pub(crate) ignore_case: bool,
}

impl Policy {
    /// A policy without rules: everything passes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule. Ids are unique.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Matches paths without regard to ASCII case, for routers that fold it.
    #[must_use]
    pub fn ignore_case(mut self, ignore: bool) -> Self {
        self.ignore_case = ignore;
        self
    }

    /// The rules, in order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

impl From<Quota> for Policy {
    /// One rule, `default`, one counter per tenant.
    fn from(quota: Quota) -> Self {
        Self::new().rule(Rule::new("default").per([Dimension::Tenant]).tier(quota))
    }
}
