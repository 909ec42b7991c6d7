//! Finds the rules whose path patterns match a request, in a tree of segments.
//! It knows paths only: methods and tenants are checked elsewhere.
//!
//! Invariant: it returns every match, not only the best one.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{BuildHasher, Hasher},
};

use foldhash::fast::RandomState;
use percent_encoding::{CONTROLS, percent_decode, percent_encode};
use smallvec::SmallVec;

/// A pattern of a rule: the indices of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RulePattern {
    pub(crate) rule: u32,
    pub(crate) pattern: u16,
    /// Matches the path with its `.` and `..` segments resolved.
    pub(crate) resolved: bool,
}

pub(crate) type RulePatterns = SmallVec<[RulePattern; 4]>;

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
    literals: Literals,
    /// Children for parameters, those with the longest prefix and suffix first.
    parameters: Vec<Parameter>,
    /// Patterns that end here.
    ends: Vec<RulePattern>,
    /// Patterns whose `{*rest}` matches all remaining segments.
    rests: Vec<RulePattern>,
}

/// Children for literal segments, found by hash and then compared.
#[derive(Debug, Default)]
struct Literals {
    children: HashMap<u64, Alike, RandomState>,
}

/// Children whose segments have the same hash.
type Alike = SmallVec<[(Box<str>, usize); 1]>;

impl Literals {
    fn get(&self, segment: &str) -> Option<usize> {
        if self.children.is_empty() {
            return None;
        }
        let alike = self.children.get(&self.hash(segment))?;
        alike.iter().find(|(literal, _)| same(literal, segment)).map(|(_, child)| *child)
    }

    fn insert(&mut self, segment: String, child: usize) {
        self.children.entry(self.hash(&segment)).or_default().push((segment.into(), child));
    }

    fn hash(&self, segment: &str) -> u64 {
        let mut hasher = self.children.hasher().build_hasher();
        hasher.write(segment.as_bytes());
        hasher.finish()
    }
}

/// Compares short strings. The C library's `memcmp` is optimized for long ones:
/// its masked loads near the end of a page cost some processors hundreds of
/// nanoseconds.
pub(super) fn same(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).all(|(one, other)| one == other)
}

#[derive(Debug)]
struct Parameter {
    prefix: Box<str>,
    suffix: Box<str>,
    child: usize,
}

impl Parameter {
    fn takes(&self, segment: &str) -> bool {
        if self.prefix.is_empty() && self.suffix.is_empty() {
            return !segment.is_empty();
        }
        segment.len() > self.prefix.len() + self.suffix.len()
            && segment.starts_with(&*self.prefix)
            && segment.ends_with(&*self.suffix)
    }
}

impl Matcher {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a valid pattern. `ignore_case` must be the same as for the paths.
    pub(crate) fn insert(&mut self, pattern: &str, ignore_case: bool, endpoint: RulePattern) {
        let mut at = self.root();
        // Parsed before it is decoded: an encoded brace is no syntax.
        let spell = |text: &str| decode(text.as_bytes(), ignore_case);
        for segment in pattern.split('/').filter(|segment| !segment.is_empty()) {
            match Segment::parse(segment) {
                Segment::Rest => return self.nodes[at].rests.push(endpoint),
                Segment::Literal(literal) => at = self.literal(at, spell(&literal)),
                Segment::Parameter { prefix, suffix, .. } => at = self.parameter(at, &spell(&prefix), &spell(&suffix)),
            }
        }
        self.nodes[at].ends.push(endpoint);
    }

    fn root(&mut self) -> usize {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        0
    }

    fn add_node(&mut self) -> usize {
        self.nodes.push(Node::default());
        self.nodes.len() - 1
    }

    fn literal(&mut self, parent: usize, literal: String) -> usize {
        if let Some(child) = self.nodes[parent].literals.get(&literal) {
            return child;
        }
        let child = self.add_node();
        self.nodes[parent].literals.insert(literal, child);
        child
    }

