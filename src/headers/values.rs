use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;

use super::ietf::{PolicyCache, Rendered};
use crate::decision::TierStatus;

/// Values are cut from chunks of this size, so that only every hundredth
/// response or so allocates one, and none while the earlier ones have been
/// dropped: `BytesMut` then takes the same chunk again. The price: a response
/// that lives long keeps the whole chunk of its values alive.
const CHUNK: usize = 4 * 1024;

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Integers below this come from a table.
const SMALL: usize = 10_000;

/// Their decimal forms, four digits each.
const TABLE: &str = {
    static BYTES: [u8; 4 * SMALL] = {
        let mut bytes = [b'0'; 4 * SMALL];
        let mut n = 0;
        while n < SMALL {
            bytes[4 * n] += (n / 1_000) as u8;
            bytes[4 * n + 1] += (n / 100 % 10) as u8;
            bytes[4 * n + 2] += (n / 10 % 10) as u8;
            bytes[4 * n + 3] += (n % 10) as u8;
            n += 1;
        }
        bytes
    };
    match str::from_utf8(&BYTES) {
        Ok(table) => table,
        Err(_) => panic!("digits are UTF-8"),
    }
};

fn small(n: u64) -> Option<&'static str> {
    let zeros = match n {
        0..10 => 3,
        10..100 => 2,
        100..1_000 => 1,
        1_000..10_000 => 0,
        _ => return None,
    };
    let end = usize::try_from(n).ok()? * 4 + 4;
    TABLE.get(end - 4 + zeros..end)
}

/// What a thread keeps between responses, so that writing header values
/// neither allocates nor touches memory that other threads write.
pub(crate) struct Values {
    chunk: BytesMut,
    policies: PolicyCache,
}

impl Values {
    fn new() -> Self {
        Self { chunk: BytesMut::with_capacity(CHUNK), policies: PolicyCache::default() }
    }

    /// Runs `write` on this thread's values.
    pub(crate) fn with<R>(mut write: impl FnMut(&mut Self) -> R) -> R {
        thread_local! {
            static VALUES: RefCell<Values> = RefCell::new(Values::new());
        }
        let written = VALUES.try_with(|values| values.try_borrow_mut().ok().map(|mut values| write(&mut values)));
        // A thread that is being torn down has none any more.
        written.ok().flatten().unwrap_or_else(|| write(&mut Self::new()))
    }

    /// What `write` appended, without a copy; it is handed what is constant
    /// for the tiers.
    pub(crate) fn bytes_about(&mut self, tiers: &[TierStatus], write: impl FnOnce(&mut BytesMut, &Rendered)) -> Bytes {
        write(&mut self.chunk, self.policies.rendered(tiers));
        self.chunk.split().freeze()
    }

    /// As [`Self::bytes_about`], as a header's value: visible ASCII.
    pub(super) fn value_about(
        &mut self,
        tiers: &[TierStatus],
        write: impl FnOnce(&mut BytesMut, &Rendered),
    ) -> HeaderValue {
        header_value(self.bytes_about(tiers, write))
    }

    /// The value of `RateLimit-Policy`.
    pub(super) fn policy(&mut self, tiers: &[TierStatus]) -> HeaderValue {
        self.policies.rendered(tiers).policy.clone()
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

fn header_value(bytes: Bytes) -> HeaderValue {
    let value = HeaderValue::from_maybe_shared(bytes);
    debug_assert!(value.is_ok(), "a header value of bytes that are not legal there");
    value.unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Appends `n` in decimal, cut to what a structured field can hold.
pub(crate) fn put_integer(out: &mut BytesMut, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n.min(MAX_INTEGER)).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(n: u64) -> String {
        Values::with(|values| values.integer(n)).to_str().unwrap().to_owned()
    }

    #[test]
    fn integers_are_decimal_whether_from_the_table_or_not() {
        for n in (0..11_000).chain([MAX_INTEGER - 1, MAX_INTEGER]) {
            assert_eq!(integer(n), n.to_string());
        }
    }

    #[test]
    fn integers_are_cut_to_what_a_structured_field_holds() {
        assert_eq!(integer(MAX_INTEGER + 1), "999999999999999");
        assert_eq!(integer(u64::MAX), "999999999999999");
    }

    #[test]
    fn values_outlive_the_chunk_that_they_were_cut_from() {
        let mut values = Values::new();
        let kept: Vec<_> = (1_000_000..1_002_000).map(|n| values.integer(n)).collect();
        for (n, value) in (1_000_000..).zip(kept) {
            assert_eq!(value, n.to_string());
        }
    }

    #[test]
    fn a_chunk_is_taken_again_once_its_values_are_dropped() {
        let mut values = Values::new();
        let start = values.integer(1_000_000).as_bytes().as_ptr();
        let again = (1_000_000..1_010_000).filter(|&n| values.integer(n).as_bytes().as_ptr() == start).count();
        assert!(again > 10, "taken again {again} times in 70,000 bytes");
    }
}
