//! Decides in this process.

mod locked;
mod settle;
mod state;
#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use self::locked::{Found, Locked, Tiers};
use super::{Acquire, AcquireRequest, Answer, Backend, Charge, Outcome, Receipt, Settlement, Usage};
use crate::{
    algorithm::{Standing, UNKNOWN},
    fingerprint::Fingerprint,
    policy::Tier,
    store::Store,
    time::{Timestamp, nanos},
};

/// Decides in this process. Exact, synchronous, bounded in memory.
///
/// The number of counters (one for each tier of a key) is capped, at 1,000,000
/// unless set. At the cap, a new key takes the place of an idle counter; where
/// a short search finds none, it shares its rule's overflow counter instead of
/// driving out a live one. So a flood of invented tenants neither grows memory
/// nor buys more than the overflow counter has. A key that shared it and later
/// finds a place starts there with a full quota. Of a cost that is known late
/// the overflow counter takes up to one capacity of the quota (its burst, or
/// what a window holds) for each settlement and forgives the rest, so that one
/// tenant's debt does not shut out all that share with it.
///
/// All tiers of all rules that apply are decided and charged under their
/// locks, taken in one order: N threads never admit N+1.
///
/// ```
/// use tower_ratelimit::{Quota, RateLimiter, backend::Local};
///
/// let limiter = RateLimiter::builder()
///     .policy(Quota::per_second(10))
///     .backend(Local::builder().max_keys(50_000).build())
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Local {
    store: Store,
}

/// Builds a [`Local`].
#[derive(Clone, Debug)]
pub struct LocalBuilder {
    max_keys: usize,
}

impl Local {
    /// A backend for up to a million keys.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A backend with settings of its own.
    #[must_use]
    pub fn builder() -> LocalBuilder {
        LocalBuilder { max_keys: 1_000_000 }
    }
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

impl LocalBuilder {
    /// The most counters that are held; a key takes one for each tier.
    #[must_use]
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// The backend.
    #[must_use]
    pub fn build(self) -> Local {
        Local { store: Store::new(self.max_keys) }
    }
}

impl Backend for Local {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire {
        Acquire::Ready(Ok(self.decide(request)))
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        receipt.for_each(|charge, tier, claim| self.give_back(charge, tier, claim, u64::MAX, now));
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        receipt.for_each(|charge, tier, claim| {
            if tier.is_in_flight() {
                self.give_back(charge, tier, claim, u64::MAX, now);
            }
        });
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        receipt.for_each(|charge, tier, claim| {
            let units = |units: u64| units.saturating_mul(charge.applied.rule.cost);
            match settlement {
                _ if tier.is_in_flight() => {}
                Settlement::Add(more) => self.owe(charge, tier, claim, units(more), now),
                Settlement::GiveBack(less) => self.give_back(charge, tier, claim, units(less), now),
            }
        });
    }

    fn usage(&self) -> Usage {
        Usage { keys: self.store.len(), overflowed: self.store.overflowed() }
    }
}

impl Local {
    /// The way of nearly all requests: one tier, whose state is there and lets
    /// it pass. Else nothing is done.
    #[inline]
    pub(crate) fn charge_held(&self, key: Fingerprint, tier: &Tier, now: u64, cost: u64) -> Option<Standing> {
        let shard = &mut *self.store.lock(self.store.shard_of(key));
        state::charge_held(shard, tier, key.tier(tier.salt), now, cost)
    }

    /// The answer that [`Self::decide`] would give, charging nothing.
    pub(crate) fn look(&self, request: &AcquireRequest<'_>) -> Outcome {
        let now = request.now.as_nanos();
        let mut locked = Locked::new(&self.store, request.charges);
        let mut found = Tiers::new();
        locked.find_all(request.charges, now, &mut found);
        let answer = answer(request, &found, now, earliest(request, &found, now));
        Outcome { answer, tiers: locked.standings(request.charges, now, &found) }
    }

    pub(crate) fn decide(&self, request: &AcquireRequest<'_>) -> Outcome {
        let now = request.now.as_nanos();
        let mut locked = Locked::new(&self.store, request.charges);
        let mut found = Tiers::new();
        if !locked.find_all(request.charges, now, &mut found) {
            locked.make_places(request.charges, now, &mut found);
        }
        let admitted = match earliest(request, &found, now) {
            Some(at) if request.charges.iter().any(Charge::is_smooth) => {
                Some(locked.paced(request, now, at, &mut found))
            }
            admitted => admitted,
        };
        match admitted {
            Some(at) => locked.commit(request.charges, now, at, &found),
            None => locked.release(&found),
        }
        let answer = answer(request, &found, now, admitted);
        Outcome { answer, tiers: locked.standings(request.charges, now, &found) }
    }
}

/// When all tiers agree to let the request go; `None` where that is never, or
/// later than it may wait.
#[inline]
fn earliest(request: &AcquireRequest<'_>, found: &[Found], now: u64) -> Option<u64> {
    let at = found.iter().try_fold(now, |at, tier| Some(at.max(tier.earliest?)));
    at.filter(|&at| at == now || may_wait(request, found, now, at))
}

#[inline]
fn answer(request: &AcquireRequest<'_>, found: &[Found], now: u64, admitted: Option<u64>) -> Answer {
    match admitted {
        Some(at) => Answer::Admitted { wait: at - now },
        None => refusal(request, found, now),
    }
}

/// What is said to a request that is not admitted.
#[cold]
fn refusal(request: &AcquireRequest<'_>, found: &[Found], now: u64) -> Answer {
    let known =
        |at: u64, tier: &Found| Some(at.max(tier.earliest.map(|time| if time == UNKNOWN { now } else { time })?));
    let Some(at) = found.iter().try_fold(now, known) else { return Answer::Refused { retry_after: None } };
    let mut places = found.iter();
    let full = request.charges.iter().find_map(|charge| {
        let tiers: SmallVec<[_; 2]> = charge.tiers().iter().zip(&mut places).collect();
        let (tier, found) = tiers.into_iter().find(|(_, found)| found.earliest == Some(UNKNOWN))?;
        Some(found.key(charge).tier(tier.salt))
    });
    match full {
        Some(key) if at == now || may_wait(request, found, now, at) => Answer::Busy { key },
        _ => Answer::Refused { retry_after: Some(at - now) },
    }
}

/// Whether every tier's own wait is within its rule's bound, and the whole
/// within the caller's.
#[cold]
fn may_wait(request: &AcquireRequest<'_>, found: &[Found], now: u64, at: u64) -> bool {
    let mut found = found.iter();
    at != UNKNOWN
        && at - now <= nanos(request.max_wait)
        && request.charges.iter().all(|charge| {
            charge.tiers().iter().zip(&mut found).all(|(tier, found)| {
                let longest = charge.max_wait.min(tier.machine.longest_wait());
                found.earliest.is_some_and(|earliest| earliest == UNKNOWN || earliest - now <= longest)
            })
        })
}
