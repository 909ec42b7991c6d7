//! The spellings of a path: its canonical form, and the form with its dots
//! resolved.
//!
//! Invariant: paths that a router maps to the same route have the same
//! canonical form. Mapping more paths to one form is harmless.

use std::borrow::Cow;

use percent_encoding::{CONTROLS, percent_decode, percent_encode};

/// The spellings under which a path is looked up.
#[derive(Debug, Default)]
pub(crate) struct Spelling<'p> {
    pub(super) canonical: Cow<'p, str>,
    /// With `.` and `..` segments resolved; `None` if the path has none.
    pub(super) resolved: Option<String>,
}

impl<'p> Spelling<'p> {
    pub(crate) fn new(path: &'p str, ignore_case: bool) -> Self {
        if is_plain(path, ignore_case) {
            return Self { canonical: Cow::Borrowed(path), resolved: None };
        }
        let canonical = canonical(path, ignore_case);
        Self { resolved: without_dots(&canonical), canonical }
    }

    /// The spelling that a pattern matched.
    pub(super) fn matched(&self, resolved: bool) -> &str {
        self.resolved.as_deref().filter(|_| resolved).unwrap_or(&self.canonical)
    }
}

/// Whether a path has one spelling, which is its canonical one, as nearly all have.
/// False for some others that have one too, such as `/.well-known`.
fn is_plain(path: &str, ignore_case: bool) -> bool {
    // The dot is the byte before the slash.
    const DOT_OR_SLASH: u8 = b'.' | 1;
    let (mut is_plain, mut last) = (true, 0);
    for &byte in path.as_bytes() {
        is_plain &= byte != b'%' && (last != b'/' || byte | 1 != DOT_OR_SLASH);
        last = byte;
    }
    is_plain
        && (last != b'/' || path.len() == 1)
        && !(ignore_case && path.bytes().any(|byte| byte.is_ascii_uppercase()))
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

pub(super) fn split_segment(path: &str) -> (&str, Option<&str>) {
    match path.bytes().position(|byte| byte == b'/') {
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (path, None),
    }
}

#[cfg(test)]
mod tests;
