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
//!    remaining stays.
//! 4. A tier is named `RULE`, or `RULE-WINDOW` if its rule has several tiers.
//!    Rule ids are printable ASCII, so names need no encoding. A window
//!    that is not a whole number of seconds is left out. A concurrency limit
//!    has no window and no `t`. A limit of 0 has no `t` and no reset.
//! 5. If no rule applied, nothing is added. At most 2 KB are added: beyond that,
//!    the lists name only the binding tier. See [`Headers::max_bytes`].
//!
//! The IETF fields follow an Internet-Draft,
//! [draft-ietf-httpapi-ratelimit-headers]. Versions 08 to 11 share the syntax.
//!
//! [draft-ietf-httpapi-ratelimit-headers]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/

mod cached_fields;
mod fields;
mod ietf;
mod integer;
pub mod parse;
mod rendered;
mod retry_after;
mod values;
mod x_ratelimit;

#[cfg(test)]
mod tests;

use std::{ptr, time::Duration};

use http::HeaderMap;

use self::{
    cached_fields::{Numbers, RejectionKey},
    retry_after::{Delays, seconds},
};
pub(crate) use self::{
    fields::{Field, Fields},
    rendered::RenderedPolicy,
    values::Values,
};
use crate::{
    decision::{Decision, RateLimited, RateLimitedKind},
    time::Timestamp,
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

    /// How many fields there are of the families chosen, where both have a tier, and of
    /// `Retry-After`.
    #[inline]
    fn fields(&self, trio: bool, ietf: bool, rejection: bool) -> usize {
        usize::from(self.x_ratelimit && trio) * x_ratelimit::FIELDS
            + usize::from(self.ietf.is_some() && ietf) * ietf::FIELDS
            + usize::from(rejection) * retry_after::FIELDS
    }

    /// Whether the response to an admitted request carries any.
    #[inline]
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
        let delays = Delays::new(decision.retry_nanos(), self.jitter);
        self.write(map, Some(decision), decision.rejection(), decision.decided_at(), &delays);
    }

    /// Adds the fields of a rejection. Returns the exact delay, jitter included,
    /// after which the request could pass.
    pub(crate) fn stamp_rejection(&self, map: &mut HeaderMap, rejection: &RateLimited) -> Option<Duration> {
        let (kind, delays) = (rejection.kind(), Delays::new(rejection.retry_nanos(), self.jitter));
        let decision = rejection.decision();
        let decided_at = decision.map_or(Timestamp::UNIX_EPOCH, Decision::decided_at);
        self.write(map, decision, decision.map_or(Some(kind), Decision::rejection), decided_at, &delays);
        delays.exactly(kind)
    }

    /// The fields of a rejection whose response has no others.
    pub(crate) fn of_rejection<'r>(&self, rejection: &'r RateLimited) -> RejectionHeaders<'r> {
        let (decision, delays) = (rejection.decision(), Delays::new(rejection.retry_nanos(), self.jitter));
        let retry_after = delays.of_rejection(rejection.kind(), decision.map_or(&[], Decision::tiers));
        RejectionHeaders { options: *self, decision, delays, retry_after }
    }

    /// Appends the fields of an admission to those of the response. False if nothing was
    /// appended: see [`fields::Maps::append`].
    fn append(&self, map: &mut HeaderMap, decision: &Decision, delays: &Delays) -> bool {
        Values::with(|values| {
            let mut fields = values.fields();
            self.push(&mut fields, decision, delays, values);
            values.append(map, fields)
        })
    }

    /// Pushes the fields that describe a decision.
    fn push(&self, fields: &mut Fields, decision: &Decision, delays: &Delays, values: &mut Values) {
        let Some(tier) = decision.binding() else { return };
        if self.x_ratelimit {
            x_ratelimit::push(fields, tier, self.epoch_reset.then(|| decision.decided_at()), values);
        }
        match self.ietf {
            Some(Draft::Eight) => ietf::push(fields, (decision.tiers(), tier), delays, self.max_bytes, values),
            Some(Draft::Seven) => fields.push(Field::Status, ietf::draft_7(tier, values)),
            None => {}
        }
    }

    fn write(
        &self,
        map: &mut HeaderMap,
        decision: Option<&Decision>,
        rejection: Option<RateLimitedKind>,
        now: Timestamp,
        delays: &Delays,
    ) {
        let tiers = decision.map_or(&[][..], Decision::tiers);
        let binding = || decision.and_then(Decision::binding);
        let trio = if self.x_ratelimit { binding() } else { None };
        let ietf = self.ietf.filter(|_| !tiers.is_empty());
        let fields = self.fields(trio.is_some(), ietf.is_some(), rejection.is_some());
        // A map that grows inserts all its names again. A copy of a cached map does not.
        if let Some(decision) = decision
            && rejection.is_none()
            && map.len() == map.keys_len()
            && map.len() + fields > map.capacity()
            && self.append(map, decision, delays)
        {
            return;
        }
        // A map with thousands of entries may be full. It then gets no fields.
        if fields == 0 || map.try_reserve(fields).is_err() {
            return;
        }
        Values::with(|values| {
            if let Some(tier) = trio {
                x_ratelimit::stamp(map, tier, self.epoch_reset.then_some(now), values);
            }
            match ietf.zip(trio.or_else(binding)) {
                Some((Draft::Eight, tier)) => ietf::stamp(map, (tiers, tier), delays, self.max_bytes, values),
                Some((Draft::Seven, tier)) => ietf::stamp_draft_7(map, tier, values),
                None => {}
            }
            if let Some(kind) = rejection {
                retry_after::stamp(map, kind, tiers, delays, values);
            }
        });
    }
}

