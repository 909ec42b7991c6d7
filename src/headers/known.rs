//! The fields of the last rejection, kept for the next one that has the same:
//! [`KnownFields`].
//!
//! It makes no field. The invariant: two rejections by equal tiers have the same fields if
//! they have the same [`RejectionKey`].

use http::HeaderMap;
use smallvec::SmallVec;

/// All that the fields and the text of a rejection depend on, beside the names and
/// quotas of its tiers.
pub(crate) struct RejectionKey {
    /// Differs wherever the text does that is around the number; `None` if it cannot tell.
    pub(super) form: Option<u64>,
    /// The number in the text: the seconds of `Retry-After`.
    pub(super) retry_after: Option<u64>,
    pub(super) numbers: Numbers,
}

/// The options of the headers, and the numbers in them. Those of two tiers take no
/// allocation.
pub(super) type Numbers = SmallVec<[u64; 10]>;

/// The fields of a rejection with a certain text.
#[derive(Default)]
pub(super) struct KnownFields {
    numbers: Option<Numbers>,
    /// Made when the same numbers occur again: many rejections have numbers of their own.
    map: Option<HeaderMap>,
}

impl KnownFields {
    /// Those of a rejection with these numbers. Without them, tells whether they should be
    /// kept.
    pub(super) fn find(&mut self, numbers: Numbers) -> Result<HeaderMap, bool> {
        let is_repeated = self.numbers.as_ref() == Some(&numbers);
        if !is_repeated {
            *self = Self { numbers: Some(numbers), map: None };
        }
        self.map.clone().ok_or(is_repeated)
    }

    pub(super) fn keep(&mut self, map: HeaderMap) {
        self.map = Some(map);
    }
}
