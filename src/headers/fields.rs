//! The fields that describe a decision: [`Fields`] writes them into a header map; and the
//! [`Delays`] that they report.
//!
//! What another limiter wrote is merged with, never lost: lists are appended to, and of
//! two trios the more restrictive one stays whole. The caller has made sure that the map
//! has room, so no insertion here can fail. Invariant: delays are whole seconds, at least one,
//! and never earlier than the time at which the request could pass.
//!
//! Structured fields are written by hand: `sfv` formats by `fmt`, which made a response
//! with five fields a fifth dearer.

use std::{slice, time::Duration};

use bytes::{BufMut, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{Entry, RETRY_AFTER},
};

use super::buffer::{Buffer, put_integer, put_name};
use crate::{
    decision::{RateLimitedKind, TierStatus},
    jitter::draw,
    quota::Algorithm,
    time::{Timestamp, nanos},
    unit::Unit,
};

const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATUS: HeaderName = HeaderName::from_static("ratelimit");

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
        let _ = self.map.try_insert(LIMIT, self.buffer.limit(tier.quota.capacity()));
        if tier.limit() == 0 {
            self.map.remove(RESET);
            return;
        }
        let reset = match epoch_from {
            Some(now) => now.as_nanos().saturating_add(tier.reset).div_ceil(1_000_000_000),
            None => seconds(tier.reset),
        };
        let _ = self.map.try_insert(RESET, self.buffer.integer(reset));
    }

    /// `RateLimit-Policy` and `RateLimit` of versions 08 to 11 of the Internet-Draft. They
    /// list `tiers`, or only `binding` where all of them exceed `max_bytes`. A policy that
    /// an inner layer has reported is not reported again.
    pub(super) fn ietf(&mut self, tiers: &[TierStatus], binding: &TierStatus, max_bytes: usize) {
        let mut fitting = |tiers: &[TierStatus]| {
            let put_status = |out: &mut BytesMut, tier: &TierStatus| put_status(out, tier, self.delays);
            let (policy, status) = self.buffer.lists(tiers, put_policy, put_status);
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
    let mut quoted = BytesMut::new();
    put_name(&mut quoted, name);
    quoted.put_u8(b';');
    list.as_bytes().windows(quoted.len()).any(|window| *window == quoted)
}

fn put_policy(out: &mut BytesMut, tier: &TierStatus) {
    let window = tier.window();
    put_parameter(out, ";q=", tier.limit());
    // Calendar months have no one length.
    if window.as_secs() > 0 && window.subsec_nanos() == 0 && !tier.quota.is_month() {
        put_parameter(out, ";w=", window.as_secs());
    }
    let unit = match tier.quota.counted_by() {
        _ if tier.unit != Unit::default() => tier.unit(),
        Algorithm::Concurrency => "concurrent-requests",
        _ => return,
    };
    out.extend_from_slice(b";qu=");
    put_name(out, unit);
}

fn put_status(out: &mut BytesMut, tier: &TierStatus, delays: &Delays) {
    put_parameter(out, ";r=", tier.remaining);
    // A concurrency limit cannot know when a unit comes back, and a limit of 0 has none.
    if tier.quota.counted_by() != Algorithm::Concurrency && tier.limit() > 0 {
        put_parameter(out, ";t=", delays.of_tier(tier));
    }
}

fn put_draft_7(out: &mut BytesMut, tier: &TierStatus) {
    put_parameter(out, "limit=", tier.quota.capacity());
    put_parameter(out, ", remaining=", tier.remaining);
    if tier.limit() > 0 {
        put_parameter(out, ", reset=", seconds(tier.reset));
    }
}

fn put_parameter(out: &mut BytesMut, before: &str, n: u64) {
    out.extend_from_slice(before.as_bytes());
    put_integer(out, n);
}

/// The remaining units in a field of version 07.
fn draft_7_remaining(value: &HeaderValue) -> Option<u64> {
    let mut members = value.to_str().ok()?.split(',');
    members.find_map(|member| member.trim().strip_prefix("remaining="))?.parse().ok()
}

/// The delays of one response, all with the same jitter.
#[derive(Debug)]
pub(crate) struct Delays {
    jitter: u64,
    /// Why the request was rejected, if it was.
    rejection: Option<RateLimitedKind>,
    /// Until a rejected request could pass, in nanoseconds.
    retry_after: Option<u64>,
}

impl Delays {
    pub(super) fn new(rejection: Option<RateLimitedKind>, retry_after: Option<u64>, jitter: Duration) -> Self {
        let jitter = if jitter.is_zero() { 0 } else { draw(nanos(jitter)) };
        Self { jitter, rejection, retry_after }
    }

    /// The `t` of a tier.
    fn of_tier(&self, tier: &TierStatus) -> u64 {
        let after = match tier.quota.counted_by() {
            // The draft allows two readings of `t`: the time until more is
            // available, and the time for which the remainder lasts. The later
            // one satisfies both. While anything remains, that is the second:
            // one unit lasts at least until the next one arrives.
            Algorithm::TokenBucket if tier.remaining == 0 => nanos(tier.next_unit()),
            Algorithm::TokenBucket => lasts(tier),
            Algorithm::FixedWindow | Algorithm::AnchoredWindow => tier.reset,
            // Such a quota admits again before it is full again.
            _ if tier.violated => self.retry_after.map_or(tier.reset, |after| after.min(tier.reset)),
            _ => tier.reset,
        };
        seconds(after.saturating_add(self.jitter))
    }

    /// Seconds until a rejected request could pass, at least the `t` of every
    /// tier that rejected it. `None` if it can never pass.
    pub(crate) fn retry_after(&self, tiers: &[TierStatus]) -> Option<u64> {
        let after = self.after()?;
        let violated = tiers.iter().filter(|tier| tier.violated);
        let latest = violated.map(|tier| self.of_tier(tier)).max().unwrap_or(0);
        Some(seconds(after).max(latest))
    }

    /// The exact delay, for protocols that can express it. Never 0.
    pub(crate) fn exactly(&self) -> Option<Duration> {
        const SHORTEST: u64 = 1_000_000;
        let after = match (self.rejection, self.retry_after) {
            (Some(RateLimitedKind::BackendUnavailable), None) => self.after()?.max(1_000_000_000),
            _ => self.after()?,
        };
        Some(Duration::from_nanos(after.max(SHORTEST)))
    }

    fn after(&self) -> Option<u64> {
        let after = match (self.rejection?, self.retry_after) {
            (RateLimitedKind::NeverFits, _) => return None,
            (_, Some(after)) => after,
            // The backend's recovery time is unknown, but it is not never.
            (RateLimitedKind::BackendUnavailable, None) => 0,
            (_, None) => return None,
        };
        Some(after.saturating_add(self.jitter))
    }
}

/// How long the remainder lasts at the quota's rate: r·W/L.
fn lasts(tier: &TierStatus) -> u64 {
    let lasts = u128::from(tier.remaining) * u128::from(nanos(tier.window()));
    let limit = u128::from(tier.limit());
    if limit == 0 { 0 } else { u64::try_from(lasts.div_ceil(limit)).unwrap_or(u64::MAX) }
}

/// Rounded up to whole seconds, at least one: a caller that reads 0 returns at
/// once.
fn seconds(nanos: u64) -> u64 {
    nanos.div_ceil(1_000_000_000).max(1)
}
