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
mod fields;
pub mod parse;
pub(crate) mod statuses;

#[cfg(test)]
mod tests;

use std::time::Duration;

use http::HeaderMap;

use self::fields::Fields;
pub(crate) use self::{
    buffer::{Buffer, put_integer, put_name},
    fields::Delays,
};
use crate::decision::{Decision, RateLimited};

/// A map that has more gets no fields: `http` allows 24,576 at most.
const MOST_FIELDS: usize = 24_000;

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
