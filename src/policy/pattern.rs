//! The syntax of path patterns, `/v1/{org}/file-{name}.txt` and `/static/{*rest}`, and the
//! spellings of the paths that they match: [`Spelling`].
//!
//! The syntax is that of axum's router, with `*` for a parameter without a name. A pattern that
//! [`check`] accepts can be inserted into the matcher, and some path matches it. Invariant:
//! paths that a router maps to the same route have the same canonical form. More paths may have
//! one form, so a match by it only adds a charge: one that takes a charge away needs the path
//! as it was sent.

use std::borrow::Cow;

use percent_encoding::{CONTROLS, percent_decode, percent_encode, utf8_percent_encode};

/// Bounds the work of a lookup.
const MAX_PARAMETERS: usize = 25;

/// The matcher recurses once per segment.
pub(super) const MAX_SEGMENTS: usize = 256;

const PARAMETER: &str = "a parameter needs a name and both its braces; write `{{` and `}}` for literal braces";
const ONE_PARAMETER: &str = "only one parameter is allowed in a segment";
const ASTERISK: &str = "`*` stands for one whole segment; `{*rest}` takes all that is left";
const REST: &str = "`{*rest}` is allowed only as the whole last segment";

/// One segment of a pattern.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Segment {
    Literal(String),
    Parameter { prefix: String, name: String, suffix: String },
    Rest,
}

impl Segment {
    /// The error is the reason. Parsed before it is decoded: an encoded brace is
    /// no syntax.
    fn parse(segment: &str) -> Result<Self, &'static str> {
        if segment == "*" {
            return Ok(Self::Parameter { prefix: String::new(), name: String::new(), suffix: String::new() });
        }
        let (mut prefix, mut name, mut text, mut is_open) = (String::new(), None, String::new(), false);
        let mut chars = segment.chars().peekable();
        while let Some(char) = chars.next() {
            match char {
                '}' if is_open => (name, is_open) = (Some(std::mem::take(&mut text)), false),
                '{' if is_open => return Err(PARAMETER),
                '{' | '}' if chars.next_if_eq(&char).is_some() => text.push(char),
                '}' => return Err(PARAMETER),
                '{' if name.is_some() => return Err(ONE_PARAMETER),
                '{' => (prefix, is_open) = (std::mem::take(&mut text), true),
                '*' if !is_open || !text.is_empty() => return Err(ASTERISK),
                _ => text.push(char),
            }
        }
        match name.as_deref() {
            _ if is_open => Err(PARAMETER),
            None => Ok(Self::Literal(text)),
            Some("" | "*") => Err(PARAMETER),
            Some(rest) if !rest.starts_with('*') => Ok(Self::Parameter { prefix, name: rest.into(), suffix: text }),
            Some(_) if prefix.is_empty() && text.is_empty() => Ok(Self::Rest),
            Some(_) => Err(REST),
        }
    }
}

/// The segments of a pattern that [`check`] has accepted.
pub(super) fn parse(pattern: &str) -> impl Iterator<Item = Segment> {
    segments(pattern).filter_map(|segment| Segment::parse(segment).ok())
}

/// Whether a pattern matches a path byte by byte, as in a router: nothing is decoded, and
/// each slash counts. Letters that no path can have stand for their percent-encoding.
pub(super) fn matches_as_sent(pattern: &str, path: &str) -> bool {
    let mut left = path.split('/');
    for segment in pattern.split('/').filter_map(|segment| Segment::parse(segment).ok()) {
        let is_match = match (segment, left.next()) {
            (Segment::Rest, _) => return true,
            (_, None) => false,
            (Segment::Literal(text), Some(sent)) => as_sent(&text) == sent,
            (Segment::Parameter { prefix, suffix, .. }, Some(sent)) => {
                let rest = sent.strip_prefix(&*as_sent(&prefix)).and_then(|rest| rest.strip_suffix(&*as_sent(&suffix)));
                rest.is_some_and(|value| !value.is_empty())
            }
        };
        if !is_match {
            return false;
        }
    }
    left.next().is_none()
}

fn as_sent(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, CONTROLS).into()
}

/// Checks a path pattern; the error is the reason.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Err("must not be empty".into());
    }
    if !pattern.starts_with('/') {
        return Err("must start with `/`".into());
    }
    if pattern.contains(['?', '#']) {
        return Err("must be only a path, without a query or a fragment".into());
    }
    if pattern.split('/').count() > MAX_SEGMENTS {
        return Err(format!("has more than {MAX_SEGMENTS} segments"));
    }
    if let Some(reason) = foreign(pattern) {
        return Err(reason);
    }
    let segments = pattern.split('/').map(Segment::parse).collect::<Result<Vec<_>, _>>()?;
    if segments.iter().rev().skip(1).any(|segment| *segment == Segment::Rest) {
        return Err(REST.into());
    }
    if segments.iter().filter(|segment| !matches!(segment, Segment::Literal(_))).count() > MAX_PARAMETERS {
        return Err(format!("has more than {MAX_PARAMETERS} parameters"));
    }
    Ok(())
}

