//! The fields of the last rejection, cached for the next one that has the same:
//! [`CachedFields`].
//!
//! It makes no field. The invariant: two rejections by equal tiers have the same fields if
//! they have the same [`RejectionKey`]. Tests compare each hit with fields that were just made.

use http::HeaderMap;
use smallvec::SmallVec;

/// All that the fields and the text of a rejection depend on, beside the names and
/// quotas of its tiers.
pub(crate) struct RejectionKey {
    /// Identifies the text around the number: two texts never share a form. `None` turns
    /// the cache off. A body with a second number needs that among `numbers`.
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
pub(super) struct CachedFields {
    numbers: Option<Numbers>,
    /// Made when the same numbers occur again: many rejections have numbers of their own.
    map: Option<HeaderMap>,
}

/// What the cache has for a rejection.
pub(super) enum Lookup {
    Hit(HeaderMap),
    /// Nothing yet, but the last rejection had the same numbers: to be cached.
    Repeated,
    New,
}

impl CachedFields {
    pub(super) fn get(&mut self, numbers: Numbers) -> Lookup {
        let is_repeated = self.numbers.as_ref() == Some(&numbers);
        if !is_repeated {
            *self = Self { numbers: Some(numbers), map: None };
        }
        match &self.map {
            Some(map) => Lookup::Hit(map.clone()),
            None if is_repeated => Lookup::Repeated,
            None => Lookup::New,
        }
    }

    pub(super) fn insert(&mut self, map: HeaderMap) {
        self.map = Some(map);
    }
}
