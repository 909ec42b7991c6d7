//! The spellings of a path: its canonical form, and the form with its dots
//! resolved.
//!
//! Invariant: paths that a router maps to the same route have the same
//! canonical form. More paths may have one form, so a match by it only adds a charge:
//! one that takes a charge away needs the path as it was sent.

use std::borrow::Cow;

use percent_encoding::{CONTROLS, percent_decode, percent_encode};

/// The spellings of a path. Nearly all paths have only one.
#[derive(Debug)]
pub(crate) struct Spelling<'p> {
    canonical: Cow<'p, str>,
    /// With `.` and `..` segments resolved; `None` if the path has none.
    resolved: Option<String>,
    ignores_case: bool,
}

impl<'p> Spelling<'p> {
    pub(crate) fn new(path: &'p str, ignore_case: bool) -> Self {
        if is_usual(path, ignore_case) {
            return Self { ignores_case: ignore_case, ..Self::only(path) };
        }
        let canonical = respell(path.as_bytes(), ignore_case);
        // Decoding can bring dots.
        let resolved = without_dots(&canonical);
        Self { canonical: canonical.into(), resolved, ignores_case: ignore_case }
    }

    /// The path as it was sent, and no other spelling.
    pub(super) fn only(path: &'p str) -> Self {
        Self { canonical: path.into(), resolved: None, ignores_case: false }
    }

    /// Whether the path has no other spelling, so that a pattern that matches does so as
    /// it was sent.
    pub(super) fn is_only(&self) -> bool {
        matches!(self.canonical, Cow::Borrowed(_)) && !self.ignores_case
    }

    pub(super) fn canonical(&self) -> &str {
        &self.canonical
    }

    /// With `.` and `..` segments resolved; `None` if the path has none.
    pub(super) fn resolved(&self) -> Option<&str> {
        self.resolved.as_deref()
    }

    /// The spelling that a pattern matched.
    pub(super) fn matched(&self, resolved: bool) -> &str {
        self.resolved().filter(|_| resolved).unwrap_or(&self.canonical)
    }
}

/// True only if a path has no other spelling. False for a few such paths too, as
/// `/.well-known`.
fn is_usual(path: &str, ignore_case: bool) -> bool {
    let path = path.as_bytes();
    let is_whole = path.len() == 1 || path.last().is_some_and(|last| *last != b'/');
    let has_upper_case = ignore_case && path.iter().any(u8::is_ascii_uppercase);
    let is_unusual = |byte: u8, next: u8| next == b'%' || byte == b'/' && (next == b'/' || next == b'.');
    // Without an early exit, so that the compiler looks at many bytes at once: searches for
    // each text took 800 instructions more.
    let starts_encoded = path.first() == Some(&b'%');
    let pairs = path.iter().zip(path.iter().skip(1));
    let has_unusual = pairs.fold(starts_encoded, |unusual, (byte, next)| unusual | is_unusual(*byte, *next));
    is_whole && !has_upper_case && !has_unusual
}

/// The canonical spelling of a path: no repeated slash, no trailing slash, and
/// nothing percent-encoded except slashes and bytes that are not UTF-8. With
/// `ignore_case`, it is in ASCII lower case.
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
pub(super) fn decode(segment: &[u8], ignore_case: bool) -> String {
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

/// The segments of a path or a pattern.
pub(super) fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// The path after the leading slash; `None` for the root.
pub(super) fn segments_left(path: &str) -> Option<&str> {
    let path = path.strip_prefix('/').unwrap_or(path);
    (!path.is_empty()).then_some(path)
}

/// The first segment, and what follows its slash.
pub(super) fn split_segment(path: &str) -> (&str, Option<&str>) {
    match path.bytes().position(|byte| byte == b'/') {
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (path, None),
    }
}

#[cfg(test)]
mod tests;
