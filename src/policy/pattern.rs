//! The syntax of path patterns: `/v1/{org}/file-{name}.txt`, `/static/{*rest}`.
//!
//! It is that of axum's router, with `*` for a parameter without a name. A
//! pattern that [`check`] accepts can be inserted into the matcher, and some
//! path matches it.

use super::spelling::{decode, segments};

/// Bounds the work of a lookup.
const MAX_PARAMETERS: usize = 25;

/// The matcher recurses once per segment.
const MAX_SEGMENTS: usize = 256;

const PARAMETER: &str = "a parameter needs a name and both its braces; write `{{` and `}}` for literal braces";
const ONE_PARAMETER: &str = "only one parameter is allowed in a segment";
const ASTERISK: &str = "`*` stands for one whole segment; `{*rest}` takes all that is left";
const REST: &str = "`{*rest}` is allowed only as the whole last segment";

/// One segment of a pattern.
#[derive(Debug, PartialEq, Eq)]
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
    for segment in pattern.split('/') {
        let colon = segment.strip_prefix(':').filter(|name| !name.is_empty());
        let angles = || segment.strip_prefix('<')?.strip_suffix('>');
        if let Some(name) = colon.or_else(angles) {
            return Err(format!("write `{{{name}}}` for a parameter, and `%3A` for a literal colon"));
        }
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

/// The position of a parameter in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParameterPosition {
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

#[cfg(test)]
mod tests;
