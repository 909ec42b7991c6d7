//! Overload of the process: the signals that show it, [`Overload`], and what is shed
//! meanwhile.
//!
//! When a signal is above its threshold, a controller sheds a growing part of all
//! requests: before any rule, whole classes of [`Priority`](crate::Priority) first, and within a class the
//! same tenants for an hour. It knows no rules and counts no units.
//!
//! Invariant: of each class at least one request in a hundred passes, so that a recovery
//! is seen.

mod shedder;
mod signals;
mod ticks;

use std::{fmt, sync::Arc};

#[cfg(feature = "admin")]
pub(crate) use self::shedder::Readings;
#[cfg(feature = "serde")]
pub(crate) use self::signals::SCHEDULING_DELAY;
pub use self::signals::{LoadSignal, cpu, named, scheduling_delay};
pub(crate) use self::{shedder::Shedder, signals::CPU};
use crate::error::{ConfigError, ensure};

/// When the process is overloaded: any number of signals, each with a threshold.
///
/// Each 20 ms the signals are read, by a request that arrives. Above its threshold, a
/// signal raises the part of requests that are shed, by how much it is above and for how
/// long, up to 95%. The part is back at 0 within ten seconds after all signals are below.
///
/// A shed request is rejected with [`Overloaded`](crate::RateLimitedKind::Overloaded) before
/// any rule is looked at, and charges nothing. The lowest [`Priority`](crate::Priority) is shed first.
/// Within a class, tenants are shed by a hash of their name and the hour: all requests of
/// one tenant succeed, or none. Exempt requests, and those of a rule that is
/// [`exempt`](crate::Rule::exempt), are never shed.
///
/// ```
/// use tower_ratelimit::{Policy, Quota, RateLimiter, Rule, overload::{self, Overload}};
///
/// let queue_depth = || 120.0;
/// let overload = Overload::new()
///     .signal(overload::scheduling_delay(), 0.020)
///     .signal(overload::named("queue", queue_depth), 500.0);
/// let policy = Policy::new().rule(Rule::new("api").tier(Quota::per_second(100))).overload(overload);
/// let limiter = RateLimiter::new(policy)?;
/// # let _ = limiter;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Overload {
    signals: Vec<Watched>,
}

#[derive(Clone)]
struct Watched {
    signal: Arc<dyn LoadSignal>,
    threshold: f64,
}

impl Watched {
    /// By which part this load is above the threshold. What cannot be twice as high, as the
    /// CPU, is 1 above where it is at its most.
    fn error(&self, load: f64) -> f64 {
        let most = self.signal.most();
        let span = self.threshold.min(most - self.threshold);
        // What is measured may exceed it by its noise.
        (load.min(most) - self.threshold) / span.max(f64::EPSILON)
    }
}

impl Overload {
    /// No signal yet. A policy that has it so is invalid.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sheds while `signal` is above `threshold`, in the signal's own unit.
    pub fn signal(mut self, signal: impl LoadSignal, threshold: f64) -> Self {
        self.signals.push(Watched { signal: Arc::new(signal), threshold });
        self
    }

    /// Whether it can be put in force.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        ensure(!self.signals.is_empty(), "overload", "{}", "must have at least one signal")?;
        for Watched { signal, threshold } in &self.signals {
            let key = format!("overload.{}", signal.name());
            // False for NaN.
            ensure(*threshold > 0.0 && threshold.is_finite(), &key, threshold, "must be a number above 0")?;
            let is_reachable = signal.name() != CPU || *threshold <= 1.0;
            ensure(is_reachable, &key, threshold, "must be at most 100%, which is 1")?;
            signal.check().map_err(|reason| ConfigError::new(&key, reason).with_value(threshold))?;
        }
        Ok(())
    }

    /// The names of the signals, with their thresholds.
    pub(crate) fn thresholds(&self) -> impl Iterator<Item = (&str, f64)> {
        self.signals.iter().map(|watched| (watched.signal.name(), watched.threshold))
    }
}

impl fmt::Debug for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.thresholds()).finish()
    }
}

/// By the names of the signals and their thresholds.
impl PartialEq for Overload {
    fn eq(&self, other: &Self) -> bool {
        self.thresholds().eq(other.thresholds())
    }
}

#[cfg(test)]
mod tests;
