//! The fields that describe a decision: [`Fields`] writes them into a header map.
//!
//! What another limiter wrote is merged with, never lost: lists are appended to, and of
//! two trios the more restrictive one stays whole. The caller has reserved room in the
//! map, so no insertion here can fail.

use std::slice;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{Entry, RETRY_AFTER},
};
use sfv::{DictSerializer, Integer, KeyRef, ListSerializer, StringRef};

use super::{
    buffer::Buffer,
    delays::{Delays, seconds},
};
use crate::{decision::TierStatus, quota::Algorithm, time::Timestamp};

const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATUS: HeaderName = HeaderName::from_static("ratelimit");

/// How many fields each family has at most.
pub(super) const X_RATELIMIT_FIELDS: usize = 3;
pub(super) const IETF_FIELDS: usize = 2;

/// At most what all fields take without the values of the IETF's: six names, each
/// with a colon, a space and the end of its line, and four integers.
const OTHER_BYTES: usize = 17 + 21 + 17 + 11 + 16 + 9 + 6 * 4 + 4 * 15;

/// The header map of one response.
pub(super) struct Fields<'r> {
    pub(super) map: &'r mut HeaderMap,
    pub(super) buffer: &'r mut Buffer,
    pub(super) delays: &'r Delays,
}

impl Fields<'_> {
    /// The trio `x-ratelimit-limit`, `-remaining` and `-reset`: all three or none, but no
    /// reset of a limit of 0, which is never full again. They are no standard, but most
    /// clients read them.
    pub(super) fn x_ratelimit(&mut self, tier: &TierStatus, epoch_from: Option<Timestamp>) {
        // Looked up by writing it: hardly any response has one.
        let fields = self.map.len();
        let other = self.map.try_insert(REMAINING, self.buffer.integer(tier.remaining)).ok().flatten();
        if let Some(other) = other
            && self.map.len() == fields
            && remaining_of(&other, self.map).is_some_and(|left| left <= tier.remaining)
        {
            let _ = self.map.try_insert(REMAINING, other);
            return;
        }
        self.insert(LIMIT, tier.limit());
        if tier.limit() == 0 {
            self.map.remove(RESET);
            return;
        }
        let reset = match epoch_from {
            Some(now) => now.as_nanos().saturating_add(tier.reset).div_ceil(1_000_000_000),
            None => seconds(tier.reset),
        };
        self.insert(RESET, reset);
    }

    fn insert(&mut self, name: HeaderName, n: u64) {
        let _ = self.map.try_insert(name, self.buffer.integer(n));
    }

    /// `RateLimit-Policy` and `RateLimit` of versions 08 to 11 of the Internet-Draft. They
    /// list `tiers`, or only `binding` where all of them exceed `max_bytes`. A policy that
    /// an inner layer has reported is not reported again.
    pub(super) fn ietf(&mut self, tiers: &[TierStatus], binding: &TierStatus, max_bytes: usize) {
        let mut fitting = |tiers: &[TierStatus]| {
            let policy = self.buffer.value(|out| put_policy(out, tiers));
            let status = self.buffer.value(|out| put_status(out, tiers, self.delays));
            (policy.len() + status.len() + OTHER_BYTES <= max_bytes).then_some((policy, status))
        };
        let mut lists = |tiers: &[TierStatus]| fitting(tiers).or_else(|| fitting(slice::from_ref(binding)));
        let status = match self.map.try_entry(POLICY) {
            Ok(Entry::Vacant(vacant)) => {
                let Some((policy, status)) = lists(tiers) else { return };
                let _ = vacant.try_insert(policy);
                status
            }
            Ok(Entry::Occupied(mut reported)) => {
                let is_new = |tier: &&TierStatus| !reported.iter().any(|list| names(list, &tier.name()));
                let tiers: Vec<_> = tiers.iter().filter(is_new).copied().collect();
                let Some((policy, status)) = lists(&tiers).filter(|_| !tiers.is_empty()) else { return };
                reported.append(policy);
                status
            }
            Err(_) => return,
        };
        let _ = self.map.try_append(STATUS, status);
    }

    /// `RateLimit` of version 07: `limit=100, remaining=50, reset=5`. Another limiter's
    /// field stays if it leaves no more than this tier, and if it has another syntax.
    pub(super) fn draft_7(&mut self, tier: &TierStatus) {
        let other = self.map.get(STATUS);
        if other.is_none_or(|other| draft_7_remaining(other).is_some_and(|left| left > tier.remaining)) {
            let _ = self.map.try_insert(STATUS, self.buffer.value(|out| put_draft_7(out, tier)));
        }
    }

    /// `Retry-After`, unless the response's author has set it.
    pub(super) fn retry_after(&mut self, tiers: &[TierStatus]) {
        if let Some(seconds) = self.delays.retry_after(tiers)
            && let Ok(Entry::Vacant(vacant)) = self.map.try_entry(RETRY_AFTER)
        {
            let _ = vacant.try_insert(self.buffer.integer(seconds));
        }
    }
}

