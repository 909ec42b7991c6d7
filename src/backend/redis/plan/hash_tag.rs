//! The part of its counters' names that each key has for itself, which is the tenant:
//! [`HashTag`]. What many keys have in common is kept beside it.
//!
//! Invariant: it is text.

use smallvec::SmallVec;

/// A hash tag. A short one takes no memory of its own.
#[derive(Clone, Debug)]
pub(crate) struct HashTag(SmallVec<[u8; 16]>);

impl HashTag {
    pub(crate) fn new(text: &str) -> Self {
        Self(SmallVec::from_slice(text.as_bytes()))
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}
