//! The fields `RateLimit-Policy` and `RateLimit` of
//! draft-ietf-httpapi-ratelimit-headers, an Internet-Draft. Versions 08 to 11
//! share one syntax, and version 07 has another.
//!
//! The fields are lists: what another limiter wrote stays, and is appended to.

use std::slice;

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, header::Entry};

use super::{
    integer::put_integer,
    retry_after::{Delays, seconds},
    values::Values,
};
use crate::{decision::TierStatus, quota::Algorithm};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATUS: HeaderName = HeaderName::from_static("ratelimit");

/// The most fields that are added.
pub(super) const FIELDS: usize = 2;

/// At most what all fields take without the two values here: six names, each
/// with a colon, a space and the end of its line, and four integers.
const OTHER_BYTES: usize = 17 + 21 + 17 + 11 + 16 + 9 + 6 * 4 + 4 * 15;

/// Lists `tiers`, or only `binding` where all of them exceed `max_bytes`.
pub(super) fn stamp(
    map: &mut HeaderMap,
    (tiers, binding): (&[TierStatus], &TierStatus),
    delays: &Delays,
    max_bytes: usize,
    values: &mut Values,
) {
    let mut fits = |tiers| {
        let (policy, status) = (values.policy(tiers), status(tiers, delays, values));
        (policy.len() + status.len() + OTHER_BYTES <= max_bytes).then_some((policy, status))
    };
    let Some((policy, status)) = fits(tiers).or_else(|| fits(slice::from_ref(binding))) else { return };
    // The caller has reserved capacity: neither can fail.
    let _ = map.try_append(POLICY, policy);
    let _ = map.try_append(STATUS, status);
}

fn status(tiers: &[TierStatus], delays: &Delays, values: &mut Values) -> HeaderValue {
    values.value(tiers, |out, policy| {
        for (index, (tier, name)) in tiers.iter().zip(policy.names()).enumerate() {
            if index > 0 {
                out.extend_from_slice(b", ");
            }
            out.extend_from_slice(name);
            out.extend_from_slice(b";r=");
            put_integer(out, tier.remaining);
            // A concurrency limit cannot know when a unit comes back, and a
            // limit of 0 has none.
            if tier.quota.counted_by() != Algorithm::InFlight && tier.limit() > 0 {
                out.extend_from_slice(b";t=");
                put_integer(out, delays.of_tier(tier));
            }
        }
    })
}

/// Version 07: `limit=100, remaining=50, reset=5`. Another limiter's field stays
/// if it leaves no more than this tier, and if it has another syntax.
pub(super) fn stamp_draft_7(map: &mut HeaderMap, tier: &TierStatus, values: &mut Values) {
    let mut value = || {
        values.value(slice::from_ref(tier), |out: &mut BytesMut, _| {
            let reset = (tier.limit() > 0).then(|| (&b", reset="[..], seconds(tier.reset)));
            let fields = [(&b"limit="[..], tier.limit()), (b", remaining=", tier.remaining)];
            for (name, integer) in fields.into_iter().chain(reset) {
                out.extend_from_slice(name);
                put_integer(out, integer);
            }
        })
    };
    // The caller has reserved capacity: nothing here can fail.
    match map.try_entry(STATUS) {
        Ok(Entry::Vacant(vacant)) => _ = vacant.try_insert(value()),
        Ok(Entry::Occupied(mut other)) if remaining_of(other.get()).is_some_and(|left| left > tier.remaining) => {
            other.insert(value());
        }
        _ => {}
    }
}

/// The remaining units in a field of version 07.
fn remaining_of(value: &HeaderValue) -> Option<u64> {
    let mut members = value.to_str().ok()?.split(',');
    members.find_map(|member| member.trim().strip_prefix("remaining="))?.parse().ok()
}
