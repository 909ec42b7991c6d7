//! Finds the rules whose path patterns or routes match a request: patterns in a tree
//! of segments. Methods and tenants are checked elsewhere.
//!
//! Invariant: it returns every match, not only the best one.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::{
    pattern::{self, Segment, Spelling, decode},
    settings::Match,
};

/// A pattern of a rule: the indices of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PatternMatch {
    pub(super) rule: u32,
    pub(super) pattern: u16,
    /// Matches the path with its `.` and `..` segments resolved.
    pub(super) resolved: bool,
}

impl PatternMatch {
    /// The pattern of a rule that applies although none matches.
    pub(super) const NONE: u16 = u16::MAX;
}

pub(super) type PatternMatches = SmallVec<[PatternMatch; 4]>;

/// Finds all patterns that match a path, the most specific ones first.
///
/// A router stops at the best match. This tree continues, since every rule that
/// matches applies. The work depends on the path and on the branches that it
/// meets, not on the number of rules.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    nodes: Vec<Node>,
    routes: HashMap<Box<str>, Vec<PatternMatch>, RandomState>,
    /// Rules that match every path.
    everywhere: Vec<PatternMatch>,
}

#[derive(Debug, Default)]
struct Node {
    /// Children for literal segments.
    literals: HashMap<Box<str>, usize, RandomState>,
    /// Children for parameters with a prefix or a suffix. Boxed, as few nodes
    /// have any.
    affixed: Option<Box<Affixed>>,
    /// The child for parameters that are a whole segment.
    parameter: Option<usize>,
    /// Patterns that end here.
    ends: Vec<PatternMatch>,
    /// Patterns whose `{*rest}` matches all remaining segments.
    rests: Vec<PatternMatch>,
}

/// Values by the texts of one end of a parameter: its prefix or its suffix. They are
/// looked up once for each of their lengths, whatever their number.
#[derive(Debug, Default)]
struct Affixes<T> {
    lengths: BTreeSet<usize>,
    by_text: HashMap<Box<str>, T, RandomState>,
}

impl<T: Default> Affixes<T> {
    fn entry(&mut self, text: &str) -> &mut T {
        self.lengths.insert(text.len());
        self.by_text.entry(text.into()).or_default()
    }

    /// Those that `cut` finds in a segment, each with its length.
    fn matching<'s>(
        &self,
        segment: &'s str,
        cut: impl Fn(&'s str, usize) -> Option<&'s str>,
    ) -> impl Iterator<Item = (usize, &T)> {
        // A parameter has at least one byte.
        let lengths = self.lengths.range(..segment.len());
        lengths.filter_map(move |&length| Some((length, self.by_text.get(cut(segment, length)?)?)))
    }
}

/// The children for parameters with a prefix or a suffix: by prefix, then by suffix.
type Affixed = Affixes<Affixes<Option<usize>>>;

impl Affixed {
    /// The children for a segment; those with the longest text in total first.
    fn children(&self, segment: &str) -> impl Iterator<Item = usize> {
        let mut found = Vec::new();
        for (prefix, suffixes) in self.matching(segment, |segment, length| segment.get(..length)) {
            let left = &segment[prefix..];
            for (suffix, child) in suffixes.matching(left, |left, length| left.get(left.len() - length..)) {
                found.extend(child.map(|child| (Reverse((prefix + suffix, prefix)), child)));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, child)| child)
    }
}

impl Node {
    /// The child for `segment`, which is `new` if there was none.
    fn child(&mut self, segment: &Segment, ignore_case: bool, new: usize) -> usize {
        let spell = |text: &str| decode(text.as_bytes(), ignore_case);
        match segment {
            Segment::Rest => new,
            Segment::Literal(text) => *self.literals.entry(spell(text).into()).or_insert(new),
            Segment::Parameter { prefix, suffix, .. } if prefix.is_empty() && suffix.is_empty() => {
                *self.parameter.get_or_insert(new)
            }
            Segment::Parameter { prefix, suffix, .. } => {
                let affixed = self.affixed.get_or_insert_default();
                *affixed.entry(&spell(prefix)).entry(&spell(suffix)).get_or_insert(new)
            }
        }
    }
}

