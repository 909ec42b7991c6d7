//! The header map of a response that this crate writes alone: [`Fields`].
//!
//! Inserting a field hashes its name, which costs more than all else. Responses have
//! few lists of names, so a map is a copy of one with the same names, with its own values.
//! The invariant: a map's fields are in the order in which they were pushed.

use std::mem;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER},
};

pub(super) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(super) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const STATUS: HeaderName = HeaderName::from_static("ratelimit");

/// A field by its place in [`NAMES`].
#[derive(Clone, Copy)]
pub(crate) enum Field {
    CacheControl,
    Remaining,
    Limit,
    Reset,
    Policy,
    Status,
    RetryAfter,
    ContentType,
    ContentLength,
}

const NAMES: [HeaderName; MOST] =
    [CACHE_CONTROL, REMAINING, LIMIT, RESET, POLICY, STATUS, RETRY_AFTER, CONTENT_TYPE, CONTENT_LENGTH];

const MOST: usize = 9;

/// The fields of a response. Each occurs once, and in the order of [`NAMES`].
pub(crate) struct Fields {
    /// A bit for each.
    names: u16,
    values: Vec<HeaderValue>,
}

impl Fields {
    #[inline]
    pub(crate) fn push(&mut self, field: Field, value: HeaderValue) {
        let name = 1 << field as u16;
        debug_assert!(name > self.names, "fields are pushed in the order of their names");
        self.names |= name;
        self.values.push(value);
    }
}

/// A thread's maps, one for each list of names that its responses have had.
#[derive(Default)]
pub(super) struct Maps {
    maps: Vec<(u16, HeaderMap)>,
    /// The memory of the fields that were mapped last.
    spare: Vec<HeaderValue>,
}

impl Maps {
    /// No fields, to push to.
    pub(super) fn fields(&mut self) -> Fields {
        Fields { names: 0, values: mem::take(&mut self.spare) }
    }

    pub(super) fn map(&mut self, mut fields: Fields) -> HeaderMap {
        let own = match self.maps.iter().position(|(names, _)| *names == fields.names) {
            Some(known) => known,
            None => self.add(fields.names),
        };
        let mut map = self.maps[own].1.clone();
        for (value, own) in map.values_mut().zip(&mut fields.values) {
            mem::swap(value, own);
        }
        fields.values.clear();
        self.spare = fields.values;
        map
    }

    #[cold]
    fn add(&mut self, names: u16) -> usize {
        let named = NAMES.into_iter().enumerate().filter(|(index, _)| names & 1 << index != 0);
        self.maps.push((names, named.map(|(_, name)| (name, HeaderValue::from_static(""))).collect()));
        self.maps.len() - 1
    }
}

#[cfg(test)]
mod tests;
