//! Decides in this process.

mod locked;
mod state;

use self::locked::{Found, Locked, Tiers};
use super::{Acquire, AcquireRequest, Answer, Backend, Outcome, Receipt, Usage};
use crate::{
    algorithm::Standing,
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
/// finds a place starts there with a full quota, and what was charged to the
/// shared counter is not given back.
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
        for (charge, tier, committed) in receipt.commits() {
            let key = charge.applied.key;
            let mut shard = self.store.lock(self.store.shard_of(key));
            state::refund(&mut shard, tier, key.tier(tier.salt), now.as_nanos(), committed);
        }
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

    pub(crate) fn decide(&self, request: &AcquireRequest<'_>) -> Outcome {
        let now = request.now.as_nanos();
        let mut locked = Locked::new(&self.store, request.charges);
        let mut found = Tiers::new();
        if !locked.find_all(request.charges, now, &mut found) {
            locked.make_places(request.charges, now, &mut found);
        }
        let at = found.iter().try_fold(now, |at, tier| Some(at.max(tier.earliest?)));
        let admitted = at.filter(|&at| at == now || may_wait(request, &found, now, at));
        match admitted {
            Some(at) => locked.commit(request.charges, now, at, &found),
            None => locked.release(&found),
        }
        Outcome {
            answer: match admitted {
                Some(at) => Answer::Admitted { wait: at - now },
                None => Answer::Refused { retry_after: at.map(|at| at - now) },
            },
            tiers: locked.standings(request.charges, now, &found),
        }
    }
}

/// Whether every tier's own wait is within its rule's bound, and the whole
/// within the caller's.
#[cold]
fn may_wait(request: &AcquireRequest<'_>, found: &[Found], now: u64, at: u64) -> bool {
    let mut found = found.iter();
    at - now <= nanos(request.max_wait)
        && request.charges.iter().all(|charge| {
            charge.tiers().iter().zip(&mut found).all(|(tier, found)| {
                let longest = charge.applied.rule.max_wait.min(tier.machine.longest_wait());
                found.earliest.is_some_and(|earliest| earliest - now <= longest)
            })
        })
}
