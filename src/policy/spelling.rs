//! The spellings of a path: its canonical form, and the form with its dots
//! resolved.
//!
//! Invariant: paths that a router maps to the same route have the same
//! canonical form. Mapping more paths to one form is harmless.

use std::borrow::Cow;

use percent_encoding::{CONTROLS, percent_decode, percent_encode};

/// The spellings of a path that differ from the path itself. Nearly all paths have none.
///
/// It does not hold the path: to copy a reference that was just written waits for it, and
/// one of ten rules took 110 ns instead of 98. Invariant: its methods get the path that it
/// was made of.
#[derive(Debug, Default)]
pub(crate) struct Spelling(Option<Box<OtherSpellings>>);

#[derive(Debug)]
struct OtherSpellings {
    /// `None` if the path is canonical as it is.
    canonical: Option<String>,
    /// With `.` and `..` segments resolved; `None` if the path has none.
    resolved: Option<String>,
}

impl Spelling {
    #[inline]
    pub(crate) fn new(path: &str, ignore_case: bool) -> Self {
        let scan = scan(path, ignore_case);
        let is_usual = scan.is_canonical && !scan.may_have_dots;
        Self(if is_usual { None } else { OtherSpellings::new(path, scan.is_canonical, ignore_case) })
    }

    /// The canonical spelling of `path`.
    #[inline]
    pub(super) fn canonical<'a>(&'a self, path: &'a str) -> &'a str {
        self.0.as_ref().and_then(|other| other.canonical.as_deref()).unwrap_or(path)
    }

    /// With `.` and `..` segments resolved; `None` if the path has none.
    #[inline]
    pub(super) fn resolved(&self) -> Option<&str> {
        self.0.as_ref()?.resolved.as_deref()
    }

    /// The spelling of `path` that a pattern matched.
    #[inline]
    pub(super) fn matched<'a>(&'a self, path: &'a str, resolved: bool) -> &'a str {
        self.resolved().filter(|_| resolved).unwrap_or_else(|| self.canonical(path))
    }
}

impl OtherSpellings {
    #[cold]
    fn new(path: &str, is_canonical: bool, ignore_case: bool) -> Option<Box<Self>> {
        let canonical = (!is_canonical).then(|| respell(path.as_bytes(), ignore_case));
        // Decoding can bring dots.
        let resolved = without_dots(canonical.as_deref().unwrap_or(path));
        (canonical.is_some() || resolved.is_some()).then(|| Box::new(Self { canonical, resolved }))
    }
}

/// What one pass over a path tells. Nearly all paths are canonical and have no dots.
struct Scan {
    is_canonical: bool,
    /// Whether a segment starts with a dot, as in `/..` and in `/.well-known`.
    may_have_dots: bool,
}

/// Eight bytes at a time: byte by byte, a path of 10 bytes took 95 instructions more. Out
/// of line: inlined, it keeps [`Spelling::new`] out of line, which then returns in memory.
#[inline(never)]
fn scan(path: &str, ignore_case: bool) -> Scan {
    let bytes = path.as_bytes();
    let mut seen = Seen::default();
    match bytes.last_chunk() {
        Some(last) => {
            let mut slash_before = false;
            for word in bytes.as_chunks().0 {
                slash_before = seen.add(*word, slash_before);
            }
            // Some bytes may be seen twice, each after the same byte.
            seen.add(*last, bytes.len() > 8 && bytes[bytes.len() - 9] == b'/');
        }
        None => {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            seen.add(word, false);
        }
    }
    let ends_in_slash = bytes.len() != 1 && bytes.last().is_none_or(|last| *last == b'/');
    let folds = ignore_case && bytes.iter().any(u8::is_ascii_uppercase);
    Scan {
        is_canonical: seen.percents == 0 && seen.slashes_after_slash == 0 && !ends_in_slash && !folds,
        may_have_dots: seen.dots_after_slash != 0,
    }
}

/// What was seen in the words of a path. Not zero where it was.
#[derive(Default)]
struct Seen {
    percents: u64,
    slashes_after_slash: u64,
    dots_after_slash: u64,
}

impl Seen {
    /// Whether the word ends in a slash.
    #[inline]
    fn add(&mut self, word: [u8; 8], slash_before: bool) -> bool {
        let word = u64::from_le_bytes(word);
        let slashes = equal(word, b'/');
        let after_slash = slashes << 8 | u64::from(slash_before) << 7;
        self.percents |= equal(word, b'%');
        self.slashes_after_slash |= slashes & after_slash;
        self.dots_after_slash |= equal(word, b'.') & after_slash;
        slashes >> 63 == 1
    }
}

/// The highest bit of each byte of `word` that equals `byte`.
#[inline]
const fn equal(word: u64, byte: u8) -> u64 {
    const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // Zero where they are equal.
    let difference = word ^ u64::from_le_bytes([byte; 8]);
    !(((difference & LOW_BITS) + LOW_BITS) | difference | LOW_BITS)
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

/// The first segment, and what follows its slash. Eight bytes at a time: how many steps
/// that takes is easier to predict than where a segment ends.
#[inline]
pub(super) fn split_segment(path: &str) -> (&str, Option<&str>) {
    let (words, rest) = path.as_bytes().as_chunks();
    let in_words = words.iter().zip((0..).step_by(8)).find_map(|(word, start)| {
        let slashes = equal(u64::from_le_bytes(*word), b'/');
        (slashes != 0).then(|| start + slashes.trailing_zeros() as usize / 8)
    });
    let slash = in_words.or_else(|| Some(words.len() * 8 + rest.iter().position(|byte| *byte == b'/')?));
    match slash {
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (path, None),
    }
}

#[cfg(test)]
mod tests;
