//! The fields `x-ratelimit-limit`, `-remaining` and `-reset`. They are no
//! standard, but most clients read them.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{retry_after::seconds, values::Values};
use crate::{decision::TierStatus, time::Timestamp};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The most fields that are added.
pub(super) const FIELDS: usize = 3;

/// Writes all three or none, but no reset of a limit of 0. Another limiter's trio
/// stays if it leaves no more than this tier.
pub(super) fn stamp(map: &mut HeaderMap, tier: &TierStatus, epoch_from: Option<Timestamp>, values: &mut Values) {
    // The caller has reserved capacity: nothing here can fail. The field is looked up
    // by writing it, since hardly any response has one.
    let fields = map.len();
    if let Ok(Some(other)) = map.try_insert(REMAINING, values.integer(tier.remaining))
        && map.len() == fields
        && other_remaining(map, &other).is_some_and(|other_remaining| other_remaining <= tier.remaining)
    {
        let _ = map.try_insert(REMAINING, other);
        return;
    }
    let _ = map.try_insert(LIMIT, values.limit(tier.limit()));
    if tier.limit() == 0 {
        // Such a quota is never full again.
        map.remove(RESET);
        return;
    }
    let reset = match epoch_from {
        Some(now) => now.as_nanos().saturating_add(tier.reset).div_ceil(1_000_000_000),
        None => seconds(tier.reset),
    };
    let _ = map.try_insert(RESET, values.integer(reset));
}

/// The remaining units in another limiter's trio, if it is complete and
/// well-formed. Its `remaining` occurred once.
#[cold]
fn other_remaining(map: &HeaderMap, remaining: &HeaderValue) -> Option<u64> {
    let parse = |value: &HeaderValue| value.to_str().ok()?.trim().parse::<u64>().ok();
    let integer = |name| {
        let mut all = map.get_all(name).iter();
        parse(all.next().filter(|_| all.next().is_none())?)
    };
    if integer(LIMIT)? > 0 {
        integer(RESET)?;
    }
    parse(remaining)
}
