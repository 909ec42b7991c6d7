//! What a response tells its caller about where it stands: [`Headers`] writes
//! it, [`parse`] reads it.
//!
//! | family | fields | says |
//! |---|---|---|
//! | x-ratelimit | `x-ratelimit-limit`, `-remaining`, `-reset` | the binding tier, in integers |
//! | IETF | `RateLimit-Policy`, `RateLimit` | every tier that applied, by name |
//! | always, on a rejection | `Retry-After` | when the same request could pass |
//!
//! 1. Times are whole seconds from now, rounded up, and never 0: a caller that
//!    obeys them is not rejected again for having come too early.
//! 2. `Retry-After` is never earlier than the `t` of a tier that rejected. A
//!    request that can never pass is not told to come back.
//! 3. Several limiters around one another tell their callers all: the IETF
//!    fields are lists, and are appended to. Of the x-ratelimit fields, which
//!    hold one quota only, those that leave less stay, all three of them.
//! 4. A tier is named `RULE`, or `RULE-WINDOW` where its rule has several:
//!    bytes that a structured field cannot hold are percent-encoded. A window
//!    that is not whole seconds is left out, and so is what a limit on what is
//!    in flight does not have: a window, and a time at which there is more.
//! 5. Where no rule applied, nothing is added.
//!
//! The IETF fields are those of an Internet-Draft,
//! [draft-ietf-httpapi-ratelimit-headers]; versions 08 to 11 share the syntax.
//!
//! [draft-ietf-httpapi-ratelimit-headers]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/

mod ietf;
pub mod parse;
mod retry_after;
mod values;
mod x_ratelimit;

#[cfg(test)]
mod tests;

use std::time::Duration;

use http::HeaderMap;

use self::retry_after::Delays;
pub(crate) use self::retry_after::draw;
pub(crate) use self::values::Values;
use crate::{
    decision::{Decision, RateLimited, RateLimitedKind},
    time::Timestamp,
};

/// Which rate limit headers a response carries. By default the x-ratelimit family
/// alone: three fields are what most clients read, and both families together cost
/// twice the bytes.
///
/// `Retry-After` stands on every rejection, whatever is chosen here, unless a hook of
/// your own writes the whole response.
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
pub struct Headers {
    x_ratelimit: bool,
    ietf: bool,
    epoch_reset: bool,
    jitter: Duration,
}

impl Headers {
    /// None but `Retry-After`.
    pub const NONE: Self = Self { x_ratelimit: false, ietf: false, epoch_reset: false, jitter: Duration::ZERO };

    /// `x-ratelimit-limit`, `x-ratelimit-remaining` and `x-ratelimit-reset`: the default.
    pub const X_RATELIMIT: Self = Self::NONE.x_ratelimit(true);

    /// `RateLimit-Policy` and `RateLimit`, of the IETF's Internet-Draft.
    pub const IETF: Self = Self::NONE.ietf(true);

    /// All families.
    pub const ALL: Self = Self::X_RATELIMIT.ietf(true);

    /// Whether the x-ratelimit fields are written: integers of the tier that
    /// rejected, or else of the one with the least remaining.
    #[must_use]
    pub const fn x_ratelimit(mut self, write: bool) -> Self {
        self.x_ratelimit = write;
        self
    }

    /// Whether the fields of the IETF's Internet-Draft are written.
    #[must_use]
    pub const fn ietf(mut self, write: bool) -> Self {
        self.ietf = write;
        self
    }

    /// Whether `x-ratelimit-reset` is a point in time, in seconds since the
    /// Unix epoch, as GitHub has it; by default it is seconds from now.
    #[must_use]
    pub const fn epoch_reset(mut self, epoch: bool) -> Self {
        self.epoch_reset = epoch;
        self
    }

    /// Adds a random time up to `most`, so that callers rejected together do
    /// not come back together. It is drawn once for each response, and added
    /// to `Retry-After` and to the `t` of `RateLimit` alike.
    #[must_use]
    pub const fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Adds the fields that tell of `decision`, made at `now`, and
    /// `Retry-After` to a rejection.
    pub(crate) fn stamp(&self, map: &mut HeaderMap, decision: &Decision, now: Timestamp) {
        self.write(map, decision, now, &Delays::new(decision.retry_after(), self.jitter));
    }

    /// The same for a rejection; after what time it says that the request could
    /// pass, to the nanosecond and with the jitter that it was given.
    pub(crate) fn stamp_rejection(&self, map: &mut HeaderMap, rejection: &RateLimited) -> Option<Duration> {
        let (kind, delays) = (rejection.kind(), Delays::new(rejection.retry_after(), self.jitter));
        match rejection.decision() {
            Some(decision) => self.write(map, decision, decision.decided_at(), &delays),
            None => stamp_delay(map, kind, &delays),
        }
        delays.exactly(kind)
    }

    fn write(&self, map: &mut HeaderMap, decision: &Decision, now: Timestamp, delays: &Delays) {
        let (rejection, tiers) = (decision.rejection(), decision.tiers());
        if tiers.is_empty() {
            if let Some(kind) = rejection {
                stamp_delay(map, kind, delays);
            }
            return;
        }
        let fields = usize::from(self.x_ratelimit) * x_ratelimit::FIELDS
            + usize::from(self.ietf) * ietf::FIELDS
            + usize::from(rejection.is_some()) * retry_after::FIELDS;
        // A map that holds thousands may be full: it is left alone.
        if fields == 0 || map.try_reserve(fields).is_err() {
            return;
        }
        Values::with(|values| {
            if self.x_ratelimit
                && let Some(tier) = decision.binding()
            {
                x_ratelimit::stamp(map, tier, self.epoch_reset.then_some(now), values);
            }
            if self.ietf {
                ietf::stamp(map, tiers, delays, values);
            }
            if let Some(kind) = rejection {
                retry_after::stamp(map, kind, tiers, delays, values);
            }
        });
    }
}

/// Adds `Retry-After` to a rejection that no tier stands behind.
fn stamp_delay(map: &mut HeaderMap, kind: RateLimitedKind, delays: &Delays) {
    if map.try_reserve(retry_after::FIELDS).is_ok() {
        Values::with(|values| retry_after::stamp(map, kind, &[], delays, values));
    }
}

/// After what time a rejected request could pass, as it is told where nothing
/// else is.
pub(crate) fn delay(rejection: &RateLimited) -> Option<Duration> {
    Delays::new(rejection.retry_after(), Duration::ZERO).exactly(rejection.kind())
}

impl Default for Headers {
    fn default() -> Self {
        Self::X_RATELIMIT
    }
}
