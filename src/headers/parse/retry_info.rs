//! The delay of a `google.rpc.RetryInfo` in the details of a
//! `google.rpc.Status`.
//!
//! ```proto
//! message Status    { int32 code = 1; string message = 2; repeated Any details = 3; }
//! message Any       { string type_url = 1; bytes value = 2; }
//! message RetryInfo { Duration retry_delay = 1; }
//! message Duration  { int64 seconds = 1; int32 nanos = 2; }
//! ```

use std::time::Duration;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{GeneralPurpose, general_purpose::NO_PAD},
};

/// The end of its type URL, after `type.googleapis.com`.
const TYPE: &[u8] = b"/google.rpc.RetryInfo";

/// The longest delay in a base64 status, padded or not. `None` if there is
/// none, or anything is malformed.
pub(super) fn read(text: &str) -> Option<Duration> {
    let status = base64(text.trim())?;
    let mut longest = None;
    for field in Message(&status) {
        if let (3, Value::Bytes(any)) = field? {
            longest = longest.max(retry_info(any)?);
        }
    }
    longest
}

/// The delay, if this is a `RetryInfo`. The outer `None`: malformed.
fn retry_info(any: &[u8]) -> Option<Option<Duration>> {
    let (mut name, mut value) = (&[][..], &[][..]);
    for field in Message(any) {
        match field? {
            (1, Value::Bytes(bytes)) => name = bytes,
            (2, Value::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    if !name.ends_with(TYPE) {
        return Some(None);
    }
    let mut delay = None;
    for field in Message(value) {
        if let (1, Value::Bytes(bytes)) = field? {
            delay = Some(duration(bytes)?);
        }
    }
    Some(delay)
}

fn duration(message: &[u8]) -> Option<Duration> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in Message(message) {
        match field? {
            (1, Value::Number(number)) => seconds = number,
            (2, Value::Number(number)) => nanos = number,
            _ => {}
        }
    }
    // Negative numbers have their highest bit set.
    let seconds = i64::try_from(seconds).ok()?.unsigned_abs();
    let nanos = u32::try_from(nanos).ok().filter(|&nanos| nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}

/// The fields of a message, up to the first malformed one, which is `None`.
struct Message<'m>(&'m [u8]);

enum Value<'m> {
    Number(u64),
    Bytes(&'m [u8]),
    Skipped,
}

impl<'m> Iterator for Message<'m> {
    type Item = Option<(u64, Value<'m>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'m> Message<'m> {
    fn field(&mut self) -> Option<(u64, Value<'m>)> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Value::Number(self.number()?),
            1 => self.take(8).map(|_| Value::Skipped)?,
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Skipped)?,
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn take(&mut self, length: usize) -> Option<&'m [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Seven bits per byte, the lowest first. The highest bit says that more
    /// bytes follow.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

/// Padding is optional. The unused bits of the last digit are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, NO_PAD.with_decode_allow_trailing_bits(true));

fn base64(text: &str) -> Option<Vec<u8>> {
    let text = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    BASE64.decode(text).ok()
}
