//! Rate limit headers: [`Headers`] writes them on responses, [`parse`] reads
//! those of an upstream.
//!
//! | family | fields | content |
//! |---|---|---|
//! | x-ratelimit | `x-ratelimit-limit`, `-remaining`, `-reset` | the binding tier, in integers |
//! | IETF | `RateLimit-Policy`, `RateLimit` | every tier that applied, by name |
//! | IETF, version 07 | `RateLimit` | the binding tier, in integers |
//! | always, on a rejection | `Retry-After` | when the same request could pass |
//!
//! 1. Times are whole seconds from now, rounded up, and never 0. A caller that
//!    obeys them is not rejected again for being early.
//! 2. `Retry-After` is never earlier than the `t` of a tier that rejected. A
//!    request that can never pass gets none.
//! 3. Nested limiters all report. The IETF fields are lists, and are appended
//!    to. The x-ratelimit fields hold one quota: the whole trio with less
//!    remaining stays. On a rejection it is that of the rule that rejected, also where
//!    a handler or an inner layer did.
//! 4. A tier is named `RULE`, or `RULE-WINDOW` if its rule has several tiers.
//!    Rule ids are printable ASCII, so names need no encoding. A window
//!    that is not a whole number of seconds is left out, and so is a calendar month. A concurrency limit
//!    has no window and no `t`. A limit of 0 has no `t` and no reset.
//! 5. The limit of the x-ratelimit fields is what `remaining` counts down from: the burst,
//!    where there is one. `RateLimit-Policy` has the quota.
//! 6. If no rule applied, nothing is added. At most 2 KB are added: beyond that,
//!    the lists name only the binding tier. See [`Headers::max_bytes`].
//!
//! The IETF fields follow an Internet-Draft,
//! [draft-ietf-httpapi-ratelimit-headers]. Versions 08 to 11 share the syntax.
//!
//! [draft-ietf-httpapi-ratelimit-headers]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/

mod buffer;
pub mod parse;
pub(crate) mod statuses;

use std::{slice, time::Duration};

use bytes::{BufMut, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{Entry, RETRY_AFTER},
};

pub(crate) use self::buffer::{Buffer, put_integer, put_name};
use crate::{
    decision::{Decision, RateLimited, RateLimitedKind, TierStatus},
    jitter::draw,
    quota::Algorithm,
    time::{Timestamp, nanos},
    unit::Unit,
};

/// Which rate limit headers a response carries. By default the x-ratelimit family
/// alone: three fields are what most clients read, and both families together cost
/// twice the bytes.
///
/// Every rejection carries `Retry-After`, whichever family is chosen.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::Headers;
///
/// const LIKE_GITHUB: Headers = Headers::X_RATELIMIT.epoch_reset(true);
/// const SPREAD_OUT: Headers = Headers::IETF.jitter(Duration::from_secs(5));
///
/// assert_eq!(Headers::default(), Headers::X_RATELIMIT);
/// assert_eq!(Headers::ALL, Headers::X_RATELIMIT.ietf(true));
/// assert_ne!(LIKE_GITHUB, SPREAD_OUT);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Headers {
    x_ratelimit: bool,
    ietf: Option<Draft>,
    epoch_reset: bool,
    jitter: Duration,
    max_bytes: usize,
}

/// A syntax of the IETF's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Draft {
    Seven,
    /// Versions 08 to 11.
    Eight,
}

impl Headers {
    /// Only `Retry-After`, on rejections.
    pub const NONE: Self =
        Self { x_ratelimit: false, ietf: None, epoch_reset: false, jitter: Duration::ZERO, max_bytes: 2_048 };

    /// `x-ratelimit-limit`, `x-ratelimit-remaining` and `x-ratelimit-reset`: the default.
    pub const X_RATELIMIT: Self = Self::NONE.x_ratelimit(true);

    /// `RateLimit-Policy` and `RateLimit`, from the IETF's Internet-Draft.
    pub const IETF: Self = Self::NONE.ietf(true);

    /// `RateLimit: limit=100, remaining=50, reset=5`, from version 07 of the
    /// draft, for clients that know no later version.
    pub const IETF_DRAFT_7: Self = Self::NONE.ietf_draft_7(true);

    /// All families, with the latest version of the draft.
    pub const ALL: Self = Self::X_RATELIMIT.ietf(true);

    /// Whether to write the x-ratelimit fields. They describe the tier that
    /// rejected, or else the tier with the least remaining.
    pub const fn x_ratelimit(mut self, write: bool) -> Self {
        self.x_ratelimit = write;
        self
    }

    /// Whether to write the fields of the IETF's Internet-Draft, in the syntax of
    /// versions 08 to 11.
    pub const fn ietf(mut self, write: bool) -> Self {
        self.ietf = if write { Some(Draft::Eight) } else { None };
        self
    }

    /// Whether to write the field `RateLimit` in the syntax of version 07, which
    /// excludes that of later versions. It describes the same tier as the
    /// x-ratelimit fields.
    pub const fn ietf_draft_7(mut self, write: bool) -> Self {
        self.ietf = if write { Some(Draft::Seven) } else { None };
        self
    }

    /// The most bytes that these fields add to a response, names included; 2,048
    /// by default. Proxies answer larger headers with an error. The IETF's
    /// lists that exceed it name only the tier of the x-ratelimit fields, and are
    /// left out if that is too much as well.
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Whether `x-ratelimit-reset` is a Unix timestamp in seconds, as on
    /// GitHub. By default it is the number of seconds from now.
    pub const fn epoch_reset(mut self, epoch: bool) -> Self {
        self.epoch_reset = epoch;
        self
    }

