//! The text of header values and bodies, without an allocation for each: [`Buffer`].
//!
//! It writes no fields, but keeps the values that most responses share. The invariant: what
//! it handed out never changes.

use std::{cell::Cell, mem};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderValue;

use crate::decision::TierStatus;

/// The largest integer of a structured field (RFC 9651, section 3.3.1). All integers in
/// headers are cut to it.
const MAX_INTEGER: u64 = 999_999_999_999_999;

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
    /// The tiers that were listed last, with their quoted names, and their policy. Most
    /// responses list the same.
    tiers: Vec<(TierStatus, Bytes)>,
    policy: HeaderValue,
}

impl Buffer {
    fn new() -> Self {
        Self {
            chunk: BytesMut::with_capacity(CHUNK),
            limit: (0, HeaderValue::from_static("0")),
            tiers: Vec::new(),
            policy: HeaderValue::from_static(""),
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

    /// Two lists of these tiers: their policy, by what is the same of each in every response,
    /// and their status. Of each tier, both append to its name. The policy is kept, which took
    /// a tenth of a response's instructions for one tier, and the names, a sixth for two.
    pub(super) fn lists(
        &mut self,
        tiers: &[TierStatus],
        put_policy: fn(&mut BytesMut, &TierStatus),
        put_status: impl Fn(&mut BytesMut, &TierStatus),
    ) -> (HeaderValue, HeaderValue) {
        let common = |tier: &TierStatus| TierStatus { remaining: 0, reset: 0, violated: false, ..*tier };
        if !tiers.iter().map(common).eq(self.tiers.iter().map(|(tier, _)| *tier)) {
            self.tiers =
                tiers.iter().map(|tier| (common(tier), self.text(|out| put_name(out, &tier.name())))).collect();
            self.policy = self.list(tiers, put_policy);
        }
        (self.policy.clone(), self.list(tiers, put_status))
    }

    /// A list of the tiers that are listed last.
    fn list(&mut self, tiers: &[TierStatus], put: impl Fn(&mut BytesMut, &TierStatus)) -> HeaderValue {
        let named = mem::take(&mut self.tiers);
        let value = self.value(|out| {
            for (index, (tier, (_, name))) in tiers.iter().zip(&named).enumerate() {
                if index > 0 {
                    out.extend_from_slice(b", ");
                }
                out.extend_from_slice(name);
                put(out, tier);
            }
        });
        self.tiers = named;
        value
    }
}

/// Appends `n` in decimal.
pub(crate) fn put_integer(out: &mut BytesMut, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n.min(MAX_INTEGER)).as_bytes());
}

/// Appends the name of a tier or of a unit, quoted. It is a String of RFC 9651 and of JSON: both
/// escape the same two of the characters that it can hold. Validation bounds rule ids
/// and units, and so the names of tiers, to printable ASCII.
pub(crate) fn put_name(out: &mut BytesMut, name: &str) {
    let is_escaped = |byte: &u8| matches!(byte, b'"' | b'\\');
    out.put_u8(b'"');
    for part in name.as_bytes().chunk_by(|_, next| !is_escaped(next)) {
        if part.first().is_some_and(is_escaped) {
            out.put_u8(b'\\');
        }
        out.extend_from_slice(part);
    }
    out.put_u8(b'"');
}

#[cfg(test)]
mod tests;
