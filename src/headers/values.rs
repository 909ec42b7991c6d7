//! The bytes of header values, without an allocation for each.
//!
//! Every thread writes into a buffer of its own and hands out slices of it.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;

use super::{
    integer::{put_integer, small},
    rendered::{PolicyCache, RenderedPolicy},
};
use crate::decision::TierStatus;

/// The size of the buffer that values are cut from. About one response in a
/// hundred allocates a new one, and none does while earlier values have been
/// dropped: `BytesMut` then reuses it. A response that lives long keeps the
/// whole buffer of its values alive.
const CHUNK: usize = 4 * 1024;

/// A thread's buffer and cache for header values. Writing a value allocates
/// nothing in most cases, and touches no memory that other threads write.
pub(crate) struct Values {
    chunk: BytesMut,
    policies: PolicyCache,
}

impl Values {
    fn new() -> Self {
        Self { chunk: BytesMut::with_capacity(CHUNK), policies: PolicyCache::default() }
    }

    /// Runs `write` with this thread's values.
    pub(crate) fn with<R>(mut write: impl FnMut(&mut Self) -> R) -> R {
        thread_local! {
            static VALUES: RefCell<Values> = RefCell::new(Values::new());
        }
        let written = VALUES.try_with(|values| values.try_borrow_mut().ok().map(|mut values| write(&mut values)));
        // A thread that is being torn down has dropped its values.
        written.ok().flatten().unwrap_or_else(|| write(&mut Self::new()))
    }

    /// The bytes that `write` appends, without a copy.
    pub(crate) fn bytes(&mut self, tiers: &[TierStatus], write: impl FnOnce(&mut BytesMut, &RenderedPolicy)) -> Bytes {
        write(&mut self.chunk, self.policies.rendered(tiers));
        self.chunk.split().freeze()
    }

    /// The header value that `write` appends: visible ASCII.
    pub(super) fn value(
        &mut self,
        tiers: &[TierStatus],
        write: impl FnOnce(&mut BytesMut, &RenderedPolicy),
    ) -> HeaderValue {
        header_value(self.bytes(tiers, write))
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
    debug_assert!(value.is_ok(), "a header value must be visible ASCII");
    value.unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests;
