//! The memory that a policy takes once it is compiled, estimated beforehand.
//!
//! A small file can describe a large policy: an adaptive rate has a copy of
//! every tier set for each of its steps. The bound is on all rules together.

use std::collections::HashMap;

use super::tiers::tier_sets;
use crate::{
    error::ConfigError,
    policy::{
        ladder::Ladder,
        matcher::{NODE_BYTES, PatternMatch},
        pattern::{self, Segment},
        rule::Rule,
        rule_keys,
        rule_set::Policy,
        tier,
    },
};

/// For instance, half a million tenants with one tier each.
const MAX_BYTES: usize = 128 << 20;

pub(super) fn check_size(policy: &Policy) -> Result<(), ConfigError> {
    let (mut total, mut largest) = (0usize, None);
    let mut tree = Tree::default();
    for rule in policy.rules.iter().filter(|rule| rule.enabled) {
        let (tiers, matches) = (bytes_of_tiers(rule), bytes_of_matches(rule, &mut tree));
        let bytes = tiers.saturating_add(matches);
        let key = match rule.adapt {
            _ if tiers < matches => "match",
            Some(_) => "adapt",
            None => "tiers",
        };
        total = total.saturating_add(bytes);
        largest = largest.max(Some((bytes, key, rule.id.as_str())));
    }
    match largest {
        Some((bytes, key, id)) if total > MAX_BYTES => {
            let (own, total, max) = (bytes >> 20, total >> 20, MAX_BYTES >> 20);
            let reason =
                format!("compiled, the policy would take {total} MiB, and this rule the most: at most {max} MiB");
            Err(ConfigError::new(key, reason).with_value(format_args!("{own} MiB")).of_rule(id))
        }
        _ => Ok(()),
    }
}

/// Each step of an adaptive rate has a copy of every tier set, with one more
/// tier. The fallback limiter has another copy of all if it has a share.
fn bytes_of_tiers(rule: &Rule) -> usize {
    let sets = || tier_sets(rule).map(|(_, tiers)| tiers.len());
    let tiers = match &rule.adapt {
        Some(adapt) => sets().map(|tiers| tiers + 1).sum::<usize>().saturating_mul(Ladder::steps_of(adapt)),
        None => sets().sum(),
    };
    let copies = if rule.local_share.is_some_and(|share| share < 1.0) { 2 } else { 1 };
    tiers.saturating_mul(copies * tier::BYTES)
}

/// A pattern takes its entry in the index, and a route takes an entry of its own.
fn bytes_of_matches(rule: &Rule, tree: &mut Tree) -> usize {
    let nodes = rule.paths.iter().map(|path| tree.add(path)).sum::<usize>();
    let patterns = rule.paths.len() + rule.routes.len();
    let routes = rule.routes.iter().map(|route| ROUTE_BYTES + route.len()).sum::<usize>();
    nodes.saturating_mul(NODE_BYTES).saturating_add(patterns * PATTERN_BYTES + routes + rule_keys::bytes(rule))
}

/// A pattern's place in the list of a node.
const PATTERN_BYTES: usize = 2 * size_of::<PatternMatch>();

/// A route's place in the map of routes, with its list.
const ROUTE_BYTES: usize = 64 + 4 * size_of::<PatternMatch>();

/// The nodes of the tree that finds all paths: rules share those of the segments
/// that their paths begin with.
#[derive(Default)]
struct Tree {
    nodes: HashMap<(usize, Segment), usize>,
}

impl Tree {
    /// Adds a path, and returns the number of new nodes. Adds none when the tree
    /// is too large already.
    fn add(&mut self, path: &str) -> usize {
        let (before, mut at) = (self.nodes.len(), 0);
        for segment in pattern::parse(path) {
            let segment = match segment {
                Segment::Rest => break,
                Segment::Literal(text) => Segment::Literal(text),
                // Parameters of all names share a node.
                Segment::Parameter { prefix, suffix, .. } => Segment::Parameter { prefix, name: String::new(), suffix },
            };
            let new = self.nodes.len() + 1;
            if new > MAX_BYTES / NODE_BYTES + 1 {
                break;
            }
            at = *self.nodes.entry((at, segment)).or_insert(new);
        }
        self.nodes.len() - before
    }
}
