//! A backend over an existing keyed `governor::RateLimiter`.
//!
//! It cannot decide several tiers together, and it cannot refund a charge.

use std::{fmt, hash::Hash, num::NonZeroU32, time::Duration};

use governor::{
    NotUntil, RateLimiter as Keyed,
    clock::Clock,
    middleware::{RateLimitingMiddleware, StateSnapshot},
    state::keyed::KeyedStateStore,
};

use super::{Backend, Charge, Decide, Outcome, Receipt, Request};
use crate::{
    descriptor::TenantId,
    error::{BackendError, BackendErrorKind},
    time::Timestamp,
};

/// Decides by an existing keyed [`governor::RateLimiter`].
///
/// That limiter's quota and clock apply. The policy's quota only names the tier
/// and fills the headers. A request with several tiers or rules, or by calendar
/// months, fails with an error of the kind `Unsupported`, and the rules' failure
/// modes decide it. A charge cannot be refunded, and no request waits for a slot.
/// [`peek`](crate::RateLimiter::peek) and [`reset`](crate::RateLimiter::reset)
/// are `Unsupported` too. With governor's
/// `StateInformationMiddleware`, responses to admitted requests carry headers.
/// Without it they do not, because the remaining units are unknown.
///
/// ```
/// use std::num::NonZeroU32;
/// use governor::{DefaultKeyedRateLimiter, Quota as GovernorQuota};
/// use tower_ratelimit::{Quota, RateLimiter, backend::Governor};
///
/// let existing = DefaultKeyedRateLimiter::<String>::keyed(GovernorQuota::per_second(NonZeroU32::MIN));
/// let limiter = RateLimiter::builder()
///     .policy(Quota::per_second(1))
///     .backend(Governor::by_tenant(existing))
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[must_use]
pub struct Governor<L, F> {
    limiter: L,
    key: F,
}

/// What governor's middleware reports for an admitted request.
pub trait Passed {
    /// Units that remain for immediate use; `None` where that is unknown.
    fn remaining(&self) -> Option<u32>;
}

impl Passed for () {
    fn remaining(&self) -> Option<u32> {
        None
    }
}

impl Passed for StateSnapshot {
    fn remaining(&self) -> Option<u32> {
        Some(self.remaining_burst_capacity())
    }
}

impl<S, C, MW> Governor<Keyed<String, S, C, MW>, fn(&Charge<'_>) -> String>
where
    S: KeyedStateStore<String>,
    C: Clock,
    MW: RateLimitingMiddleware<C::Instant>,
{
    /// Uses the tenant as the key: its name, or its address as text. The key of
    /// the anonymous tenant is the empty string.
    pub fn by_tenant(limiter: Keyed<String, S, C, MW>) -> Self {
        Self::new(limiter, tenant)
    }
}

fn tenant(charge: &Charge<'_>) -> String {
    match charge.tenant() {
        Some(TenantId::Name(name)) => name.into(),
        Some(TenantId::Address(address)) => address.to_string(),
        None => String::new(),
    }
}

impl<K, S, C, MW, F> Governor<Keyed<K, S, C, MW>, F>
where
    K: Hash + Eq + Clone,
    S: KeyedStateStore<K>,
    C: Clock,
    MW: RateLimitingMiddleware<C::Instant>,
    F: Fn(&Charge<'_>) -> K,
{
    /// Uses the key that `key` makes from the charge.
    pub fn new(limiter: Keyed<K, S, C, MW>, key: F) -> Self {
        Self { limiter, key }
    }

    fn decide_one(&self, charge: &Charge<'_>) -> Outcome
    where
        MW: RateLimitingMiddleware<C::Instant, NegativeOutcome = NotUntil<C::Instant>, PositiveOutcome: Passed>,
    {
        let Ok(units) = u32::try_from(charge.cost()) else { return Outcome::rejected(None) };
        let Some(units) = NonZeroU32::new(units) else { return Outcome::admitted(Duration::ZERO) };
        match self.limiter.check_key_n(&(self.key)(charge), units) {
            Ok(Ok(passed)) => match (passed.remaining(), charge.tiers()) {
                (Some(remaining), [tier]) => {
                    let remaining = u64::from(remaining);
                    let missing = tier.quota().capacity().saturating_sub(remaining);
                    let whole = u128::from(missing) * tier.quota().window().as_nanos();
                    let reset = u64::try_from(whole / u128::from(tier.quota().limit().max(1))).unwrap_or(u64::MAX);
                    Outcome::admitted(Duration::ZERO).tier(remaining, Duration::from_nanos(reset), false)
                }
                _ => Outcome::admitted(Duration::ZERO),
            },
            Ok(Err(until)) => {
                let wait = until.wait_time_from(self.limiter.clock().now());
                Outcome::rejected(Some(wait)).tier(0, wait, true)
            }
            Err(_) => Outcome::rejected(None).tier(0, Duration::ZERO, true),
        }
    }
}

impl<K, S, C, MW, F> Backend for Governor<Keyed<K, S, C, MW>, F>
where
    K: Hash + Eq + Clone + 'static,
    S: KeyedStateStore<K> + Send + Sync + 'static,
    C: Clock + Send + Sync + 'static,
    C::Instant: Send + Sync,
    MW: RateLimitingMiddleware<C::Instant, NegativeOutcome = NotUntil<C::Instant>, PositiveOutcome: Passed>
        + Send
        + Sync
        + 'static,
    F: Fn(&Charge<'_>) -> K + Send + Sync + 'static,
    Self: Send + Sync,
{
    fn decide(&self, request: &Request<'_>) -> Decide {
        Decide::Now(match request.charges {
            [charge] if matches!(charge.tiers(), [tier] if !tier.quota().is_month()) => Ok(self.decide_one(charge)),
            _ => {
                let reason = "governor decides one tier of one rule, and no calendar months";
                Err(BackendError::new(BackendErrorKind::Unsupported, reason))
            }
        })
    }

    fn refund(&self, _: &Receipt, _: Timestamp) {}

    fn peek(&self, _: &Request<'_>) -> Decide {
        let reason = "governor does not tell what is left without charging it";
        Decide::Now(Err(BackendError::new(BackendErrorKind::Unsupported, reason)))
    }
}

impl<L, F> fmt::Debug for Governor<L, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Governor")
    }
}
