//! The text of header values and bodies, without an allocation for each: [`Buffer`].
//!
//! It writes no fields, but keeps the values that most responses share. The invariant: what
//! it handed out never changes.

use std::cell::Cell;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;

use crate::decision::TierStatus;

/// The largest integer of a structured field (RFC 9651, section 3.3.1). All integers in
/// headers are cut to it.
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The size of the memory that texts are cut from. About one response in a hundred
/// allocates it again, and none does while the earlier texts have been dropped:
/// `BytesMut` then reuses it. A response that lives long keeps all of it alive.
const CHUNK: usize = 4 * 1024;

/// A thread's memory for texts.
#[derive(Debug)]
pub(crate) struct Buffer {
    chunk: BytesMut,
    /// The limit that was written last. Most responses have the same.
    limit: (u64, HeaderValue),
    /// The policy that was written last, and of which tiers. Most responses have the same.
    policy: (Vec<TierStatus>, HeaderValue),
}

impl Buffer {
    fn new() -> Self {
        Self {
            chunk: BytesMut::with_capacity(CHUNK),
            limit: (0, HeaderValue::from_static("0")),
            policy: (Vec::new(), HeaderValue::from_static("")),
        }
    }

    /// Runs `write` with this thread's buffer.
    pub(crate) fn with<R>(write: impl FnOnce(&mut Self) -> R) -> R {
        thread_local! {
            // Boxed: it is moved out and in by each response.
            static BUFFER: Cell<Option<Box<Buffer>>> = const { Cell::new(None) };
        }
        // A thread that is being torn down has dropped its buffer.
        let own = BUFFER.try_with(Cell::take).ok().flatten();
        let mut buffer = own.unwrap_or_else(|| Box::new(Self::new()));
        let written = write(&mut buffer);
        let _ = BUFFER.try_with(|own| own.set(Some(buffer)));
        written
    }

    /// The text that `write` appends.
    pub(crate) fn text(&mut self, write: impl FnOnce(&mut BytesMut)) -> Bytes {
        write(&mut self.chunk);
        self.chunk.split().freeze()
    }

    /// The header value that `write` appends: visible ASCII.
    pub(super) fn value(&mut self, write: impl FnOnce(&mut BytesMut)) -> HeaderValue {
        let value = HeaderValue::from_maybe_shared(self.text(write));
        debug_assert!(value.is_ok(), "a header value must be visible ASCII");
        value.unwrap_or_else(|_| HeaderValue::from_static(""))
    }

    pub(crate) fn integer(&mut self, n: u64) -> HeaderValue {
        self.value(|out| put_integer(out, n))
    }

    /// Without it, a response with three fields took 7% more instructions.
    pub(super) fn limit(&mut self, n: u64) -> HeaderValue {
        if self.limit.0 != n {
            self.limit = (n, self.integer(n));
        }
        self.limit.1.clone()
    }

    /// The value that `write` appends for these tiers, by what is the same of each in every
    /// response. Without it, a response with five fields took 10% more instructions.
    pub(super) fn policy(&mut self, tiers: &[TierStatus], write: fn(&mut BytesMut, &[TierStatus])) -> HeaderValue {
        let quotas = tiers.iter().map(|tier| TierStatus { remaining: 0, reset: 0, violated: false, ..*tier });
        if !quotas.clone().eq(self.policy.0.iter().copied()) {
            self.policy.1 = self.value(|out| write(out, tiers));
            self.policy.0.clear();
            self.policy.0.extend(quotas);
        }
        self.policy.1.clone()
    }
}

/// Appends `n` in decimal.
pub(crate) fn put_integer(out: &mut BytesMut, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n.min(MAX_INTEGER)).as_bytes());
}

#[cfg(test)]
mod tests;