/// What to write for a pattern with parameters in the syntax of another router,
/// such as `:id` and `<id>`, or without a brace or a name. `None` if it has none.
fn foreign(pattern: &str) -> Option<String> {
    let respelled: Vec<_> = pattern.split('/').map(|segment| (segment, respell(segment))).collect();
    let literal = respelled.iter().find_map(|(_, respelled)| respelled.as_ref().map(|(_, literal)| *literal))?;
    let respelled: Vec<_> = respelled
        .into_iter()
        .map(|(own, respelled)| respelled.map_or_else(|| own.to_owned(), |(new, _)| new))
        .collect();
    let is_valid = respelled.iter().all(|segment| Segment::parse(segment).is_ok());
    is_valid.then(|| format!("write `{}` for a parameter, and {literal}", respelled.join("/")))
}

/// A segment in the syntax of this module, and how to spell its letters where
/// they are meant literally.
fn respell(segment: &str) -> Option<(String, &'static str)> {
    if let Some(name) = segment.strip_prefix(':').filter(|name| !name.is_empty()) {
        let rest = name.strip_suffix(['*', '+']).map(|name| format!("{{*{name}}}"));
        return Some((rest.unwrap_or_else(|| format!("{{{name}}}")), "`%3A` for a literal colon"));
    }
    if let Some((prefix, rest)) = segment.split_once('<')
        && let Some((name, suffix)) = rest.split_once('>')
    {
        // Some routers write a type before the name.
        let (kind, name) = name.split_once(':').unwrap_or(("", name));
        let name = if name.is_empty() { "name" } else { name };
        let asterisk = if kind == "path" { "*" } else { "" };
        return Some((format!("{prefix}{{{asterisk}{name}}}{suffix}"), "`%3C` for a literal `<`"));
    }
    let braced = match (segment.split_once('{'), segment.split_once('}')) {
        (Some((prefix, "" | "}")), _) => format!("{prefix}{{name}}"),
        (Some(_), None) => format!("{segment}}}"),
        (None, Some((name, ""))) if !name.is_empty() => format!("{{{segment}"),
        _ => return None,
    };
    (Segment::parse(segment).is_err()).then_some((braced, "`{{` and `}}` for literal braces"))
}

/// The position of a parameter in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParameterPosition {
    segment: usize,
    prefix: usize,
    suffix: usize,
}

impl ParameterPosition {
    /// The position of the parameter `name` in a pattern.
    pub(super) fn find(pattern: &str, name: &str) -> Option<Self> {
        let length = |text: &str| decode(text.as_bytes(), false).len();
        parse(pattern).enumerate().find_map(|(segment, parsed)| match parsed {
            Segment::Parameter { prefix, name: found, suffix } if found == name => {
                Some(Self { segment, prefix: length(&prefix), suffix: length(&suffix) })
            }
            _ => None,
        })
    }

    /// The parameter's value in a canonical path that matches the pattern.
    pub(super) fn value<'p>(&self, path: &'p str) -> Option<&'p str> {
        let segment = segments(path).nth(self.segment)?;
        segment.get(self.prefix..segment.len().checked_sub(self.suffix)?)
    }
}

/// The spellings of a path. Nearly all paths have only one.
#[derive(Debug)]
pub(super) struct Spelling<'p> {
    canonical: Cow<'p, str>,
    /// With `.` and `..` segments resolved; `None` if the path has none.
    resolved: Option<String>,
}

impl<'p> Spelling<'p> {
    pub(super) fn new(path: &'p str, ignore_case: bool) -> Self {
        if is_usual(path, ignore_case) {
            return Self::only(path);
        }
        let canonical = canonical(path.as_bytes(), ignore_case);
        // Decoding can bring dots.
        let resolved = without_dots(&canonical);
        Self { canonical: canonical.into(), resolved }
    }

    /// The path as it was sent, and no other spelling.
    pub(super) fn only(path: &'p str) -> Self {
        Self { canonical: path.into(), resolved: None }
    }

    /// Whether the path has no other spelling, so that a pattern that matches does so as
    /// it was sent, but for the case of letters where that is ignored.
    pub(super) fn is_only(&self) -> bool {
        matches!(self.canonical, Cow::Borrowed(_))
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
fn canonical(path: &[u8], ignore_case: bool) -> String {
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

#[cfg(test)]
mod tests;
