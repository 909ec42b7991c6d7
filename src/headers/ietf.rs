//! The fields `RateLimit-Policy` and `RateLimit` of
//! draft-ietf-httpapi-ratelimit-headers, an Internet-Draft. Versions 08 to 11
//! share this syntax.
//!
//! The fields are lists: what another limiter wrote stays, and is appended to.

use http::{HeaderMap, HeaderName};

use super::{integer::put_integer, retry_after::Delays, values::Values};
use crate::{decision::TierStatus, quota::Algorithm};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATUS: HeaderName = HeaderName::from_static("ratelimit");

/// The most fields that are added.
pub(super) const FIELDS: usize = 2;

pub(super) fn stamp(map: &mut HeaderMap, tiers: &[TierStatus], delays: &Delays, values: &mut Values) {
    let status = values.value(tiers, |out, policy| {
        for (index, (tier, name)) in tiers.iter().zip(policy.names()).enumerate() {
            if index > 0 {
                out.extend_from_slice(b", ");
            }
            out.extend_from_slice(name);
            out.extend_from_slice(b";r=");
            put_integer(out, tier.remaining);
            // A concurrency limit cannot know when a unit comes back.
            if tier.quota.counted_by() != Algorithm::InFlight {
                out.extend_from_slice(b";t=");
                put_integer(out, delays.of_tier(tier));
            }
        }
    });
    // The caller has reserved capacity: neither can fail.
    let _ = map.try_append(POLICY, values.policy(tiers));
    let _ = map.try_append(STATUS, status);
}
