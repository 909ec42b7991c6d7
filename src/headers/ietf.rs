//! The fields `RateLimit-Policy` and `RateLimit` of
//! draft-ietf-httpapi-ratelimit-headers, an Internet-Draft. Versions 08 to 11
//! share one syntax, and version 07 has another.
//!
//! The fields are lists: what another limiter wrote stays, and is appended to.
//! A policy that an inner layer has reported is not reported again.

use std::slice;

use bytes::BytesMut;
use http::{
    HeaderMap, HeaderValue,
    header::{Entry, OccupiedEntry},
};

use super::{
    fields::{Field, Fields, POLICY, STATUS},
    integer::put_integer,
    rendered::RenderedPolicy,
    retry_after::{Delays, seconds},
    values::Values,
};
use crate::{decision::TierStatus, quota::Algorithm};

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
    // The caller has reserved capacity: nothing here can fail.
    let status = match map.try_entry(POLICY) {
        Ok(Entry::Vacant(vacant)) => {
            let Some((policy, status)) = lists(tiers, binding, delays, max_bytes, values) else { return };
            let _ = vacant.try_insert(policy);
            status
        }
        Ok(Entry::Occupied(mut reported)) => {
            let tiers = unreported(tiers, &reported);
            if tiers.is_empty() {
                return;
            }
            let Some((policy, status)) = lists(&tiers, binding, delays, max_bytes, values) else { return };
            reported.append(policy);
            status
        }
        Err(_) => return,
    };
    let _ = map.try_append(STATUS, status);
}

/// The same on a response that has no other fields.
pub(super) fn push(
    fields: &mut Fields,
    (tiers, binding): (&[TierStatus], &TierStatus),
    delays: &Delays,
    max_bytes: usize,
    values: &mut Values,
) {
    if let Some((policy, status)) = lists(tiers, binding, delays, max_bytes, values) {
        fields.push(Field::Policy, policy);
        fields.push(Field::Status, status);
    }
}

/// The values of both fields; `None` if they exceed `max_bytes`.
fn lists(
    tiers: &[TierStatus],
    binding: &TierStatus,
    delays: &Delays,
    max_bytes: usize,
    values: &mut Values,
) -> Option<(HeaderValue, HeaderValue)> {
    let mut fits = |tiers: &[TierStatus]| {
        let write = |out: &mut BytesMut, policy: &RenderedPolicy| put_status(out, tiers, delays, policy);
        let (policy, status) = values.policy_and(tiers, write);
        (policy.len() + status.len() + OTHER_BYTES <= max_bytes).then_some((policy, status))
    };
    fits(tiers).or_else(|| fits(slice::from_ref(binding)))
}

/// The tiers whose policies an inner layer has not reported.
#[cold]
fn unreported(tiers: &[TierStatus], reported: &OccupiedEntry<'_, HeaderValue>) -> Vec<TierStatus> {
    let is_new = |tier: &&TierStatus| !reported.iter().any(|list| names(list, &tier.name()));
    tiers.iter().filter(is_new).copied().collect()
}

/// Whether a list names a policy. A name is a string of structured fields.
fn names(list: &HeaderValue, name: &str) -> bool {
    let quoted = format!("\"{}\";", name.replace('\\', "\\\\").replace('"', "\\\""));
    list.as_bytes().windows(quoted.len()).any(|window| window == quoted.as_bytes())
}

fn put_status(out: &mut BytesMut, tiers: &[TierStatus], delays: &Delays, policy: &RenderedPolicy) {
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
}

/// Version 07: `limit=100, remaining=50, reset=5`. Another limiter's field stays
/// if it leaves no more than this tier, and if it has another syntax.
pub(super) fn stamp_draft_7(map: &mut HeaderMap, tier: &TierStatus, values: &mut Values) {
    // The caller has reserved capacity: nothing here can fail.
    match map.try_entry(STATUS) {
        Ok(Entry::Vacant(vacant)) => _ = vacant.try_insert(draft_7(tier, values)),
        Ok(Entry::Occupied(mut other)) if remaining_of(other.get()).is_some_and(|left| left > tier.remaining) => {
            other.insert(draft_7(tier, values));
        }
        _ => {}
    }
}

/// The value of version 07.
pub(super) fn draft_7(tier: &TierStatus, values: &mut Values) -> HeaderValue {
    values.value(|out| {
        let reset = (tier.limit() > 0).then(|| (&b", reset="[..], seconds(tier.reset)));
        let fields = [(&b"limit="[..], tier.limit()), (b", remaining=", tier.remaining)];
        for (name, integer) in fields.into_iter().chain(reset) {
            out.extend_from_slice(name);
            put_integer(out, integer);
        }
    })
}

/// The remaining units in a field of version 07.
fn remaining_of(value: &HeaderValue) -> Option<u64> {
    let mut members = value.to_str().ok()?.split(',');
    members.find_map(|member| member.trim().strip_prefix("remaining="))?.parse().ok()
}
