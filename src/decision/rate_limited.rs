//! [`RateLimited`]: the error of a rejected request.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use super::{decision::Decision, verdict::RateLimitedKind};

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
    decision: Arc<Decision>,
}

impl RateLimited {
    pub(crate) fn new(decision: Decision) -> Self {
        Self { decision: Arc::new(decision) }
    }

    /// Why the request was rejected.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> RateLimitedKind {
        self.decision.rejection().unwrap_or(RateLimitedKind::QuotaExceeded)
    }

    /// The time after which the same request could be admitted; `None` if it
    /// never will be, or if that cannot be known.
    #[inline]
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision.retry_after()
    }

    /// The decision, if any rule was evaluated.
    #[inline]
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        (!self.decision.tiers().is_empty()).then_some(&*self.decision)
    }
}

impl fmt::Display for RateLimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind() {
            RateLimitedKind::QuotaExceeded => "rate limit exceeded",
            RateLimitedKind::QueueFull => "too many requests wait for the rate limit",
            RateLimitedKind::BackingOff => "backing off after a failure",
            RateLimitedKind::NeverFits => "the request can never pass the rate limit",
            RateLimitedKind::MissingTenant => "no tenant to limit the request by",
            RateLimitedKind::AmbiguousTenant => "more than one tenant to limit the request by",
            RateLimitedKind::BackendUnavailable => "the rate limit could not be decided",
        })?;
        for (index, tier) in self.decision.tiers().iter().filter(|tier| tier.violated).enumerate() {
            write!(f, "{}{}", if index == 0 { ": " } else { ", " }, tier.name())?;
        }
        match self.retry_after() {
            Some(after) => write!(f, "; retry after {after:?}"),
            None => Ok(()),
        }
    }
}

impl Error for RateLimited {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.decision.error().map(|error| error as &(dyn Error + 'static))
    }
}
