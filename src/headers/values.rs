//! The bytes of header values, without an allocation for each.
//!
//! Every thread writes into a buffer of its own and hands out slices of it.

use std::cell::Cell;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};

use super::{
    cached_fields::{CachedFields, Lookup, RejectionKey},
    fields::{Fields, Maps},
    integer::{MOST_DIGITS, put_integer, small},
    rendered::{PolicyCache, RenderedPolicy, Written},
};
use crate::decision::TierStatus;

/// The size of the buffer that values are cut from. About one response in a
/// hundred allocates a new one, and none does while earlier values have been
/// dropped: `BytesMut` then reuses it. A response that lives long keeps the
/// whole buffer of its values alive, and so do the last text and the cached fields
/// of each policy.
const CHUNK: usize = 4 * 1024;

/// A thread's buffer and cache for header values. Writing a value allocates
/// nothing in most cases, and touches no memory that other threads write.
pub(crate) struct Values {
    chunk: BytesMut,
    policies: PolicyCache,
    /// The limits written last, each where it hashes to.
    limits: [(u64, HeaderValue); LIMITS],
    maps: Maps,
}

/// Few servers have more limits that are not small.
const LIMITS: usize = 16;

impl Values {
    fn new() -> Self {
        const ZERO: (u64, HeaderValue) = (0, HeaderValue::from_static("0"));
        Self {
            chunk: BytesMut::with_capacity(CHUNK),
            policies: PolicyCache::default(),
            limits: [ZERO; LIMITS],
            maps: Maps::default(),
        }
    }

    /// Runs `write` with this thread's values.
    #[inline]
    pub(crate) fn with<R>(write: impl FnOnce(&mut Self) -> R) -> R {
        thread_local! {
            static VALUES: Cell<Option<Box<Values>>> = const { Cell::new(None) };
        }
        // A thread that is being torn down has dropped its values.
        let own = VALUES.try_with(Cell::take).ok().flatten();
        let mut values = own.unwrap_or_else(Self::boxed);
        let written = write(&mut values);
        let _ = VALUES.try_with(|own| own.set(Some(values)));
        written
    }

    #[cold]
    fn boxed() -> Box<Self> {
        Box::new(Self::new())
    }

    /// The fields of a rejection that has no others, and its text. `render` gives what is
    /// before and behind the number in the text, `make` the fields, of the text and of the
    /// value of `Retry-After`. What the last rejection of a form had is kept.
    pub(crate) fn rejection(
        &mut self,
        tiers: &[TierStatus],
        key: RejectionKey,
        render: impl FnOnce(&RenderedPolicy) -> [Vec<u8>; 2],
        make: impl FnOnce(&mut Self, &Bytes, Option<HeaderValue>) -> Fields,
    ) -> (HeaderMap, Bytes) {
        let text = self.policies.rendered(tiers).text(key.form, render);
        let written = match &mut text.written {
            Some(written) if written.number == key.retry_after => written,
            other => other.insert(write(&mut self.chunk, &text.parts, key.retry_after)),
        };
        let text = written.bytes.clone();
        let found = written.cached.get(key.numbers);
        // In tests, the fields are made all the same, and compared.
        if !cfg!(test)
            && let Lookup::Hit(map) = found
        {
            return (map, text);
        }
        let retry_after = written.value.clone();
        let fields = make(self, &text, retry_after);
        let map = self.maps.map(fields);
        match found {
            Lookup::Hit(cached) => debug_assert_eq!(cached, map, "the key lacks what the fields depend on"),
            Lookup::Repeated => {
                if let Some(written) = self.policies.rendered(tiers).written() {
                    written.cached.insert(map.clone());
                }
            }
            Lookup::New => {}
        }
        (map, text)
    }

    /// No fields, to push to.
    pub(crate) fn fields(&mut self) -> Fields {
        self.maps.fields()
    }

    /// See [`Maps::append`].
    pub(super) fn append(&mut self, map: &mut HeaderMap, fields: Fields) -> bool {
        self.maps.append(map, fields)
    }

    /// The map of a response that has no other fields.
    pub(crate) fn map(&mut self, fields: Fields) -> HeaderMap {
        self.maps.map(fields)
    }

    /// The header value that `write` appends: visible ASCII.
    pub(super) fn value(&mut self, write: impl FnOnce(&mut BytesMut)) -> HeaderValue {
        write(&mut self.chunk);
        header_value(self.chunk.split().freeze())
    }

    /// The value of `RateLimit-Policy`, and the one that `write` appends.
    pub(super) fn policy_and(
        &mut self,
        tiers: &[TierStatus],
        write: impl FnOnce(&mut BytesMut, &RenderedPolicy),
    ) -> (HeaderValue, HeaderValue) {
        let rendered = self.policies.rendered(tiers);
        write(&mut self.chunk, rendered);
        (rendered.policy.clone(), header_value(self.chunk.split().freeze()))
    }

    /// An integer that many responses have: one that is not small is written once.
    pub(super) fn limit(&mut self, n: u64) -> HeaderValue {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        if let Some(digits) = small(n) {
            return HeaderValue::from_static(digits);
        }
        #[allow(clippy::cast_possible_truncation, reason = "four bits")]
        let index = (n.wrapping_mul(SPREAD) >> 60) as usize % LIMITS;
        if self.limits[index].0 != n {
            // Not a part of the chunk, which it would keep alive.
            let digits = self.integer(n);
            let value = HeaderValue::from_bytes(digits.as_bytes()).unwrap_or(digits);
            self.limits[index] = (n, value);
        }
        self.limits[index].1.clone()
    }

    pub(crate) fn integer(&mut self, n: u64) -> HeaderValue {
        match small(n) {
            Some(digits) => HeaderValue::from_static(digits),
            None => {
                put_integer(&mut self.chunk, n);
                header_value(self.chunk.split().freeze())
            }
        }
    }
}

/// Writes a number between two texts.
fn write(chunk: &mut BytesMut, [before, behind]: &[Vec<u8>; 2], number: Option<u64>) -> Written {
    chunk.reserve(before.len() + MOST_DIGITS + behind.len());
    chunk.extend_from_slice(before);
    if let Some(number) = number {
        put_integer(chunk, number);
    }
    let digits = before.len()..chunk.len();
    chunk.extend_from_slice(behind);
    let bytes = chunk.split().freeze();
    let value = number.map(|number| match small(number) {
        Some(digits) => HeaderValue::from_static(digits),
        None => header_value(bytes.slice(digits)),
    });
    Written { number, bytes, value, cached: CachedFields::default() }
}

fn header_value(bytes: Bytes) -> HeaderValue {
    let value = HeaderValue::from_maybe_shared(bytes);
    debug_assert!(value.is_ok(), "a header value must be visible ASCII");
    value.unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests;
