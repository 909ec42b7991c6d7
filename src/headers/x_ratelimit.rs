//! The fields `x-ratelimit-limit`, `-remaining` and `-reset`. They are no
//! standard, but most clients read them.

use http::{HeaderMap, HeaderValue};

use super::{
    fields::{Field, Fields, LIMIT, REMAINING, RESET},
    retry_after::seconds,
    values::Values,
};
use crate::{decision::TierStatus, time::Timestamp};

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
    let Some(reset) = reset(tier, epoch_from) else {
        map.remove(RESET);
        return;
    };
    let _ = map.try_insert(RESET, values.integer(reset));
}

/// The same on a response that has no other fields.
pub(super) fn push(fields: &mut Fields, tier: &TierStatus, epoch_from: Option<Timestamp>, values: &mut Values) {
    fields.push(Field::Remaining, values.integer(tier.remaining));
    fields.push(Field::Limit, values.limit(tier.limit()));
    if let Some(reset) = reset(tier, epoch_from) {
        fields.push(Field::Reset, values.integer(reset));
    }
}

/// When the quota is full again. One with a limit of 0 never is.
#[inline]
pub(super) fn reset(tier: &TierStatus, epoch_from: Option<Timestamp>) -> Option<u64> {
    (tier.limit() > 0).then(|| match epoch_from {
        Some(now) => now.as_nanos().saturating_add(tier.reset).div_ceil(1_000_000_000),
        None => seconds(tier.reset),
    })
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
