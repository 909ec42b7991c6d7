//! [`RateLimited`]: the error of a rejected request.

use std::{error::Error, fmt, iter, time::Duration};

use http::StatusCode;

use super::decision::{Decision, RateLimitedKind};

/// The error of a rejected request. It is cheap to clone; a response carries it
/// in its extensions too.
///
/// ```
/// use tower_ratelimit::{RateLimited, RateLimitedKind};
///
/// fn pause(error: &RateLimited) -> Option<std::time::Duration> {
///     match error.kind() {
///         RateLimitedKind::QuotaExceeded => error.retry_after(),
///         _ => None,
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimited {
    decision: Decision,
    /// The limiter whose layer has rejected the request, if a layer did.
    limiter: Option<u64>,
}

impl RateLimited {
    pub(crate) fn new(decision: Decision) -> Self {
        Self { decision, limiter: None }
    }

    /// A layer of the limiter with this id has rejected the request.
    pub(crate) fn by_layer(self, limiter: u64) -> Self {
        Self { limiter: Some(limiter), ..self }
    }

    /// Whether a layer of the limiter with this id has rejected the request.
    pub(crate) fn is_by_layer(&self, limiter: u64) -> bool {
        self.limiter == Some(limiter)
    }

    /// The rejection that caused an error. An error may be its own source.
    pub(crate) fn find<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Self> {
        const DEEPEST: usize = 64;
        let mut chain = iter::successors(Some(error), |&error| error.source()).take(DEEPEST);
        chain.find_map(|error| error.downcast_ref())
    }

    /// Why the request was rejected.
    #[must_use]
    pub fn kind(&self) -> RateLimitedKind {
        self.decision.rejection().unwrap_or(RateLimitedKind::QuotaExceeded)
    }

    /// The status of the HTTP response: that of the [rule](crate::Rule::status), or else of
    /// the [kind](RateLimitedKind).
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.decision.status().unwrap_or_else(|| self.kind().status())
    }

    /// The time after which the same request could be admitted; `None` if it
    /// never will be, or if that cannot be known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision.retry_after()
    }

    pub(crate) fn retry_nanos(&self) -> Option<u64> {
        self.decision.retry_nanos()
    }

    /// For a request that can never pass ([`NeverFits`](RateLimitedKind::NeverFits)): what
    /// it costs, and the most that its tier ever holds, in units.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::new(Quota::per_minute(10)).unwrap();
    /// let rejected = limiter.check(&Descriptor::new("/export").cost(50)).await.into_result().unwrap_err();
    /// assert_eq!(rejected.excess(), Some((50, 10)));
    /// # }
    /// ```
    #[must_use]
    pub fn excess(&self) -> Option<(u64, u64)> {
        self.decision.excess()
    }

    /// The decision, if any rule was evaluated.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        (!self.decision.tiers().is_empty()).then_some(&self.decision)
    }
}

impl Decision {
    /// The decision if the request is admitted, else the rejection as an error.
    ///
    /// # Errors
    ///
    /// The rejection.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, RateLimited, RateLimiter};
    ///
    /// async fn search(limiter: &RateLimiter) -> Result<&'static str, RateLimited> {
    ///     limiter.check(&Descriptor::new("/search")).await.into_result()?;
    ///     Ok("found")
    /// }
    /// ```
    pub fn into_result(self) -> Result<Self, RateLimited> {
        if self.is_allowed() { Ok(self) } else { Err(RateLimited::new(self)) }
    }
}

impl fmt::Display for RateLimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind() {
            RateLimitedKind::QuotaExceeded => "rate limit exceeded",
            RateLimitedKind::Concurrency => "too many requests in flight",
            RateLimitedKind::Cooldown => "the upstream asked for a pause",
            RateLimitedKind::QueueFull => "too many requests wait for the rate limit",
            RateLimitedKind::BackingOff => "backing off after a failure",
            RateLimitedKind::Overloaded => "the server is overloaded",
            RateLimitedKind::NeverFits => "the request can never pass the rate limit",
            RateLimitedKind::MissingTenant => "no tenant to limit the request by",
            RateLimitedKind::AmbiguousTenant => "more than one tenant to limit the request by",
            RateLimitedKind::Blocked => "the tenant is blocked",
            RateLimitedKind::InvalidTiers => "the tenant's own limits are invalid",
            RateLimitedKind::BackendUnavailable => "the rate limit could not be decided",
            RateLimitedKind::Misconfigured => "the rate limit is set up wrongly: the log says how",
            RateLimitedKind::NoRuntime => "waiting for the rate limit needs a Tokio runtime, and there is none",
        })?;
        for (index, tier) in self.decision.tiers().iter().filter(|tier| tier.violated).enumerate() {
            write!(f, "{}{}", if index == 0 { ": " } else { ", " }, tier.name())?;
        }
        if let Some((cost, capacity)) = self.excess() {
            write!(f, "; it costs {cost}, and at most {capacity} ever fit")?;
        }
        match self.retry_after() {
            Some(after) => {
                // Rounded up, so that it is not too early.
                let seconds = after > Duration::from_secs(10);
                let unit = if seconds { Duration::from_secs(1) } else { Duration::from_millis(1) };
                let units = u32::try_from(after.as_nanos().div_ceil(unit.as_nanos())).unwrap_or(u32::MAX);
                write!(f, "; retry after {:?}", unit.saturating_mul(units))
            }
            None => Ok(()),
        }
    }
}

impl Error for RateLimited {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.decision.error().map(|error| error as &(dyn Error + 'static))
    }
}
