//! Decides in this process.

mod kinds;
mod locked;
mod settle;
mod state;
#[cfg(test)]
mod tests;
mod warm;

use smallvec::SmallVec;

use self::{
    kinds::{Kinds, Whole},
    locked::{Found, Locked, Tiers},
};
use super::{Acquire, AcquireRequest, Answer, Backend, Charge, Outcome, Receipt, Settlement, Usage, split::Shares};
use crate::{
    algorithm::{Machine, QuotaStatus, UNKNOWN_TIME},
    fingerprint::Fingerprint,
    policy::{Target, Tier},
    store::Store,
    time::{Timestamp, nanos},
};

/// For how long, in nanoseconds, a thread may be held up between reading the
/// clock and having the lock, on a busy machine.
pub(crate) const LONGEST_RACE: u64 = 1_000_000_000;

/// How many tiers are charged by the shorter way.
const MOST_HELD: usize = 4;

/// Where the tiers stand that were charged by it.
pub(crate) type QuotaStatuses = SmallVec<[QuotaStatus; MOST_HELD]>;

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
/// It talks to no other process, nor about what a provider asks for
/// ([`hold_back`](crate::RateLimiter::cool_down)): each hears that by itself.
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
    /// What this instance has of every limit, where that is not all.
    shares: Option<Box<Shares>>,
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
        Local { store: Store::new(self.max_keys), shares: None }
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
            let units = |units: u64| units.saturating_mul(charge.rule.cost);
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
    /// Charges all targets, if the state of every tier exists and admits the
    /// cost at `now`; else changes nothing. Calls `charged` for each tier, in
    /// order.
    #[inline]
    pub(crate) fn try_charge<'t>(
        &self,
        targets: impl ExactSizeIterator<Item = Target<'t>> + Clone,
        now: u64,
        mut charged: impl FnMut(&'t Tier, QuotaStatus),
    ) -> bool {
        if targets.len() == 1
            && let Some(Target { key, tiers: [tier], cost }) = targets.clone().next()
        {
            let status = match &self.shares {
                None => self.charge_by(&tier.machine, key, tier, now, cost),
                Some(shares) => self.charge_part(shares, key, tier, now, cost),
            };
            return status.map(|status| charged(tier, status)).is_some();
        }
        let Some(statuses) = self.try_charge_several(targets.clone(), now) else { return false };
        let mut statuses = statuses.iter();
        for target in targets {
            target.tiers.iter().zip(&mut statuses).for_each(|(tier, status)| charged(tier, *status));
        }
        true
    }

    /// Kept out of line: inlining it makes the way of one tier slower.
    #[inline(never)]
    fn try_charge_several<'t>(
        &self,
        targets: impl ExactSizeIterator<Item = Target<'t>> + Clone,
        now: u64,
    ) -> Option<QuotaStatuses> {
        let tiers: usize = targets.clone().map(|target| target.tiers.len()).sum();
        if self.shares.is_some() || tiers > MOST_HELD {
            return None;
        }
        Locked::new(Whole, &self.store, targets.clone().map(|target| target.key)).try_charge(targets, now)
    }

    #[inline]
    fn charge_by(&self, machine: &Machine, key: Fingerprint, tier: &Tier, now: u64, cost: u64) -> Option<QuotaStatus> {
        let shard = &mut *self.store.lock(self.store.shard_of(key));
        state::charge_held(shard, machine, key.tier(tier.salt), now, cost)
    }

    /// Apart, as all that is for shares: who has the whole limit is not to be
    /// slower for it.
    #[inline(never)]
    fn charge_part(&self, shares: &Shares, key: Fingerprint, tier: &Tier, now: u64, cost: u64) -> Option<QuotaStatus> {
        shares.with_one(tier, now, |machine| self.charge_by(machine, key, tier, now, cost))
    }

    /// The same backend for one of several instances.
    pub(crate) fn sharing(self, shares: Shares) -> Self {
        Self { shares: Some(Box::new(shares)), ..self }
    }

    /// Without a share until the first decision.
    pub(crate) fn joining(self) -> Self {
        Self { shares: self.shares.map(|shares| Box::new(shares.joining())), ..self }
    }

    /// Empty, and for so many keys.
    pub(crate) fn resized(self, max_keys: usize) -> Self {
        Self { store: Store::new(max_keys), ..self }
    }

    /// Whether limits are shared out: a quota then does not tell for how long
    /// a request may have to wait.
    pub(crate) fn is_shared(&self) -> bool {
        self.shares.is_some()
    }

    pub(crate) fn shares(&self) -> Option<&Shares> {
        self.shares.as_deref()
    }

    /// Runs something with the machine that counts a tier.
    fn with_machine<R>(&self, tier: &Tier, now: Timestamp, run: impl FnOnce(&Machine) -> R) -> R {
        match &self.shares {
            None => run(&tier.machine),
            Some(shares) => shares.with_one(tier, now.as_nanos(), run),
        }
    }

    /// The answer that [`Self::decide`] would give, charging nothing.
    pub(crate) fn look(&self, request: &AcquireRequest<'_>) -> Outcome {
        match &self.shares {
            None => self.look_by(Whole, request),
            Some(shares) => shares.with(request, |parts| self.look_by(parts, request)),
        }
    }

    /// The counters of what is in flight that such a request would share with
    /// others of its rules' keys, as there is no place for one of its own.
    /// Nothing is charged.
    #[cold]
    pub(crate) fn shared_in_flight(&self, request: &AcquireRequest<'_>) -> SmallVec<[Fingerprint; 1]> {
        match &self.shares {
            None => self.shared_by(Whole, request),
            Some(shares) => shares.with(request, |parts| self.shared_by(parts, request)),
        }
    }

    pub(crate) fn decide(&self, request: &AcquireRequest<'_>) -> Outcome {
        match &self.shares {
            None => self.decide_by(Whole, request),
            Some(shares) => self.decide_part(shares, request),
        }
    }

    #[inline(never)]
    fn decide_part(&self, shares: &Shares, request: &AcquireRequest<'_>) -> Outcome {
        shares.with(request, |parts| self.decide_by(parts, request))
    }

    fn look_by(&self, kinds: impl Kinds, request: &AcquireRequest<'_>) -> Outcome {
        let now = request.now.as_nanos();
        let mut locked = Locked::new(kinds, &self.store, request.charges.iter().map(|charge| charge.key));
        let mut found = Tiers::new();
        locked.find_all(request.charges, now, &mut found);
        let answer = answer(request, &found, now, earliest(kinds, request, &found, now), kinds);
        Outcome { answer, tiers: locked.statuses(request.charges, now, &found), decided_at: None }
    }

    fn shared_by(&self, kinds: impl Kinds, request: &AcquireRequest<'_>) -> SmallVec<[Fingerprint; 1]> {
        let now = request.now.as_nanos();
        let mut locked = Locked::new(kinds, &self.store, request.charges.iter().map(|charge| charge.key));
        let mut found = Tiers::new();
        if locked.find_all(request.charges, now, &mut found) {
            return SmallVec::new();
        }
        locked.reserve_places(request.charges, now, &mut found);
        locked.release(&found);
        let tiers = request.charges.iter().flat_map(|charge| charge.tiers().iter().map(move |tier| (charge, tier)));
        let shared = tiers.zip(&found).filter(|((_, tier), found)| tier.is_in_flight() && found.is_shared());
        shared.map(|((charge, tier), found)| found.key(charge).tier(tier.salt)).collect()
    }

    #[inline]
    fn decide_by(&self, kinds: impl Kinds, request: &AcquireRequest<'_>) -> Outcome {
        let now = request.now.as_nanos();
        let mut locked = Locked::new(kinds, &self.store, request.charges.iter().map(|charge| charge.key));
        let mut found = Tiers::new();
        if !locked.find_all(request.charges, now, &mut found) {
            locked.make_places(request.charges, now, &mut found);
        }
        let admitted = match earliest(kinds, request, &found, now) {
            Some(at) if request.charges.iter().any(Charge::is_smooth) => {
                Some(locked.paced(request, now, at, &mut found))
            }
            admitted => admitted,
        };
        match admitted {
            Some(at) => locked.commit(request.charges, now, at, &found),
            None => locked.release(&found),
        }
        let answer = answer(request, &found, now, admitted, kinds);
        Outcome { answer, tiers: locked.statuses(request.charges, now, &found), decided_at: None }
    }
}

