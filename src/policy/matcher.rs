//! Finds the rules whose path patterns match a request, in a tree of segments.
//! It knows paths only: methods and tenants are checked elsewhere.
//!
//! Invariant: it returns every match, not only the best one.

use std::{
    cmp::Reverse,
    collections::HashMap,
    hash::{BuildHasher, Hasher},
    mem,
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

impl PatternMatch {
    /// The pattern of a rule that applies although none matches.
    pub(super) const NONE: u16 = u16::MAX;
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
    literals: Texts,
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

/// At least what a node takes, with its entry in the node above.
pub(super) const NODE_BYTES: usize = size_of::<Node>() + 4 * size_of::<(u64, Numbered)>() + 64;

/// A number for each of several texts.
#[derive(Debug)]
enum Texts {
    /// At most [`MAX_COMPARED`], compared one by one: most nodes have few children, and with
    /// paths of four segments one of ten rules takes 109 ns, and not 127.
    Few(Numbered),
    /// By their hash. Those with the same one are compared.
    Many(HashMap<u64, Numbered, RandomState>),
}

/// Texts, each with its number.
type Numbered = SmallVec<[(Box<str>, usize); 1]>;

/// The most texts of a node that are compared without hashing.
const MAX_COMPARED: usize = 4;

impl Default for Texts {
    fn default() -> Self {
        Self::Few(Numbered::new())
    }
}

impl Texts {
    #[inline]
    fn get(&self, text: &str) -> Option<usize> {
        #[cfg(test)]
        LOOKUPS.set(LOOKUPS.get() + 1);
        let texts = match self {
            Self::Few(texts) => texts,
            Self::Many(by_hash) => by_hash.get(&hash(by_hash.hasher(), text))?,
        };
        texts.iter().find(|(own, _)| same(own, text)).map(|(_, number)| *number)
    }

    /// The number of this text, which is `new` if it had none.
    fn get_or_insert(&mut self, text: &str, new: usize) -> usize {
        self.get(text).unwrap_or_else(|| {
            self.insert(text.into(), new);
            new
        })
    }

    fn insert(&mut self, text: Box<str>, number: usize) {
        match self {
            Self::Few(texts) if texts.len() < MAX_COMPARED => texts.push((text, number)),
            Self::Few(texts) => {
                let texts = mem::take(texts);
                *self = Self::Many(HashMap::default());
                texts.into_iter().chain([(text, number)]).for_each(|(text, number)| self.insert(text, number));
            }
            Self::Many(by_hash) => {
                let hash = hash(by_hash.hasher(), &text);
                by_hash.entry(hash).or_default().push((text, number));
            }
        }
    }
}

fn hash(hasher: &RandomState, text: &str) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Children for parameters with a prefix or a suffix.
///
/// Both are looked up by themselves, once for each of their lengths, and then
/// the pairs of those that match. To look up each pair of lengths would take the
/// square of the time.
#[derive(Debug, Default)]
struct Affixed {
    prefixes: Affixes,
    suffixes: Affixes,
    /// By the numbers of prefix and suffix.
    children: HashMap<(usize, usize), usize, RandomState>,
}

/// The prefixes, or the suffixes, of a node's parameters.
#[derive(Debug, Default)]
struct Affixes {
    /// In bytes, ascending.
    lengths: Vec<usize>,
    texts: Texts,
    count: usize,
}

impl Affixes {
    fn get_or_insert(&mut self, text: &str) -> usize {
        if let Err(index) = self.lengths.binary_search(&text.len()) {
            self.lengths.insert(index, text.len());
        }
        let number = self.texts.get_or_insert(text, self.count);
        self.count = self.count.max(number + 1);
        number
    }

    /// Those that `cut` finds in the segment, the shortest first.
    fn matching<'s>(&self, segment: &'s str, cut: impl Fn(&'s str, usize) -> Option<&'s str>) -> Matching {
        // A parameter has at least one byte.
        let lengths = self.lengths.iter().take_while(|length| **length < segment.len());
        lengths.filter_map(|&length| Some((length, self.texts.get(cut(segment, length)?)?))).collect()
    }
}

/// Affixes by length and number.
type Matching = SmallVec<[(usize, usize); 4]>;

impl Affixed {
    fn child(&mut self, prefix: &str, suffix: &str, new: usize) -> usize {
        let pair = (self.prefixes.get_or_insert(prefix), self.suffixes.get_or_insert(suffix));
        *self.children.entry(pair).or_insert(new)
    }

    /// The children for a segment; those with the longest text in total first.
    fn matching(&self, segment: &str) -> impl Iterator<Item = usize> {
        let prefixes = self.prefixes.matching(segment, |segment, length| segment.get(..length));
        let suffixes = self.suffixes.matching(segment, |segment, length| segment.get(segment.len() - length..));
        let mut found = SmallVec::<[(Reverse<(usize, usize)>, usize); 4]>::new();
        for &(prefix, first) in &prefixes {
            let fits = |(suffix, _): &&(usize, usize)| prefix + suffix < segment.len();
            for &(suffix, second) in suffixes.iter().take_while(fits) {
                let child = self.children.get(&(first, second));
                found.extend(child.map(|child| (Reverse((prefix + suffix, prefix)), *child)));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, child)| child)
    }
}

/// Compares short strings, eight or four bytes at a time. The C library's `memcmp` is optimized
/// for long ones: its masked loads near the end of a page cost some processors hundreds
/// of nanoseconds.
#[inline]
pub(super) fn same(one: &str, other: &str) -> bool {
    fn words_are_same<const BYTES: usize>(one: &[u8], other: &[u8]) -> Option<bool> {
        // The last word may overlap with the one before.
        let is_last_same = one.last_chunk::<BYTES>()? == other.last_chunk::<BYTES>()?;
        let (words, others) = (one.as_chunks::<BYTES>().0, other.as_chunks::<BYTES>().0);
        Some(is_last_same && words.iter().zip(others).all(|(one, other)| one == other))
    }
    let (one, other) = (one.as_bytes(), other.as_bytes());
    one.len() == other.len()
        && words_are_same::<8>(one, other)
            .or_else(|| words_are_same::<4>(one, other))
            .unwrap_or_else(|| one.iter().zip(other).all(|(one, other)| one == other))
}

impl Node {
    /// The child for `segment`, which is `new` if there was none.
    fn child(&mut self, segment: &Segment, ignore_case: bool, new: usize) -> usize {
        let spell = |text: &str| decode(text.as_bytes(), ignore_case);
        match segment {
            Segment::Rest => new,
            Segment::Literal(text) => self.literals.get_or_insert(&spell(text), new),
            Segment::Parameter { prefix, suffix, .. } if prefix.is_empty() && suffix.is_empty() => {
                *self.parameter.get_or_insert(new)
            }
            Segment::Parameter { prefix, suffix, .. } => {
                self.affixed.get_or_insert_default().child(&spell(prefix), &spell(suffix), new)
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

    /// Adds to `found` the patterns that match either spelling of a path.
    pub(crate) fn find_spelled(&self, path: &str, spelling: &Spelling, found: &mut PatternMatches) {
        self.find(spelling.canonical(path), found);
        if let Some(resolved) = spelling.resolved() {
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

    fn descend<'m>(&'m self, mut node: &'m Node, mut left: Option<&str>, found: &mut PatternMatches) {
        while let Some(path) = left {
            let (segment, rest) = split_segment(path);
            let literal = node.literals.get(segment);
            let is_plain = node.affixed.is_none() && node.rests.is_empty();
            match (literal, node.parameter) {
                // Nearly always there is at most one way on.
                (Some(child), None) | (None, Some(child)) if is_plain => node = &self.nodes[child],
                (None, None) if is_plain => return,
                (literal, parameter) => {
                    let affixed = node.affixed.iter().flat_map(|affixed| affixed.matching(segment));
                    let children = literal.into_iter().chain(affixed).chain(parameter);
                    children.for_each(|child| self.descend(&self.nodes[child], rest, found));
                    return node.rests.iter().for_each(|pattern| found.push(*pattern));
                }
            }
            left = rest;
        }
        // `/v1/{*rest}` also matches `/v1`: that is the canonical spelling
        // of `/v1//`, which a router matches with `/v1/{*rest}`.
        node.ends.iter().chain(&node.rests).for_each(|pattern| found.push(*pattern));
    }
}

#[cfg(test)]
thread_local! {
    /// How many texts were looked up.
    static LOOKUPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests;