    fn parameter(&mut self, parent: usize, prefix: &str, suffix: &str) -> usize {
        let same = |parameter: &&Parameter| *parameter.prefix == *prefix && *parameter.suffix == *suffix;
        if let Some(parameter) = self.nodes[parent].parameters.iter().find(same) {
            return parameter.child;
        }
        let child = self.add_node();
        let parameters = &mut self.nodes[parent].parameters;
        parameters.push(Parameter { prefix: prefix.into(), suffix: suffix.into(), child });
        parameters.sort_by_key(|parameter| std::cmp::Reverse(parameter.prefix.len() + parameter.suffix.len()));
        child
    }

    /// Adds to `found` the patterns that match either spelling.
    pub(crate) fn find_spelled(&self, path: &Spelling<'_>, found: &mut RulePatterns) {
        self.find(&path.canonical, found);
        if let Some(resolved) = &path.resolved {
            let others = found.len();
            self.find(resolved, found);
            found[others..].iter_mut().for_each(|endpoint| endpoint.resolved = true);
        }
    }

    /// Adds to `found` the patterns that match a canonical path.
    fn find(&self, path: &str, found: &mut RulePatterns) {
        if let Some(root) = self.nodes.first() {
            self.descend(root, segments_left(path), found);
        }
    }

    fn descend(&self, node: &Node, left: Option<&str>, found: &mut RulePatterns) {
        let Some(left) = left else {
            // `/v1/{*rest}` also matches `/v1`: that is the canonical spelling
            // of `/v1//`, which a router matches with `/v1/{*rest}`.
            return found.extend(node.ends.iter().chain(&node.rests).copied());
        };
        let (segment, left) = split_segment(left);
        if let Some(child) = node.literals.get(segment) {
            self.descend(&self.nodes[child], left, found);
        }
        for parameter in &node.parameters {
            if parameter.takes(segment) {
                self.descend(&self.nodes[parameter.child], left, found);
            }
        }
        found.extend(node.rests.iter().copied());
    }
}

/// One segment of a pattern.
#[derive(Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Parameter { prefix: String, name: String, suffix: String },
    Rest,
}

impl Segment {
    /// Parses matchit's syntax: `{name}`, `{*rest}`, and `{{` and `}}` for
    /// braces. Also parses `*` as an unnamed parameter.
    fn parse(segment: &str) -> Self {
        if segment == "*" {
            return Self::Parameter { prefix: String::new(), name: String::new(), suffix: String::new() };
        }
        let (mut prefix, mut name, mut text) = (String::new(), None, String::new());
        let mut chars = segment.chars().peekable();
        while let Some(char) = chars.next() {
            match char {
                '{' | '}' if chars.peek() == Some(&char) => {
                    chars.next();
                    text.push(char);
                }
                '{' => prefix = std::mem::take(&mut text),
                '}' => name = Some(std::mem::take(&mut text)),
                _ => text.push(char),
            }
        }
        match name {
            None => Self::Literal(text),
            Some(name) if name.starts_with('*') => Self::Rest,
            Some(name) => Self::Parameter { prefix, name, suffix: text },
        }
    }
}

/// The position of a parameter in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParameterPlace {
    segment: usize,
    prefix: usize,
    suffix: usize,
}

impl ParameterPlace {
    /// The position of the parameter `name` in a pattern.
    pub(crate) fn find(pattern: &str, name: &str) -> Option<Self> {
        let segments = pattern.split('/').filter(|segment| !segment.is_empty());
        let length = |text: &str| decode(text.as_bytes(), false).len();
        segments.enumerate().find_map(|(segment, text)| match Segment::parse(text) {
            Segment::Parameter { prefix, name: found, suffix } if found == name => {
                Some(Self { segment, prefix: length(&prefix), suffix: length(&suffix) })
            }
            _ => None,
        })
    }