impl Matcher {
    /// Whether no rule matches by path.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds what a rule matches. `ignore_case` must be the same as for the paths.
    #[allow(clippy::cast_possible_truncation, reason = "validation bounds the number of patterns")]
    pub(super) fn insert_rule(&mut self, rule: u32, matches: &Match, ignore_case: bool) {
        let found = |pattern: usize| PatternMatch { rule, pattern: pattern as u16, resolved: false };
        for (pattern, path) in matches.paths.iter().enumerate() {
            self.insert(path, ignore_case, found(pattern));
        }
        for (pattern, route) in matches.routes.iter().enumerate() {
            let found = found(matches.paths.len() + pattern);
            self.routes.entry(route.as_str().into()).or_default().push(found);
        }
        if matches.is_everywhere() {
            self.everywhere.push(found(0));
        }
    }

    /// Adds a valid pattern.
    pub(super) fn insert(&mut self, pattern: &str, ignore_case: bool, found: PatternMatch) {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut at = 0;
        for segment in pattern::parse(pattern) {
            if segment == Segment::Rest {
                return self.nodes[at].rests.push(found);
            }
            let new = self.nodes.len();
            at = self.nodes[at].child(&segment, ignore_case, new);
            if at == new {
                self.nodes.push(Node::default());
            }
        }
        self.nodes[at].ends.push(found);
    }

    /// Adds to `found` the patterns that match either spelling of a path.
    pub(super) fn find_spelled(&self, spelling: &Spelling<'_>, found: &mut PatternMatches) {
        self.find(spelling.canonical(), found);
        if let Some(resolved) = spelling.resolved() {
            let others = found.len();
            self.find(resolved, found);
            found[others..].iter_mut().for_each(|found| found.resolved = true);
        }
    }

    /// The rules that match every path, in the policy's order.
    pub(super) fn everywhere(&self) -> &[PatternMatch] {
        &self.everywhere
    }

    /// Whether no other rule matches anything.
    pub(super) fn is_everywhere(&self) -> bool {
        self.nodes.is_empty() && self.routes.is_empty()
    }

    pub(super) fn find_route(&self, route: &str, found: &mut PatternMatches) {
        found.extend(self.routes.get(route).into_iter().flatten().copied());
    }

    /// Adds to `found` the patterns that match a canonical path.
    pub(super) fn find(&self, path: &str, found: &mut PatternMatches) {
        if let Some(root) = self.nodes.first() {
            self.descend(root, segments_left(path), found);
        }
    }

    fn descend(&self, node: &Node, left: Option<&str>, found: &mut PatternMatches) {
        if let Some(path) = left {
            let (segment, rest) = split_segment(path);
            if let Some(child) = node.literals.get(segment) {
                self.descend(&self.nodes[*child], rest, found);
            }
            if let Some(affixed) = &node.affixed {
                affixed.children(segment).for_each(|child| self.descend(&self.nodes[child], rest, found));
            }
            if let Some(child) = node.parameter {
                self.descend(&self.nodes[child], rest, found);
            }
        } else {
            node.ends.iter().for_each(|pattern| found.push(*pattern));
        }
        // `/v1/{*rest}` also matches `/v1`: that is the canonical spelling
        // of `/v1//`, which a router matches with `/v1/{*rest}`.
        node.rests.iter().for_each(|pattern| found.push(*pattern));
    }
}

/// The path after the leading slash; `None` for the root.
fn segments_left(path: &str) -> Option<&str> {
    let path = path.strip_prefix('/').unwrap_or(path);
    (!path.is_empty()).then_some(path)
}

/// The first segment, and what follows its slash.
fn split_segment(path: &str) -> (&str, Option<&str>) {
    match path.bytes().position(|byte| byte == b'/') {
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (path, None),
    }
}

#[cfg(test)]
mod tests;
