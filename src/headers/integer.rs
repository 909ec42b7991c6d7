//! The decimal form of the integers in header values.
//!
//! Small integers come from a table, so that most values are neither formatted
//! nor copied. Every integer is cut to what a structured field can hold.

use bytes::BytesMut;

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// How many digits it has.
pub(super) const MOST_DIGITS: usize = 15;

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

/// The digits of a small integer.
pub(super) fn small(n: u64) -> Option<&'static str> {
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

/// Appends `n` in decimal.
pub(super) fn put_integer(out: &mut BytesMut, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n.min(MAX_INTEGER)).as_bytes());
}