    /// Adds a random time of up to `most`, so that callers rejected together do
    /// not return together. It is drawn once per response, and added to both
    /// `Retry-After` and the `t` of `RateLimit`.
    pub const fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Whether the response to an admitted request carries any.
    pub(crate) fn describe_admissions(&self) -> bool {
        self.x_ratelimit || self.ietf.is_some()
    }

    /// Adds the fields that describe `decision`, and `Retry-After` if it is a
    /// rejection. For responses that no layer writes.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use tower_ratelimit::{Descriptor, Headers, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::new(Quota::per_minute(2)).unwrap();
    /// let decision = limiter.check(&Descriptor::new("/")).await;
    ///
    /// let mut headers = HeaderMap::new();
    /// Headers::X_RATELIMIT.stamp(&mut headers, &decision);
    /// assert_eq!(headers["x-ratelimit-remaining"], "1");
    /// # }
    /// ```
    pub fn stamp(&self, map: &mut HeaderMap, decision: &Decision) {
        let delays = Delays::new(decision.rejection(), decision.retry_nanos(), self.jitter);
        self.write(map, Some(decision), &delays);
    }

    /// Adds fields to the response of a rejection further in. Of those that hold one tier,
    /// the rule that rejected has its own.
    pub(crate) fn stamp_around_rejection(&self, map: &mut HeaderMap, decision: &Decision) {
        let lists = self.ietf.filter(|draft| *draft == Draft::Eight);
        Self { x_ratelimit: false, ietf: lists, ..*self }.stamp(map, decision);
    }

    /// Adds the fields of a rejection. Returns the delays that they report.
    pub(crate) fn stamp_rejection(&self, map: &mut HeaderMap, rejection: &RateLimited) -> Delays {
        let delays = Delays::new(Some(rejection.kind()), rejection.retry_nanos(), self.jitter);
        self.write(map, rejection.decision(), &delays);
        delays
    }

    fn write(&self, map: &mut HeaderMap, decision: Option<&Decision>, delays: &Delays) {
        let tiers = decision.map_or(&[][..], Decision::tiers);
        let binding = decision.and_then(Decision::binding);
        if map.len() > MOST_FIELDS {
            return;
        }
        Buffer::with(|buffer| {
            let mut fields = Fields { map, buffer, delays };
            if let Some(tier) = binding {
                if self.x_ratelimit {
                    fields.x_ratelimit(tier, decision.filter(|_| self.epoch_reset).map(Decision::decided_at));
                }
                match self.ietf {
                    Some(Draft::Eight) => fields.ietf(tiers, tier, self.max_bytes),
                    Some(Draft::Seven) => fields.draft_7(tier),
                    None => {}
                }
            }
            fields.retry_after(tiers);
        });
    }
}

/// The exact delay after which a rejected request could pass, for protocols
/// without these headers.
pub(crate) fn delay(rejection: &RateLimited) -> Option<Duration> {
    Delays::new(Some(rejection.kind()), rejection.retry_nanos(), Duration::ZERO).exactly()
}

impl Default for Headers {
    fn default() -> Self {
        Self::X_RATELIMIT
    }
}

/// A map that has more gets no fields: `http` allows 24,576 at most.
const MOST_FIELDS: usize = 24_000;

const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATUS: HeaderName = HeaderName::from_static("ratelimit");

/// At most what all fields take without the values of the IETF's: six names, each
/// with a colon, a space and the end of its line, and four integers.
const OTHER_BYTES: usize = 17 + 21 + 17 + 11 + 16 + 9 + 6 * 4 + 4 * 15;

/// The header map of one response, with the memory and the delays of its fields.
///
/// What another limiter wrote is merged with, never lost: lists are appended to, and of
/// two trios the more restrictive one stays whole. The caller has made sure that the map
/// has room, so no insertion here can fail.
///
/// Structured fields are written by hand: `sfv` formats by `fmt`, which made a response
/// with five fields a fifth dearer.
struct Fields<'r> {
    map: &'r mut HeaderMap,
    buffer: &'r mut Buffer,
    delays: &'r Delays,
}

impl Fields<'_> {
    /// The trio `x-ratelimit-limit`, `-remaining` and `-reset`: all three or none, but no
    /// reset of a limit of 0, which is never full again. They are no standard, but most
    /// clients read them.
    fn x_ratelimit(&mut self, tier: &TierStatus, epoch_from: Option<Timestamp>) {
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
    fn ietf(&mut self, tiers: &[TierStatus], binding: &TierStatus, max_bytes: usize) {
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
    fn draft_7(&mut self, tier: &TierStatus) {
        let other = self.map.get(STATUS);
        if other.is_none_or(|other| draft_7_remaining(other).is_some_and(|left| left > tier.remaining)) {
            let _ = self.map.try_insert(STATUS, self.buffer.value(|out| put_draft_7(out, tier)));
        }
    }

    /// `Retry-After`, unless the response's author has set it.
    fn retry_after(&mut self, tiers: &[TierStatus]) {
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

/// The delays of one response, all with the same jitter. They are reported in whole seconds, at
/// least one, and never earlier than the time at which the request could pass.
#[derive(Debug)]
pub(crate) struct Delays {
    jitter: u64,
    /// Why the request was rejected, if it was.
    rejection: Option<RateLimitedKind>,
    /// Until a rejected request could pass, in nanoseconds.
    retry_after: Option<u64>,
}

impl Delays {
    fn new(rejection: Option<RateLimitedKind>, retry_after: Option<u64>, jitter: Duration) -> Self {
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

#[cfg(test)]
mod tests;
