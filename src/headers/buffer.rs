//! The text of header values and bodies, without an allocation for each: [`Buffer`].
//!
//! It knows no fields. The invariant: what it handed out never changes.

use std::cell::Cell;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;

/// The largest integer of a structured field (RFC 9651, section 3.3.1). All integers in
/// headers are cut to it.
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The size of the memory that texts are cut from. About one response in a hundred
/// allocates it anew, and none does while the earlier texts have been dropped. A
/// response that lives long keeps all of it alive.
const CHUNK: usize = 4 * 1024;

/// A thread's memory for texts.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    chunk: BytesMut,
    /// What is being written.
    text: String,
}

impl Buffer {
    /// Runs `write` with this thread's buffer.
    pub(crate) fn with<R>(write: impl FnOnce(&mut Self) -> R) -> R {
        thread_local! {
            static BUFFER: Cell<Buffer> = Cell::default();
        }
        // A thread that is being torn down has dropped its buffer.
        let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
        let written = write(&mut buffer);
        let _ = BUFFER.try_with(|own| own.set(buffer));
        written
    }

    /// The text that `write` appends.
    pub(crate) fn text(&mut self, write: impl FnOnce(&mut String)) -> Bytes {
        let mut text = std::mem::take(&mut self.text);
        write(&mut text);
        let bytes = self.copy(text.as_bytes());
        text.clear();
        self.text = text;
        bytes
    }

    /// The header value that `write` appends: visible ASCII.
    pub(super) fn value(&mut self, write: impl FnOnce(&mut String)) -> HeaderValue {
        header_value(self.text(write))
    }

    pub(crate) fn integer(&mut self, n: u64) -> HeaderValue {
        header_value(self.copy(itoa::Buffer::new().format(n.min(MAX_INTEGER)).as_bytes()))
    }

    fn copy(&mut self, text: &[u8]) -> Bytes {
        if self.chunk.capacity() < text.len() {
            self.chunk.reserve(CHUNK.max(text.len()));
        }
        self.chunk.extend_from_slice(text);
        self.chunk.split().freeze()
    }
}

fn header_value(text: Bytes) -> HeaderValue {
    let value = HeaderValue::from_maybe_shared(text);
    debug_assert!(value.is_ok(), "a header value must be visible ASCII");
    value.unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(n: u64) -> String {
        Buffer::with(|buffer| buffer.integer(n)).to_str().unwrap().to_owned()
    }

    #[test]
    fn integers_are_decimal() {
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
        let mut buffer = Buffer::default();
        let kept: Vec<_> = (1_000_000..1_002_000).map(|n| buffer.integer(n)).collect();
        for (n, value) in (1_000_000..).zip(kept) {
            assert_eq!(value, n.to_string());
        }
    }

    #[test]
    fn a_chunk_is_taken_again_once_its_values_are_dropped() {
        let mut buffer = Buffer::default();
        let start = buffer.integer(1_000_000).as_bytes().as_ptr();
        let again = (1_000_000..1_010_000).filter(|&n| buffer.integer(n).as_bytes().as_ptr() == start).count();
        assert!(again > 10, "taken again {again} times in 70,000 bytes");
    }
}
