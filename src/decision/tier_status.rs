//! [`TierStatus`]: one tier after a decision, and its name.

use std::{borrow::Cow, time::Duration};

use crate::{
    quota::{Algorithm, Quota},
    time::{in_one_unit, nanos},
    unit::Unit,
};

/// The state of one tier after a decision.
///
/// ```
/// use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let rule = Rule::new("search").tier(Quota::per_second(10)).tier(Quota::per_day(500));
/// let limiter = RateLimiter::new(Policy::new().rule(rule)).unwrap();
/// let decision = limiter.check(&Descriptor::new("/search").tenant("acme")).await;
/// let tiers: Vec<_> = decision.tiers().iter().map(|tier| (tier.name().into_owned(), tier.remaining())).collect();
/// assert_eq!(tiers, [("search-1s".to_owned(), 9), ("search-1d".to_owned(), 499)]);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierStatus {
    pub(crate) rule: RuleName,
    pub(crate) quota: Quota,
    pub(crate) remaining: u64,
    /// Nanoseconds.
    pub(crate) reset: u64,
    pub(crate) naming: TierNameStyle,
    pub(crate) violated: bool,
    pub(crate) unit: Unit,
}

/// A rule's id, which lives as long as the process. One pointer, so that a
/// tier's status fits into a cache line.
pub(crate) type RuleName = &'static &'static str;

/// How the names of a rule's tiers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TierNameStyle {
    /// The only tier of its rule.
    Alone,
    /// The only tier with its window.
    ByWindow,
    /// The n-th tier with its window.
    Nth(u8),
}

impl TierStatus {
    /// The id of the tier's rule.
    #[must_use]
    pub fn rule(&self) -> &str {
        self.rule
    }

    /// `RULE` if the rule has one tier, `RULE-WINDOW` (`get-product-10s`,
    /// `get-product-concurrent`) if it has several.
    #[must_use]
    pub fn name(&self) -> Cow<'static, str> {
        match self.naming {
            TierNameStyle::Alone => Cow::Borrowed(self.rule),
            TierNameStyle::ByWindow => Cow::Owned([self.rule, "-", &self.window_name()].concat()),
            TierNameStyle::Nth(n) => Cow::Owned(format!("{}-{}-{n}", self.rule, self.window_name())),
        }
    }

    fn window_name(&self) -> String {
        match self.quota.counted_by() {
            Algorithm::Concurrency => "concurrent".into(),
            _ if self.quota.is_month() => "month".into(),
            _ => in_one_unit(nanos(self.quota.window())).unwrap_or_else(|| "0ns".into()),
        }
    }

    /// What the tier counts: `requests`, unless its [rule](crate::Rule::unit) says otherwise.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        self.unit.name()
    }

    /// Units per window, or in flight at once.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.quota.limit()
    }

    /// The window's length; zero for a concurrency limit, 31 days for a calendar month.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.quota.window()
    }

    /// The tier's quota.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Units that would be admitted at once.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The time until the quota is full again; for windows, until the window
    /// ends. Zero for a concurrency limit, where it cannot be known.
    #[must_use]
    pub fn reset(&self) -> Duration {
        Duration::from_nanos(self.reset)
    }

    /// Whether the request was rejected or delayed because of this tier.
    ///
    /// A request is decided again after it has waited in a queue, for in-flight units or
    /// an adaptive rate, or for the end of a cooldown: that wait violates no tier.
    #[must_use]
    pub fn is_violated(&self) -> bool {
        self.violated
    }

    /// The time until at least one more unit would be admitted than now; zero
    /// if the quota is full.
    pub(crate) fn next_unit(&self) -> Duration {
        let missing = self.quota.capacity().saturating_sub(self.remaining);
        if self.quota.counted_by() != Algorithm::TokenBucket || missing <= 1 || self.quota.limit() == 0 {
            return self.reset();
        }
        let later = u128::from(missing - 1) * self.quota.window().as_nanos() / u128::from(self.quota.limit());
        let later = u64::try_from(later).unwrap_or(u64::MAX);
        Duration::from_nanos(self.reset.saturating_sub(later))
    }
}

#[cfg(test)]
mod tests;