/// When all tiers agree to let the request go; `None` where that is never, or
/// later than it may wait.
#[inline]
fn earliest(kinds: impl Kinds, request: &AcquireRequest<'_>, found: &[Found], now: u64) -> Option<u64> {
    let start = now.saturating_add(request.cooldown_left());
    let at = found.iter().try_fold(start, |at, tier| Some(at.max(tier.earliest?)));
    at.filter(|&at| at == now || may_wait(kinds, request, found, now, at))
}

#[inline]
fn answer(request: &AcquireRequest<'_>, found: &[Found], now: u64, admitted: Option<u64>, kinds: impl Kinds) -> Answer {
    match admitted {
        Some(at) => Answer::Admitted { wait: at - now },
        None => rejection(kinds, request, found, now),
    }
}

/// What is said to a request that is not admitted.
#[cold]
fn rejection(kinds: impl Kinds, request: &AcquireRequest<'_>, found: &[Found], now: u64) -> Answer {
    let known =
        |at: u64, tier: &Found| Some(at.max(tier.earliest.map(|time| if time == UNKNOWN_TIME { now } else { time })?));
    let start = now.saturating_add(request.cooldown_left());
    let Some(at) = found.iter().try_fold(start, known) else { return Answer::Rejected { retry_after: None } };
    let mut places = found.iter();
    let full = request.charges.iter().find_map(|charge| {
        let tiers: SmallVec<[_; 2]> = charge.tiers().iter().zip(&mut places).collect();
        let (tier, found) = tiers.into_iter().find(|(_, found)| found.earliest == Some(UNKNOWN_TIME))?;
        Some(found.key(charge).tier(tier.salt))
    });
    match full {
        Some(key) if at == now || may_wait(kinds, request, found, now, at) => Answer::Busy { key },
        _ => Answer::Rejected { retry_after: Some(at - now) },
    }
}

/// Whether every tier's own wait is within its rule's bound, and the whole
/// within the caller's.
#[cold]
fn may_wait(kinds: impl Kinds, request: &AcquireRequest<'_>, found: &[Found], now: u64, at: u64) -> bool {
    let mut found = found.iter();
    at != UNKNOWN_TIME
        && at - now <= nanos(request.max_wait)
        && request.charges.iter().all(|charge| charge.max_wait >= request.cooldown_left())
        && request.charges.iter().all(|charge| {
            charge.tiers().iter().zip(&mut found).all(|(tier, found)| {
                // A queue is as long behind what is held back.
                let queue = kinds.of(tier).longest_wait().saturating_add(request.cooldown_left());
                let longest = charge.max_wait.min(queue);
                found.earliest.is_some_and(|earliest| earliest == UNKNOWN_TIME || earliest - now <= longest)
            })
        })
}
