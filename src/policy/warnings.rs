//! What is valid in a policy and still can only be a mistake:
//! [`Policy::warnings`].
//!
//! Checks only, and only what is certain: a policy without warnings may have
//! other mistakes, and a warning is never wrong.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use http::Method;

use super::{
    Policy,
    matcher::{Matcher, PatternMatches},
    pattern::{self, MAX_SEGMENTS, Segment, decode},
    rule::Rule,
    settings::Match,
    statuses::Item,
    validate_tiers::tier_sets,
};
use crate::{descriptor::Priority, error::ConfigError, quota::Quota};

impl Policy {
    /// Rules and tiers that are hardly meant as they are written, though the policy is
    /// valid:
    ///
    /// - a rule or a tier that rejects every request that costs anything, because the
    ///   rule's cost is above the tier's capacity;
    /// - a tier that another one of the same algorithm and window makes useless;
    /// - a fallback rule whose requests all match another rule;
    /// - a rule whose requests are all exempt;
    /// - a rule that refunds every response;
    /// - a reserve that leaves nothing of a tier to the lowest priority;
    /// - a rule with several paths, routes or methods that does not say what it counts
    ///   [per](Rule::per): each of them has the whole limit.
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
        let applies_first = |rule: &&Rule| !rule.fallback && !rule.shadow && !rule.exempt;
        let exempting = Covering::new(enabled().filter(|rule| rule.exempt), self.ignore_case);
        let first = Covering::new(enabled().filter(applies_first), self.ignore_case);
        let mut warnings = Vec::new();
        for rule in enabled() {
            let mut warn = |warning: ConfigError| warnings.push(warning.of_rule(&rule.id));
            if let Some(exempt) = exempting.find(rule) {
                let reason = "never applies: another rule exempts every request that it matches";
                warn(ConfigError::new("match", reason).with_value(&exempt.id));
                continue;
            }
            if rule.fallback
                && let Some(first) = first.find(rule)
            {
                let reason = "never applies: another rule matches every request that it matches";
                warn(ConfigError::new("fallback", reason).with_value(&first.id));
            }
            if let Some(refunded) = &rule.refund_on
                && (1..=5).all(|class| refunded.covers(Item::Class(class)))
            {
                warn(ConfigError::new("refund_on", "refunds every response, so only open requests are limited"));
            }
            if let Some(counters) = counters_unsaid(rule) {
                let reason = format!(
                    "is not set, so each path and method that the rule names has counters of its own: a tenant has \
                     the limit {counters} times; `per: [tenant]` counts them together"
                );
                warn(ConfigError::new("per", reason));
            }
            for (key, tiers) in tier_sets(rule) {
                check_tiers(&key, tiers, rule.cost, &mut warn);
                check_reserve(&key, tiers, rule, &mut warn);
            }
        }
        warnings
    }
}

/// How many counters a tenant has in a rule that does not say what it counts per; `None`
/// where that is one.
fn counters_unsaid(rule: &Rule) -> Option<usize> {
    let counters = rule.matches.patterns().count().max(1) * rule.matches.methods.len().max(1);
    (rule.per.is_none() && !rule.exempt && counters > 1).then_some(counters)
}

/// A part is rounded up to whole units.
fn check_reserve(key: &str, tiers: &[Quota], rule: &Rule, warn: &mut impl FnMut(ConfigError)) {
    let most = rule.reserved().into_iter().max().unwrap_or(0);
    let is_none_left = |tier: &&Quota| tier.capacity() > 0 && tier.without(most).capacity() == 0;
    if let Some(tier) = tiers.iter().find(is_none_left) {
        let reason =
            format!("leaves nothing of a tier of `{key}` to the lowest priority: a part is rounded up to whole units");
        warn(ConfigError::new("reserve", reason).with_value(tier.capacity()));
    }
}

/// A limit of 0 is meant: it turns requests off.
fn check_tiers(key: &str, tiers: &[Quota], cost: u64, warn: &mut impl FnMut(ConfigError)) {
    let useless = useless_tiers(tiers);
    for (index, tier) in tiers.iter().enumerate() {
        let key = format!("{key}[{index}]");
        let capacity = tier.capacity();
        if capacity > 0 && cost > capacity {
            let reason = format!(
                "rejects every request that costs anything: each costs at least {cost}, and the tier holds at most {capacity}"
            );
            warn(ConfigError::new(&key, reason).with_value(tier.limit()));
        }
        if useless.contains(&index) {
            let reason = "never rejects: another tier of its algorithm and window is as strict";
            warn(ConfigError::new(&key, reason).with_value(tier.limit()));
        }
    }
}

/// The tiers beside which another one of their algorithm and window has no higher limit
/// and no higher capacity. Of equal tiers, all but the first.
fn useless_tiers(tiers: &[Quota]) -> BTreeSet<usize> {
    let mut strictest_first: Vec<usize> = (0..tiers.len()).collect();
    strictest_first.sort_by_key(|&index| (tiers[index].limit(), tiers[index].capacity()));
    let mut least_capacity = HashMap::new();
    let is_useless = |index: &usize| {
        let tier = &tiers[*index];
        let least = least_capacity.entry(tier.counter()).or_insert(None);
        let is_useless = least.is_some_and(|least| least <= tier.capacity());
        if !is_useless {
            *least = Some(tier.capacity());
        }
        is_useless
    };
    strictest_first.into_iter().filter(is_useless).collect()
}

