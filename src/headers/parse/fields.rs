//! Bounded access to the fields of a response.

use std::str;

use http::{HeaderMap, HeaderName};

/// A field with one quota has one line; a proxy may add some.
const MOST_LINES: usize = 16;

/// Twice the length of any date, time or number in use.
const MOST_BYTES: usize = 128;

#[derive(Clone, Copy)]
pub(super) struct Fields<'h>(&'h HeaderMap);

impl<'h> Fields<'h> {
    pub(super) const fn new(headers: &'h HeaderMap) -> Self {
        Self(headers)
    }

    /// The lines of a field with one value.
    pub(super) fn lines(self, name: &HeaderName) -> impl Iterator<Item = &'h str> + use<'h> {
        self.lines_up_to(MOST_BYTES, name)
    }

    /// The first lines of a field, without those that are longer than `bytes`.
    pub(super) fn lines_up_to(self, bytes: usize, name: &HeaderName) -> impl Iterator<Item = &'h str> + use<'h> {
        let lines = self.0.get_all(name).into_iter().take(MOST_LINES);
        let short = lines.filter(move |line| line.len() <= bytes);
        short.filter_map(|line| str::from_utf8(line.as_bytes()).ok()).map(str::trim)
    }
}
