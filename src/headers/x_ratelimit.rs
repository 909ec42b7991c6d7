//! `x-ratelimit-limit`, `-remaining` and `-reset`: no standard, but what most
//! clients read.

use http::{HeaderMap, HeaderName, header::Entry};

use super::{retry_after::seconds, values::Values};
use crate::{decision::TierStatus, time::Timestamp};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// How many fields are added at most.
pub(super) const FIELDS: usize = 3;

/// Writes all three or none: another limiter's stay where they leave less.
pub(super) fn stamp(map: &mut HeaderMap, tier: &TierStatus, epoch_from: Option<Timestamp>, values: &mut Values) {
    // Room was made before: nothing here can fail.
    let alone = match map.try_entry(REMAINING) {
        Ok(Entry::Vacant(vacant)) => vacant.try_insert(values.integer(tier.remaining)).is_ok(),
        _ => false,
    };
    if !alone {
        if theirs(map).is_some_and(|theirs| theirs <= tier.remaining) {
            return;
        }
        let _ = map.try_insert(REMAINING, values.integer(tier.remaining));
    }
    let reset = match epoch_from {
        Some(now) => now.as_nanos().saturating_add(tier.reset).div_ceil(1_000_000_000),
        None => seconds(tier.reset),
    };
    let _ = map.try_insert(LIMIT, values.integer(tier.limit()));
    let _ = map.try_insert(RESET, values.integer(reset));
}

/// What another limiter's trio leaves, where it is whole and well-formed.
fn theirs(map: &HeaderMap) -> Option<u64> {
    let integer = |name| {
        let mut all = map.get_all(name).iter();
        let only = all.next().filter(|_| all.next().is_none());
        only?.to_str().ok()?.trim().parse::<u64>().ok()
    };
    integer(LIMIT)?;
    integer(RESET)?;
    integer(REMAINING)
}
