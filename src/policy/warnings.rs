//! What is valid in a policy and still can only be a mistake:
//! [`Policy::warnings`].
//!
//! Checks only, and only what is certain: a policy without warnings may have
//! other mistakes, and a warning is never wrong.

use super::{
    pattern::{self, Segment},
    rule::Rule,
    rule_set::Policy,
    spelling::decode,
    statuses::Item,
    validate::tier_sets,
};
use crate::{error::ConfigError, quota::Quota};

impl Policy {
    /// Rules and tiers that can never act as written, though the policy is valid:
    ///
    /// - a rule or a tier that rejects every request that costs anything, because the
    ///   rule's cost is above the tier's capacity;
    /// - a tier that another one of the same algorithm and window makes useless;
    /// - a fallback rule whose requests all match another rule;
    /// - a rule whose requests are all exempt;
    /// - a rule that refunds every response.
    ///
    /// Each names the rule, the key and the value, as an error does. Disabled
    /// rules are not looked at.
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota, Rule};
    ///
    /// let policy = Policy::new().rule(Rule::new("export").cost(50).tier(Quota::per_second(10)));
    /// assert_eq!(
    ///     policy.warnings()[0].to_string(),
    ///     "rule `export`: tiers[0]: `10`: rejects every request that costs anything: each costs at least 50, and the tier holds at most 10",
    /// );
    /// ```
    #[must_use]
    pub fn warnings(&self) -> Vec<ConfigError> {
        let enabled = || self.rules.iter().filter(|rule| rule.enabled);
        let mut warnings = Vec::new();
        for rule in enabled() {
            let mut warn = |warning: ConfigError| warnings.push(warning.of_rule(&rule.id));
            let covers = |other: &&Rule| other.id != rule.id && covers(other, rule, self.ignore_case);
            if let Some(exempt) = enabled().filter(|other| other.exempt).find(covers) {
                let reason = "never applies: another rule exempts every request that it matches";
                warn(ConfigError::new("match", reason).with_value(&exempt.id));
                continue;
            }
            let applies_first = |other: &&Rule| !other.fallback && !other.shadow && !other.exempt;
            if rule.fallback
                && let Some(first) = enabled().filter(applies_first).find(covers)
            {
                let reason = "never applies: another rule matches every request that it matches";
                warn(ConfigError::new("fallback", reason).with_value(&first.id));
            }
            if let Some(refunded) = &rule.refund_on
                && (1..=5).all(|class| refunded.covers(Item::Class(class)))
            {
                warn(ConfigError::new("refund_on", "refunds every response, so only open requests are limited"));
            }
            for (key, tiers) in tier_sets(rule) {
                check_tiers(&key, tiers, rule.cost, &mut warn);
            }
        }
        warnings
    }
}

/// A limit of 0 is meant: it turns requests off.
fn check_tiers(key: &str, tiers: &[Quota], cost: u64, warn: &mut impl FnMut(ConfigError)) {
    for (index, tier) in tiers.iter().enumerate() {
        let key = format!("{key}[{index}]");
        let capacity = tier.capacity();
        if capacity > 0 && cost > capacity {
            let reason = format!(
                "rejects every request that costs anything: each costs at least {cost}, and the tier holds at most {capacity}"
            );
            warn(ConfigError::new(&key, reason).with_value(tier.limit()));
        }
        let is_stricter = |(at, other): (usize, &Quota)| {
            let is_like = other.counted_by() == tier.counted_by() && other.window() == tier.window();
            let (own, others) = ((tier.limit(), capacity), (other.limit(), other.capacity()));
            is_like && others.0 <= own.0 && others.1 <= own.1 && (others != own || at < index)
        };
        if tiers.iter().enumerate().any(is_stricter) {
            let reason = "never rejects: another tier of its algorithm and window is as strict";
            warn(ConfigError::new(&key, reason).with_value(tier.limit()));
        }
    }
}

/// Whether `rule` certainly matches every request that `other` matches.
fn covers(rule: &Rule, other: &Rule, ignore_case: bool) -> bool {
    let takes = |method: &http::Method| {
        rule.matches.methods.contains(method)
            || *method == http::Method::HEAD && rule.matches.methods.contains(&http::Method::GET)
    };
    let takes_methods =
        rule.matches.methods.is_empty() || !other.matches.methods.is_empty() && other.matches.methods.iter().all(takes);
    let is_everywhere = rule.matches.is_everywhere()
        || rule.matches.paths.iter().any(|path| pattern::parse(path).next() == Some(Segment::Rest));
    let has_patterns = !other.matches.is_everywhere();
    let takes_path = |path: &String| rule.matches.paths.iter().any(|own| covers_path(own, path, ignore_case));
    let takes_patterns = has_patterns
        && other.matches.paths.iter().all(takes_path)
        && other.matches.routes.iter().all(|route| rule.matches.routes.contains(route));
    takes_methods && (is_everywhere || takes_patterns)
}

/// Whether every path that `other` matches also matches `pattern`.
fn covers_path(pattern: &str, other: &str, ignore_case: bool) -> bool {
    let (mut own, mut others) = (pattern::parse(pattern), pattern::parse(other));
    loop {
        match (own.next(), others.next()) {
            (Some(Segment::Rest), _) | (None, None) => return true,
            (Some(one), Some(other)) if covers_segment(&one, &other, ignore_case) => {}
            _ => return false,
        }
    }
}

fn covers_segment(one: &Segment, other: &Segment, ignore_case: bool) -> bool {
    let spell = |text: &str| decode(text.as_bytes(), ignore_case);
    match (one, other) {
        (Segment::Literal(one), Segment::Literal(other)) => spell(one) == spell(other),
        (Segment::Parameter { prefix, suffix, .. }, Segment::Literal(text)) => {
            let (prefix, suffix, text) = (spell(prefix), spell(suffix), spell(text));
            text.len() > prefix.len() + suffix.len() && text.starts_with(&prefix) && text.ends_with(&suffix)
        }
        (
            Segment::Parameter { prefix, suffix, .. },
            Segment::Parameter { prefix: other_prefix, suffix: other_suffix, .. },
        ) => spell(other_prefix).starts_with(&spell(prefix)) && spell(other_suffix).ends_with(&spell(suffix)),
        _ => false,
    }
}