/// The remaining units in another limiter's trio, if it is complete and well-formed. Its
/// `remaining` occurred once.
fn remaining_of(remaining: &HeaderValue, map: &HeaderMap) -> Option<u64> {
    let parse = |value: &HeaderValue| value.to_str().ok()?.trim().parse::<u64>().ok();
    let integer = |name| {
        let mut lines = map.get_all(name).iter();
        parse(lines.next().filter(|_| lines.next().is_none())?)
    };
    if integer(LIMIT)? > 0 {
        integer(RESET)?;
    }
    parse(remaining)
}

/// Whether a list names a policy.
fn names(list: &HeaderValue, name: &str) -> bool {
    let mut quoted = String::new();
    put_name(&mut quoted, name);
    quoted.push(';');
    list.as_bytes().windows(quoted.len()).any(|window| window == quoted.as_bytes())
}

fn put_policy(out: &mut String, tiers: &[TierStatus]) {
    let mut list = ListSerializer::with_buffer(out);
    for tier in tiers {
        let (name, window) = (tier.name(), tier.window());
        let mut item = list.bare_item(string(&name)).parameter(KeyRef::constant("q"), integer(tier.limit()));
        if window.as_secs() > 0 && window.subsec_nanos() == 0 {
            item = item.parameter(KeyRef::constant("w"), integer(window.as_secs()));
        }
        if tier.quota.counted_by() == Algorithm::InFlight {
            _ = item.parameter(KeyRef::constant("qu"), StringRef::constant("concurrent-requests"));
        }
    }
}

fn put_status(out: &mut String, tiers: &[TierStatus], delays: &Delays) {
    let mut list = ListSerializer::with_buffer(out);
    for tier in tiers {
        let item = list.bare_item(string(&tier.name())).parameter(KeyRef::constant("r"), integer(tier.remaining));
        // A concurrency limit cannot know when a unit comes back, and a limit of 0 has
        // none.
        if tier.quota.counted_by() != Algorithm::InFlight && tier.limit() > 0 {
            _ = item.parameter(KeyRef::constant("t"), integer(delays.of_tier(tier)));
        }
    }
}

fn put_draft_7(out: &mut String, tier: &TierStatus) {
    let mut fields = DictSerializer::with_buffer(out);
    _ = fields.bare_item(KeyRef::constant("limit"), integer(tier.limit()));
    _ = fields.bare_item(KeyRef::constant("remaining"), integer(tier.remaining));
    if tier.limit() > 0 {
        _ = fields.bare_item(KeyRef::constant("reset"), integer(seconds(tier.reset)));
    }
}

/// The remaining units in a field of version 07.
fn draft_7_remaining(value: &HeaderValue) -> Option<u64> {
    let mut members = value.to_str().ok()?.split(',');
    members.find_map(|member| member.trim().strip_prefix("remaining="))?.parse().ok()
}

/// Appends the name of a tier, quoted. It is a String of RFC 9651 and of JSON: both
/// escape the same two of the characters that it can hold.
pub(crate) fn put_name(out: &mut String, name: &str) {
    _ = sfv::ItemSerializer::with_buffer(out).bare_item(string(name));
}

/// Validation bounds rule ids, and so the names of tiers, to printable ASCII.
fn string(name: &str) -> &StringRef {
    StringRef::from_str(name).unwrap_or(StringRef::constant(""))
}

fn integer(n: u64) -> Integer {
    Integer::try_from(n).unwrap_or(Integer::MAX)
}