/// The fields of a rejection whose response has no others, but for its `Retry-After`.
pub(crate) struct RejectionHeaders<'r> {
    options: Headers,
    decision: Option<&'r Decision>,
    delays: Delays,
    /// The seconds of `Retry-After`; `None` for a rejection without.
    pub(crate) retry_after: Option<u64>,
}

impl RejectionHeaders<'_> {
    pub(crate) fn push(&self, fields: &mut Fields, values: &mut Values) {
        if let Some(decision) = self.decision {
            self.options.push(fields, decision, &self.delays, values);
        }
    }

    /// All that they depend on, beside the names and quotas of the tiers. `form` identifies
    /// the text around the number of seconds: two texts never share one.
    pub(crate) fn key(&self, form: Option<u64>) -> RejectionKey {
        let Headers { x_ratelimit, ietf, epoch_reset, max_bytes, .. } = self.options;
        let families = u64::from(x_ratelimit) | ietf.map_or(0, |draft| draft as u64 + 1) << 1;
        let mut numbers = Numbers::from_slice(&[families, max_bytes as u64]);
        if let Some(decision) = self.decision
            && let Some(tier) = decision.binding().filter(|_| families != 0)
        {
            let position = decision.tiers().iter().position(|own| ptr::eq(own, tier)).unwrap_or(0);
            let reset = x_ratelimit::reset(tier, epoch_reset.then(|| decision.decided_at())).unwrap_or(0);
            // The IETF's fields never have an epoch.
            numbers.extend_from_slice(&[position as u64, tier.remaining, reset, seconds(tier.reset)]);
            if ietf == Some(Draft::Eight) {
                numbers.extend(decision.tiers().iter().flat_map(|tier| [tier.remaining, self.delays.of_tier(tier)]));
            }
        }
        RejectionKey { form, retry_after: self.retry_after, numbers }
    }
}

/// The exact delay after which a rejected request could pass, for protocols
/// without these headers.
pub(crate) fn delay(rejection: &RateLimited) -> Option<Duration> {
    Delays::new(rejection.retry_nanos(), Duration::ZERO).exactly(rejection.kind())
}

impl Default for Headers {
    fn default() -> Self {
        Self::X_RATELIMIT
    }
}
