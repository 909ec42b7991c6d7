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
    /// Of responses that have no other fields.
    alone: Vec<(u16, HeaderMap)>,
    extended: Vec<ExtendedMap>,
    /// How many lists of names were not known.
    unknown: usize,
    /// The memory of the fields that were mapped last.
    spare: Vec<HeaderValue>,
}

/// A map with the fields of a response and then ours, without their values.
struct ExtendedMap {
    /// The names of the response's own.
    own: Box<[HeaderName]>,
    /// Ours, a bit for each.
    names: u16,
    /// `None` if one of ours is also one of the response's own.
    map: Option<HeaderMap>,
}

/// The most lists of names that are known.
const MOST_KNOWN: usize = 16;

/// The most fields of a response in such a list.
const MOST_OWN: usize = 32;

/// One in so many unknown lists becomes known, once there are as many as may be. So
/// responses with many lists of names hardly pay for making maps.
const ONE_IN: usize = 8;

impl ExtendedMap {
    fn is_of(&self, own: &HeaderMap, names: u16) -> bool {
        self.names == names && self.own.len() == own.keys_len() && own.keys().eq(&self.own)
    }

    #[cold]
    fn new(own: &HeaderMap, names: u16) -> Self {
        let own: Box<[_]> = own.keys().cloned().collect();
        let map = empty_map(own.iter().cloned().chain(named(names)));
        let all = own.len() + names.count_ones() as usize;
        Self { own, names, map: (map.keys_len() == all).then_some(map) }
    }
}

/// Our names, of a bit for each.
fn named(names: u16) -> impl Iterator<Item = HeaderName> {
    NAMES.into_iter().enumerate().filter(move |(index, _)| names & 1 << index != 0).map(|(_, name)| name)
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
        let own = match self.alone.iter().position(|(names, _)| *names == fields.names) {
            Some(known) => known,
            None => self.add(fields.names),
        };
        let mut map = self.alone[own].1.clone();
        map.values_mut().zip(&mut fields.values).for_each(|(empty, value)| mem::swap(empty, value));
        self.recycle(fields);
        map
    }

    #[cold]
    fn add(&mut self, names: u16) -> usize {
        self.alone.push((names, empty_map(named(names))));
        self.alone.len() - 1
    }

    /// Appends the fields to those of a response, in a copy of a known map. Not if that
    /// is unknown, or if the response has one of the fields, or several of one name;
    /// returns whether it did.
    #[inline]
    pub(super) fn append(&mut self, own: &mut HeaderMap, mut fields: Fields) -> bool {
        let known = self.find(own, fields.names).and_then(|index| self.extended[index].map.as_ref());
        let is_known = known.is_some();
        if let Some(known) = known {
            let mut map = known.clone();
            let mut empty = map.values_mut();
            own.values_mut().zip(&mut empty).for_each(|(value, empty)| mem::swap(value, empty));
            fields.values.iter_mut().zip(empty).for_each(|(value, empty)| mem::swap(value, empty));
            *own = map;
        }
        self.recycle(fields);
        is_known
    }

    #[inline]
    fn find(&mut self, own: &HeaderMap, names: u16) -> Option<usize> {
        if own.len() != own.keys_len() || own.len() > MOST_OWN {
            return None;
        }
        self.extended.iter().position(|known| known.is_of(own, names)).or_else(|| self.learn(own, names))
    }

    /// Returns the index of the new map, if one was made.
    #[cold]
    fn learn(&mut self, own: &HeaderMap, names: u16) -> Option<usize> {
        self.unknown = self.unknown.wrapping_add(1);
        if self.extended.len() < MOST_KNOWN {
            self.extended.push(ExtendedMap::new(own, names));
            return Some(self.extended.len() - 1);
        }
        if !self.unknown.is_multiple_of(ONE_IN) {
            return None;
        }
        let index = self.unknown / ONE_IN % MOST_KNOWN;
        self.extended[index] = ExtendedMap::new(own, names);
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
