//! Bounded access to the fields of a response.

use std::str;

use http::{HeaderMap, HeaderName};

/// A field with one quota has one line; a proxy may add some.
const MOST_LINES: usize = 16;

/// Twice the length of any date, time or number in use.
const MOST_BYTES: usize = 128;

/// The lines of a field with one value.
pub(super) fn lines<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> + use<'h> {
    lines_up_to(MOST_BYTES, headers, name)
}

/// The first lines of a field, without those that are longer than `bytes`.
pub(super) fn lines_up_to<'h>(
    bytes: usize,
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h str> + use<'h> {
    let lines = headers.get_all(name).into_iter().take(MOST_LINES);
    let short = lines.filter(move |line| line.len() <= bytes);
    short.filter_map(|line| str::from_utf8(line.as_bytes()).ok()).map(str::trim)
}
