//! Header maps that are copied from cached ones: [`Maps`] of [`Fields`].
//!
//! Inserting a field hashes its name, which costs more than all else. Responses have
//! few lists of names, so a map is a copy of one with the same names, with its own values.
//! The invariant: a map's fields are in the order in which they were pushed, behind those
//! that the response had.

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

/// A thread's cached maps, one for each list of names.
#[derive(Default)]
pub(super) struct Maps {
    /// For responses that have no other fields.
    alone: Vec<(u16, HeaderMap)>,
    /// For responses that have, at most [`MAX_CACHED`].
    extended: Vec<ExtendedMap>,
    /// How many lists of names were not in `extended`.
    misses: usize,
    /// The memory of the fields that were mapped last.
    spare: Vec<HeaderValue>,
}

/// A map with the fields of a response and then ours, without their values.
struct ExtendedMap {
    /// The names of the response's fields.
    response: Box<[HeaderName]>,
    /// Ours, a bit for each.
    added: u16,
    /// `None` if one of ours has to be merged with one of the response.
    map: Option<HeaderMap>,
}

/// The most maps for responses that have other fields.
const MAX_CACHED: usize = 16;

/// The most fields of such a response.
const MAX_RESPONSE_FIELDS: usize = 32;

/// While the cache is full, only one in so many misses replaces a map: responses with many
/// lists of names hardly pay for making maps.
const MISSES_PER_INSERT: usize = 8;

impl ExtendedMap {
    fn is_of(&self, response: &HeaderMap, added: u16) -> bool {
        self.added == added && self.response.len() == response.keys_len() && response.keys().eq(&self.response)
    }

    #[cold]
    fn new(response: &HeaderMap, added: u16) -> Self {
        // The reset of another limiter goes with the rest of its trio, also where we
        // have none.
        let replaces_reset = added & 1 << Field::Remaining as u16 != 0 && response.contains_key(RESET);
        let response: Box<[_]> = response.keys().cloned().collect();
        let map = empty_map(response.iter().cloned().chain(names(added)));
        let all = response.len() + added.count_ones() as usize;
        Self { response, added, map: (map.keys_len() == all && !replaces_reset).then_some(map) }
    }
}

/// Our names, of a bit for each.
fn names(bits: u16) -> impl Iterator<Item = HeaderName> {
    NAMES.into_iter().enumerate().filter(move |(index, _)| bits & 1 << index != 0).map(|(_, name)| name)
}

fn empty_map(names: impl Iterator<Item = HeaderName>) -> HeaderMap {
    names.map(|name| (name, HeaderValue::from_static(""))).collect()
}

impl Maps {
    /// No fields, to push to.
    pub(super) fn fields(&mut self) -> Fields {
        Fields { names: 0, values: mem::take(&mut self.spare) }
    }

    /// The map of a response that has no other fields.
    pub(super) fn map(&mut self, mut fields: Fields) -> HeaderMap {
        let index = match self.alone.iter().position(|(names, _)| *names == fields.names) {
            Some(cached) => cached,
            None => self.insert_alone(fields.names),
        };
        let mut map = self.alone[index].1.clone();
        map.values_mut().zip(&mut fields.values).for_each(|(empty, value)| mem::swap(empty, value));
        self.recycle(fields);
        map
    }

    #[cold]
    fn insert_alone(&mut self, added: u16) -> usize {
        self.alone.push((added, empty_map(names(added))));
        self.alone.len() - 1
    }

    /// Appends the fields to those of a response, in a copy of a cached map. False, and
    /// nothing is appended, if no map is cached, or if a field has to be merged with one
    /// of the response.
    #[inline]
    pub(super) fn append(&mut self, response: &mut HeaderMap, mut fields: Fields) -> bool {
        let cached = self.find(response, fields.names).and_then(|index| self.extended[index].map.as_ref());
        let is_cached = cached.is_some();
        if let Some(cached) = cached {
            let mut map = cached.clone();
            let mut empty = map.values_mut();
            response.values_mut().zip(&mut empty).for_each(|(value, empty)| mem::swap(value, empty));
            fields.values.iter_mut().zip(empty).for_each(|(value, empty)| mem::swap(value, empty));
            *response = map;
        }
        self.recycle(fields);
        is_cached
    }

    #[inline]
    fn find(&mut self, response: &HeaderMap, added: u16) -> Option<usize> {
        if response.len() != response.keys_len() || response.len() > MAX_RESPONSE_FIELDS || added == 0 {
            return None;
        }
        self.extended.iter().position(|cached| cached.is_of(response, added)).or_else(|| self.insert(response, added))
    }

    /// Returns the index of the new map, if one was made.
    #[cold]
    fn insert(&mut self, response: &HeaderMap, added: u16) -> Option<usize> {
        self.misses = self.misses.wrapping_add(1);
        if self.extended.len() < MAX_CACHED {
            self.extended.push(ExtendedMap::new(response, added));
            return Some(self.extended.len() - 1);
        }
        if !self.misses.is_multiple_of(MISSES_PER_INSERT) {
            return None;
        }
        let index = self.misses / MISSES_PER_INSERT % MAX_CACHED;
        self.extended[index] = ExtendedMap::new(response, added);
        Some(index)
    }

    /// Keeps the memory of fields.
    fn recycle(&mut self, mut fields: Fields) {
        fields.values.clear();
        self.spare = fields.values;
    }
}

#[cfg(test)]
mod tests;