/// Stands for the values of parameters.
const ANY: char = '\u{10ffff}';

/// Rules, to find those that certainly match every request that another rule matches.
///
/// A pattern covers another one if it matches a path in which [`ANY`] stands for the
/// other's parameters. So rules are found as for a request, whatever their number.
struct Covering<'r> {
    rules: Vec<&'r Rule>,
    /// By their indices in `rules`.
    matcher: Matcher,
    ignore_case: bool,
}

impl<'r> Covering<'r> {
    fn new(rules: impl Iterator<Item = &'r Rule>, ignore_case: bool) -> Self {
        let mut covering = Self { rules: Vec::new(), matcher: Matcher::default(), ignore_case };
        let mut same: HashMap<&Match, usize> = HashMap::new();
        for rule in rules {
            // The first of the rules with the same match is found, or the second if the
            // first is asked about.
            let same = same.entry(&rule.matches).or_default();
            *same += 1;
            // The policy may not be valid, and the tree is as deep as its paths.
            let is_fit = |path: &String| pattern::check(path).is_ok() && !decode(path.as_bytes(), false).contains(ANY);
            if *same <= 2 && rule.matches.paths.iter().all(is_fit) {
                covering.insert(rule);
            }
        }
        covering
    }

    #[allow(clippy::cast_possible_truncation, reason = "validation bounds the number of rules")]
    fn insert(&mut self, rule: &'r Rule) {
        let index = self.rules.len() as u32;
        self.rules.push(rule);
        let takes_all = |path: &String| pattern::parse(path).next() == Some(Segment::Rest);
        let everything = Match::default();
        let matches = if rule.matches.paths.iter().any(takes_all) { &everything } else { &rule.matches };
        self.matcher.insert_rule(index, matches, self.ignore_case);
    }

    /// The first rule that covers `rule`.
    fn find(&self, rule: &Rule) -> Option<&'r Rule> {
        let patterns = rule.matches.patterns().count();
        // How many of the rule's patterns each of the others covers.
        let everywhere = self.matcher.everywhere().iter();
        let mut covered: BTreeMap<u32, usize> = everywhere.map(|found| (found.rule, patterns)).collect();
        let mut count = |mut found: PatternMatches| {
            found.sort_by_key(|found| found.rule);
            found.dedup_by_key(|found| found.rule);
            found.iter().for_each(|found| *covered.entry(found.rule).or_default() += 1);
        };
        for path in &rule.matches.paths {
            let mut found = PatternMatches::new();
            self.matcher.find(&stand_in(path, self.ignore_case), &mut found);
            count(found);
        }
        for route in &rule.matches.routes {
            let mut found = PatternMatches::new();
            self.matcher.find_route(route, &mut found);
            count(found);
        }
        let covers = |other: &&Rule| other.id != rule.id && covers_beside_paths(&other.matches, &rule.matches);
        let by_all_patterns = covered.into_iter().filter(|(_, covered)| *covered == patterns);
        by_all_patterns.map(|(index, _)| self.rules[index as usize]).find(covers)
    }
}

/// Whether `own` takes every method, priority and headers that the other one takes.
fn covers_beside_paths(own: &Match, other: &Match) -> bool {
    covers_methods(own, other) && covers_headers(own, other) && covers_priorities(own, other)
}

fn covers_methods(own: &Match, other: &Match) -> bool {
    let takes =
        |method: &Method| own.methods.contains(method) || *method == Method::HEAD && own.methods.contains(&Method::GET);
    own.methods.is_empty() || !other.methods.is_empty() && other.methods.iter().all(takes)
}

fn covers_headers(own: &Match, other: &Match) -> bool {
    own.headers.iter().all(|(name, values)| {
        let mut same = other.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        same.any(|(_, others)| others.iter().all(|value| values.contains(value)))
    })
}

fn covers_priorities(own: &Match, other: &Match) -> bool {
    let named = if other.priorities.is_empty() { Priority::ALL } else { &other.priorities };
    own.priorities.is_empty() || named.iter().all(|priority| own.priorities.contains(priority))
}

/// A canonical path that a pattern matches if, and only if, it covers `pattern`: it matches
/// every path that `pattern` does.
fn stand_in(pattern: &str, ignore_case: bool) -> String {
    let mut path = String::new();
    let mut push = |segment: String| path.extend(["/", &segment]);
    let spell = |text: &str| decode(text.as_bytes(), ignore_case);
    for segment in pattern::parse(pattern) {
        match segment {
            Segment::Literal(text) => push(spell(&text)),
            Segment::Parameter { prefix, suffix, .. } => push(format!("{}{ANY}{}", spell(&prefix), spell(&suffix))),
            // More segments than a pattern has that ends before.
            Segment::Rest => (0..MAX_SEGMENTS).for_each(|_| push(ANY.into())),
        }
    }
    path
}
