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
        let Scan { is_canonical, may_have_dots } = scan(path, ignore_case);
        // Decoding can bring dots.
        if !is_canonical {
            let canonical = respell(path.as_bytes(), ignore_case);
            return Self { resolved: without_dots(&canonical), canonical: Cow::Owned(canonical) };
        }
        Self { resolved: if may_have_dots { without_dots(path) } else { None }, canonical: Cow::Borrowed(path) }
    }

    /// The spelling that a pattern matched.
    pub(super) fn matched(&self, resolved: bool) -> &str {
        self.resolved.as_deref().filter(|_| resolved).unwrap_or(&self.canonical)
    }
}

/// What one pass over a path tells. Nearly all paths are canonical and have no dots.
struct Scan {
    is_canonical: bool,
    /// Whether a segment starts with a dot, as in `/..` and in `/.well-known`.
    may_have_dots: bool,
}

fn scan(path: &str, ignore_case: bool) -> Scan {
    let bytes = path.as_bytes();
    let (mut is_canonical, mut may_have_dots, mut last) = (true, false, 0);
    for &byte in bytes {
        is_canonical &= byte != b'%' && !(byte == b'/' && last == b'/');
        may_have_dots |= byte == b'.' && last == b'/';
        last = byte;
    }
    is_canonical &= bytes.len() == 1 || last != b'/';
    is_canonical &= !(ignore_case && bytes.iter().any(u8::is_ascii_uppercase));
    Scan { is_canonical, may_have_dots }
}

/// The canonical spelling of a path: no repeated slash, no trailing slash, and
/// nothing percent-encoded except slashes and bytes that are not UTF-8. With
/// `ignore_case`, it is in ASCII lower case.
///
/// Paths that a router maps to the same route must have the same spelling.
/// Mapping more paths to one spelling is harmless.
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
