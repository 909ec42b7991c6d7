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
        Self(if is_usual(path.as_bytes(), ignore_case) { None } else { OtherSpellings::new(path, ignore_case) })
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
    fn new(path: &str, ignore_case: bool) -> Option<Box<Self>> {
        let canonical = Some(respell(path.as_bytes(), ignore_case)).filter(|canonical| canonical != path);
        // Decoding can bring dots.
        let resolved = without_dots(canonical.as_deref().unwrap_or(path));
        (canonical.is_some() || resolved.is_some()).then(|| Box::new(Self { canonical, resolved }))
    }
}

/// True only if a path has no other spelling. False for a few such paths too, as
/// `/.well-known`.
///
/// Eight bytes at a time: byte by byte, a path of 10 bytes took 95 instructions more. Out of
/// line: inlined, it keeps [`Spelling::new`] out of line, which then returns in memory.
#[inline(never)]
fn is_usual(path: &[u8], ignore_case: bool) -> bool {
    let mut seen = Seen::default();
    match path.last_chunk() {
        Some(last) => {
            let mut left = path;
            while let Some((word, behind)) = left.split_first_chunk() {
                seen.add(*word);
                left = behind;
            }
            // The first of these was seen behind the byte before it.
            seen.before = 0;
            seen.add(*last);
        }
        None => {
            let mut word = [0; 8];
            word[..path.len()].copy_from_slice(path);
            seen.add(word);
        }
    }
    let ends_in_slash = path.len() != 1 && path.last().is_none_or(|last| *last == b'/');
    let folds = ignore_case && path.iter().any(u8::is_ascii_uppercase);
    seen.unusual & HIGH_BITS == 0 && !ends_in_slash && !folds
}

const LOWEST_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = LOWEST_BITS << 7;
const SLASHES: u64 = LOWEST_BITS * b'/' as u64;
const PERCENTS: u64 = LOWEST_BITS * b'%' as u64;

/// What was seen in the words of a path. Of each byte, only the highest bit counts.
#[derive(Default)]
struct Seen {
    /// Percent signs, and slashes or dots behind one another.
    unusual: u64,
    /// The slashes and dots of the word before.
    before: u64,
}

impl Seen {
    #[inline]
    fn add(&mut self, word: [u8; 8]) {
        let word = u64::from_le_bytes(word);
        // A dot differs from a slash in the lowest bit alone.
        let slashes_or_dots = zeros((word | LOWEST_BITS) ^ SLASHES);
        let behind_one = slashes_or_dots << 8 | self.before >> 56;
        self.unusual |= zeros(word ^ PERCENTS) | slashes_or_dots & behind_one;
        self.before = slashes_or_dots;
    }
}

/// In the highest bit of each byte, whether it is zero. May also be set for a byte of 1 behind
/// a zero, so the lowest that is set is right.
#[inline]
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(LOWEST_BITS) & !word
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
        let slashes = zeros(u64::from_le_bytes(*word) ^ SLASHES) & HIGH_BITS;
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
