//! `RateLimit-Policy` and `RateLimit`: draft-ietf-httpapi-ratelimit-headers,
//! an Internet-Draft; its versions 08 to 11 share this syntax.

use std::ptr;

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::{
    retry_after::Delays,
    values::{Values, put_integer},
};
use crate::{
    decision::{Naming, RuleName, TierStatus},
    quota::{Algorithm, Quota},
};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATUS: HeaderName = HeaderName::from_static("ratelimit");

/// How many fields are added at most.
pub(super) const FIELDS: usize = 2;

/// Appends: the fields are lists, so what another limiter wrote stays true.
pub(super) fn stamp(map: &mut HeaderMap, tiers: &[TierStatus], delays: &Delays, values: &mut Values) {
    let status = values.value_about(tiers, |out, constant| {
        for (index, (tier, name)) in tiers.iter().zip(constant.names()).enumerate() {
            if index > 0 {
                out.extend_from_slice(b", ");
            }
            out.extend_from_slice(name);
            out.extend_from_slice(b";r=");
            put_integer(out, tier.remaining);
            // Nobody knows when what is in flight comes back.
            if tier.quota.counted_by() != Algorithm::InFlight {
                out.extend_from_slice(b";t=");
                put_integer(out, delays.of_tier(tier));
            }
        }
    });
    // Room was made before: neither can fail.
    let _ = map.try_append(POLICY, values.policy(tiers));
    let _ = map.try_append(STATUS, status);
}

/// The values that are constant for a set of tiers. A slot for each of the
/// sets last seen: a thread that serves more sets than there are slots formats
/// anew, and keeps no more.
#[derive(Default)]
pub(super) struct PolicyCache {
    /// Empty until the first response.
    slots: Vec<Option<Box<Rendered>>>,
}

const SLOTS: usize = 64;

impl PolicyCache {
    pub(super) fn rendered(&mut self, tiers: &[TierStatus]) -> &Rendered {
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, || None);
        }
        let slot = &mut self.slots[slot(tiers) % SLOTS];
        if slot.as_ref().is_none_or(|kept| !kept.is_of(tiers)) {
            *slot = Some(Box::new(Rendered::new(tiers)));
        }
        slot.get_or_insert_with(|| Box::new(Rendered::new(tiers)))
    }
}

/// Spreads what tells sets apart: rules by where their ids lie, and plans by
/// their limits.
fn slot(tiers: &[TierStatus]) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = tiers.iter().fold(0u64, |mixed, tier| {
        let own = (ptr::from_ref(tier.rule).addr() as u64).rotate_left(32) ^ tier.quota.limit();
        (mixed.rotate_left(5) ^ own).wrapping_mul(SPREAD)
    });
    (mixed >> 56) as usize
}

/// All that the rendered values depend on.
struct Key {
    rule: RuleName,
    quota: Quota,
    naming: Naming,
}

impl Key {
    /// Ids are compared by where they lie: two equal ones elsewhere only cost
    /// a slot.
    fn is_of(&self, tier: &TierStatus) -> bool {
        ptr::eq(self.rule, tier.rule) && self.quota == tier.quota && self.naming == tier.naming
    }
}

/// What is constant for a set of tiers.
pub(crate) struct Rendered {
    keys: SmallVec<[Key; 2]>,
    pub(super) policy: HeaderValue,
    /// The tiers' names, one after the other, and where each ends.
    names: Box<[u8]>,
    ends: SmallVec<[usize; 2]>,
}

impl Rendered {
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
        Self { keys, policy, names: names[..].into(), ends }
    }

    fn is_of(&self, tiers: &[TierStatus]) -> bool {
        self.keys.len() == tiers.len() && self.keys.iter().zip(tiers).all(|(key, tier)| key.is_of(tier))
    }

    /// Each tier's name, quoted. That makes it a String of RFC 9651 and of JSON
    /// alike: both escape the same two of the characters that it can hold.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.names[start..end])
    }
}

/// Appends a String of RFC 9651, section 4.1.6. It can hold printable ASCII
/// only; other bytes are percent-encoded.
fn put_string(out: &mut BytesMut, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(b"\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.extend_from_slice(&[byte]),
            _ => out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
    out.extend_from_slice(b"\"");
}
