//! `RateLimit-Policy` and the names of its tiers, rendered once per policy.
//!
//! Each thread keeps a bounded cache. An entry serves a set of tiers only if
//! everything that its values depend on is equal.

use std::ptr;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use smallvec::SmallVec;

use super::{cached_fields::CachedFields, integer::put_integer};
use crate::{
    decision::{Naming, RuleName, TierStatus},
    quota::{Algorithm, Quota},
};

/// A thread's rendered policies, each at an index that its tiers hash to. A
/// policy replaces the one before it at the same index.
#[derive(Default)]
pub(super) struct PolicyCache {
    /// Empty until the first response.
    entries: Vec<Option<Box<RenderedPolicy>>>,
}

const ENTRIES: usize = 64;

impl PolicyCache {
    pub(super) fn rendered(&mut self, tiers: &[TierStatus]) -> &mut RenderedPolicy {
        if self.entries.is_empty() {
            self.entries.resize_with(ENTRIES, || None);
        }
        let entry = &mut self.entries[index(tiers) % ENTRIES];
        if entry.as_ref().is_none_or(|cached| !cached.is_of(tiers)) {
            *entry = Some(Box::new(RenderedPolicy::new(tiers)));
        }
        entry.get_or_insert_with(|| Box::new(RenderedPolicy::new(tiers)))
    }
}

/// Hashes what distinguishes sets of tiers: the addresses of the rules' ids,
/// and the limits of the plans.
fn index(tiers: &[TierStatus]) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = tiers.iter().fold(0u64, |mixed, tier| {
        let own = (ptr::from_ref(tier.rule).addr() as u64).rotate_left(32) ^ tier.quota.limit();
        (mixed.rotate_left(5) ^ own).wrapping_mul(SPREAD)
    });
    (mixed >> 56) as usize
}

/// Everything that the rendered values of a tier depend on.
struct Key {
    rule: RuleName,
    quota: Quota,
    naming: Naming,
}

impl Key {
    /// Ids are compared by address: an equal id at another address only costs
    /// an entry.
    fn is_of(&self, tier: &TierStatus) -> bool {
        ptr::eq(self.rule, tier.rule) && self.quota == tier.quota && self.naming == tier.naming
    }
}

/// The parts of header values that are constant for a set of tiers.
pub(crate) struct RenderedPolicy {
    keys: SmallVec<[Key; 2]>,
    pub(super) policy: HeaderValue,
    /// The tiers' names, concatenated, and the end of each.
    names: Box<[u8]>,
    ends: SmallVec<[usize; 2]>,
    text: Text,
}

/// A text about the tiers with a number in it.
#[derive(Default)]
pub(super) struct Text {
    form: Option<u64>,
    /// What is before and behind the number.
    pub(super) parts: [Vec<u8>; 2],
    /// As it was written last.
    pub(super) written: Option<Written>,
}

/// A text with its number, whose value is a part of it or static, and the fields that
/// it was sent with.
pub(super) struct Written {
    pub(super) number: Option<u64>,
    pub(super) bytes: Bytes,
    pub(super) value: Option<HeaderValue>,
    /// The fields of the rejection that had it last.
    pub(super) cached: CachedFields,
}

impl RenderedPolicy {
    fn new(tiers: &[TierStatus]) -> Self {
        let (mut policy, mut names, mut ends) = (BytesMut::new(), BytesMut::new(), SmallVec::new());
        for (index, tier) in tiers.iter().enumerate() {
            if index > 0 {
                policy.extend_from_slice(b", ");
            }
            let start = policy.len();
            put_string(&mut policy, &tier.name());
            names.extend_from_slice(&policy[start..]);
            ends.push(names.len());
            policy.extend_from_slice(b";q=");
            put_integer(&mut policy, tier.limit());
            let window = tier.window();
            if window.as_secs() > 0 && window.subsec_nanos() == 0 {
                policy.extend_from_slice(b";w=");
                put_integer(&mut policy, window.as_secs());
            }
            if tier.quota.counted_by() == Algorithm::InFlight {
                policy.extend_from_slice(b";qu=\"concurrent-requests\"");
            }
        }
        let keys = tiers.iter().map(|tier| Key { rule: tier.rule, quota: tier.quota, naming: tier.naming }).collect();
        let policy = HeaderValue::from_bytes(&policy).unwrap_or_else(|_| HeaderValue::from_static(""));
        Self { keys, policy, names: names[..].into(), ends, text: Text::default() }
    }

    fn is_of(&self, tiers: &[TierStatus]) -> bool {
        self.keys.len() == tiers.len() && self.keys.iter().zip(tiers).all(|(key, tier)| key.is_of(tier))
    }

    /// The text of this form: the one rendered last, if its form is known and equal.
    pub(super) fn text(&mut self, form: Option<u64>, render: impl FnOnce(&Self) -> [Vec<u8>; 2]) -> &mut Text {
        if form.is_none() || self.text.form != form {
            self.text = Text { form, parts: render(self), written: None };
        }
        &mut self.text
    }

    /// The text that was written last.
    pub(super) fn written(&mut self) -> Option<&mut Written> {
        self.text.written.as_mut()
    }

    /// Each tier's name, quoted. It is a String of RFC 9651 and of JSON: both
    /// escape the same two of the characters that it can hold.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.names[start..end])
    }
}

/// Appends a String of RFC 9651, section 4.1.6. Validation bounds rule ids, and
/// so the names of tiers, to printable ASCII.
fn put_string(out: &mut BytesMut, text: &str) {
    out.extend_from_slice(b"\"");
    for byte in text.bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.extend_from_slice(b"\\");
        }
        out.extend_from_slice(&[byte]);
    }
    out.extend_from_slice(b"\"");
}
