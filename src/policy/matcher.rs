//! Finds the rules whose path patterns match a request, in a tree of segments.
//! It knows paths only: methods and tenants are checked elsewhere.
//!
//! Invariant: it returns every match, not only the best one.

use std::{
    cmp::Reverse,
    collections::HashMap,
    hash::{BuildHasher, Hasher},
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::{
    pattern::{self, Segment},
    spelling::{Spelling, decode, segments_left, split_segment},
};

/// A pattern of a rule: the indices of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PatternMatch {
    pub(crate) rule: u32,
    pub(crate) pattern: u16,
    /// Matches the path with its `.` and `..` segments resolved.
    pub(crate) resolved: bool,
}

pub(crate) type PatternMatches = SmallVec<[PatternMatch; 4]>;

/// Finds all patterns that match a path, the most specific ones first.
///
/// A router stops at the best match. This tree continues, since every rule that
/// matches applies. The work depends on the path and on the branches that it
/// meets, not on the number of rules.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// Children for literal segments.
    literals: Children,
    /// Children for parameters with a prefix or a suffix, by the lengths of
    /// both; the longest in total first.
    affixed: Vec<([usize; 2], Children)>,
    /// The child for parameters that are a whole segment.
    parameter: Option<usize>,
    /// Patterns that end here.
    ends: Vec<PatternMatch>,
    /// Patterns whose `{*rest}` matches all remaining segments.
    rests: Vec<PatternMatch>,
}

/// At least what a node takes, with its entry in the node above.
pub(super) const NODE_BYTES: usize = size_of::<Node>() + 4 * size_of::<(u64, SameHash)>() + 64;

/// Child nodes by the literal texts of their segments, which are the whole
/// segment, or a prefix and a suffix. They are found by hash and then compared.
#[derive(Debug, Default)]
struct Children {
    by_hash: HashMap<u64, SameHash, RandomState>,
}

/// The texts of children with the same hash, each with its child.
type SameHash = SmallVec<[([Box<str>; 2], usize); 1]>;

impl Children {
    fn get(&self, texts: [&str; 2]) -> Option<usize> {
        if self.by_hash.is_empty() {
            return None;
        }
        let children = self.by_hash.get(&self.hash(texts))?;
        let has_texts = |[prefix, suffix]: &[Box<str>; 2]| same(prefix, texts[0]) && same(suffix, texts[1]);
        children.iter().find(|(own, _)| has_texts(own)).map(|(_, child)| *child)
    }

    /// The child with these texts, which is `new` if there was none.
    fn get_or_insert(&mut self, texts: [&str; 2], new: usize) -> usize {
        self.get(texts).unwrap_or_else(|| {
            self.by_hash.entry(self.hash(texts)).or_default().push((texts.map(Into::into), new));
            new
        })
    }

    fn hash(&self, texts: [&str; 2]) -> u64 {
        let mut hasher = self.by_hash.hasher().build_hasher();
        hasher.write(texts[0].as_bytes());
        // Most children are literals, which have one text.
        if !texts[1].is_empty() {
            hasher.write(texts[1].as_bytes());
        }
        hasher.finish()
    }
}

/// Compares short strings. The C library's `memcmp` is optimized for long ones:
/// its masked loads near the end of a page cost some processors hundreds of
/// nanoseconds.
pub(super) fn same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).all(|(one, other)| one == other)
}

impl Node {
    /// The child for `segment`, which is `new` if there was none.
    fn child(&mut self, segment: &Segment, ignore_case: bool, new: usize) -> usize {
        let spell = |text: &str| decode(text.as_bytes(), ignore_case);
        match segment {
            Segment::Rest => new,
            Segment::Literal(text) => self.literals.get_or_insert([&spell(text), ""], new),
            Segment::Parameter { prefix, suffix, .. } if prefix.is_empty() && suffix.is_empty() => {
                *self.parameter.get_or_insert(new)
            }
            Segment::Parameter { prefix, suffix, .. } => {
                let (prefix, suffix) = (spell(prefix), spell(suffix));
                let rank = |[prefix, suffix]: [usize; 2]| Reverse((prefix + suffix, prefix));
                let lengths = [prefix.len(), suffix.len()];
                let found = self.affixed.binary_search_by_key(&rank(lengths), |(lengths, _)| rank(*lengths));
                let index = found.unwrap_or_else(|index| {
                    self.affixed.insert(index, (lengths, Children::default()));
                    index
                });
                self.affixed[index].1.get_or_insert([&prefix, &suffix], new)
            }
        }
    }
}

impl Matcher {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a valid pattern. `ignore_case` must be the same as for the paths.
    pub(crate) fn insert(&mut self, pattern: &str, ignore_case: bool, found: PatternMatch) {
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

    /// Adds to `found` the patterns that match either spelling.
    pub(crate) fn find_spelled(&self, path: &Spelling<'_>, found: &mut PatternMatches) {
        self.find(&path.canonical, found);
        if let Some(resolved) = &path.resolved {
            let others = found.len();
            self.find(resolved, found);
            found[others..].iter_mut().for_each(|found| found.resolved = true);
        }
    }

    /// Adds to `found` the patterns that match a canonical path.
    fn find(&self, path: &str, found: &mut PatternMatches) {
        if let Some(root) = self.nodes.first() {
            self.descend(root, segments_left(path), found);
        }
    }

    fn descend(&self, node: &Node, left: Option<&str>, found: &mut PatternMatches) {
        let Some(left) = left else {
            // `/v1/{*rest}` also matches `/v1`: that is the canonical spelling
            // of `/v1//`, which a router matches with `/v1/{*rest}`.
            return found.extend(node.ends.iter().chain(&node.rests).copied());
        };
        let (segment, left) = split_segment(left);
        if let Some(child) = node.literals.get([segment, ""]) {
            self.descend(&self.nodes[child], left, found);
        }
        for ([prefix, suffix], children) in &node.affixed {
            // A parameter has at least one byte.
            if prefix + suffix < segment.len()
                && let Some(prefix) = segment.get(..*prefix)
                && let Some(suffix) = segment.get(segment.len() - suffix..)
                && let Some(child) = children.get([prefix, suffix])
            {
                self.descend(&self.nodes[child], left, found);
            }
        }
        if let Some(child) = node.parameter {
            self.descend(&self.nodes[child], left, found);
        }
        found.extend(node.rests.iter().copied());
    }
}

#[cfg(test)]
mod tests;