    /// The parameter's value in a canonical path that matches the pattern.
    pub(crate) fn value<'p>(&self, path: &'p str) -> Option<&'p str> {
        let segment = segments(path).nth(self.segment)?;
        segment.get(self.prefix..segment.len().checked_sub(self.suffix)?)
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    let mut left = segments_left(path);
    std::iter::from_fn(move || {
        let (segment, rest) = split_segment(left?);
        left = rest;
        Some(segment)
    })
}

/// The path after the leading slash; `None` for the root.
fn segments_left(path: &str) -> Option<&str> {
    let path = path.strip_prefix('/').unwrap_or(path);
    (!path.is_empty()).then_some(path)
}

fn split_segment(path: &str) -> (&str, Option<&str>) {
    match path.bytes().position(|byte| byte == b'/') {
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (path, None),
    }
}

/// The spellings under which a path is looked up.
#[derive(Debug, Default)]
pub(crate) struct Spelling<'p> {
    canonical: Cow<'p, str>,
    /// With `.` and `..` segments resolved; `None` if the path has none.
    resolved: Option<String>,
}

impl<'p> Spelling<'p> {
    pub(crate) fn new(path: &'p str, ignore_case: bool) -> Self {
        let canonical = canonical(path, ignore_case);
        Self { resolved: without_dots(&canonical), canonical }
    }

    /// The spelling that a pattern matched.
    pub(crate) fn of(&self, endpoint: RulePattern) -> &str {
        match &self.resolved {
            Some(resolved) if endpoint.resolved => resolved,
            _ => &self.canonical,
        }
    }
}

/// The canonical spelling of a path: no repeated slash, no trailing slash, and
/// nothing percent-encoded except slashes and bytes that are not UTF-8. With
/// `ignore_case`, it is in ASCII lower case.
///
/// Paths that a router maps to the same route must have the same spelling.
/// Mapping more paths to one spelling is harmless.
fn canonical(path: &str, ignore_case: bool) -> Cow<'_, str> {
    let bytes = path.as_bytes();
    let mut last = 0;
    let mut plain = bytes.len() == 1 || bytes.last() != Some(&b'/');
    for &byte in bytes {
        plain &= byte != b'%' && !(byte == b'/' && last == b'/') && !(ignore_case && byte.is_ascii_uppercase());
        last = byte;
    }
    if plain { Cow::Borrowed(path) } else { Cow::Owned(respell(bytes, ignore_case)) }
}

#[cold]
fn respell(path: &[u8], ignore_case: bool) -> String {
    let mut spelled = String::with_capacity(path.len());
    for segment in path.split(|&byte| byte == b'/').filter(|segment| !segment.is_empty()) {
        spelled.push('/');
        spelled.push_str(&decode(segment, ignore_case));
    }
    if spelled.is_empty() {
        spelled.push('/');
    }
    spelled
}

/// Decodes a segment. Slashes and bytes that are not UTF-8 stay
/// percent-encoded.
fn decode(segment: &[u8], ignore_case: bool) -> String {
    let decoded: Cow<'_, [u8]> = percent_decode(segment).into();
    let mut text = String::with_capacity(decoded.len());
    for chunk in decoded.utf8_chunks() {
        text.push_str(&chunk.valid().replace('/', "%2F"));
        text.extend(percent_encode(chunk.invalid(), CONTROLS));
    }
    if ignore_case {
        text.make_ascii_lowercase();
    }
    text
}

/// Resolves the `.` and `..` segments of a path, as a server behind this one
/// may do. `None` if it has none.
fn without_dots(path: &str) -> Option<String> {
    let dots = |segment: &str| segment == "." || segment == "..";
    if !path.contains("/.") || !segments(path).any(dots) {
        return None;
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in segments(path) {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(segment),
        }
    }
    Some(format!("/{}", kept.join("/")))
}

#[cfg(test)]
mod tests;
