//! The pools of units that this process has leased, one for each charge set of a leased rule;
//! and which of them a request takes its units from, and how many. It sends nothing, and
//! decides only from what it has.
//!
//! Invariant: the number of pools is capped. A key without a pool is decided by the
//! store. A unit of a pool is one charge of every rule of the request, at the rule's own cost.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use foldhash::fast::RandomState;
use smallvec::{Array, SmallVec};
use tokio::time::Instant;

use super::{
    lease::{LastReply, Leased, ReturnedUnits, Templates},
    pool::{Exchange, Pool, Taken, Want},
};
use crate::{
    backend::{
        Charge, Outcome, Request, TierState,
        redis::{
            plan::{ChargeSet, LEASE, LeaseAsk, is_leasable},
            wire::ChargeReply,
        },
    },
    fingerprint::Fingerprint,
    observe::StoreReport,
    policy::Consistency,
    store::ShardedTable,
    sync::lock,
    time::nanos,
};

/// The pools of a backend.
#[derive(Debug)]
pub(crate) struct Pools {
    table: ShardedTable<Pool>,
    templates: Mutex<Templates>,
    /// For a charge, the pools of requests that are charged by other rules as well.
    of_charge: Mutex<HashMap<u128, PoolKeys, RandomState>>,
    /// The prefix of all keys.
    prefix: String,
    pub(crate) instances: Instances,
    pub(super) time: LimiterTime,
    /// The number of the last exchange.
    number: AtomicU64,
    /// Units that are given back with the next exchange, or before the store decides.
    surplus: Mutex<Vec<ReturnedUnits>>,
    report: Arc<StoreReport>,
    own: Weak<Self>,
}

/// How a request gets units: by an exchange that has begun, with what asks the store for it.
pub(super) type Begun = Want<(Arc<Exchange>, LeaseAsk)>;

/// The keys of some pools.
pub(super) type PoolKeys = SmallVec<[Fingerprint; 2]>;

impl Pools {
    pub(crate) fn new(prefix: &str, uses_limiter_time: bool, report: &Arc<StoreReport>) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            table: ShardedTable::new(),
            templates: Mutex::default(),
            of_charge: Mutex::default(),
            prefix: prefix.to_owned(),
            instances: Instances::new(),
            time: LimiterTime { last: Mutex::default(), decides: uses_limiter_time },
            number: AtomicU64::new(0),
            surplus: Mutex::default(),
            report: Arc::clone(report),
            own: Weak::clone(own),
        })
    }

    /// A request of `cost` units arrives, and takes them if they are at hand; else it is not
    /// counted. Returns whether more are needed at the end of the interval.
    #[inline]
    pub(super) fn take_at_hand(
        &self,
        pool: PoolKey,
        cost: u64,
        now: u64,
        states: &mut SmallVec<impl Array<Item = TierState>>,
    ) -> Option<bool> {
        let take =
            |own: &mut Pool| own.take_at_hand(pool.version, cost, now, states).inspect(|_| own.demand.count(cost));
        self.table.with(pool.key, take).flatten()
    }

    /// A request of `cost` units takes them, if there are enough. It is counted as `counted`
    /// units: not again where it has waited.
    pub(super) fn take(&self, pool: PoolKey, counted: u64, cost: u64, now: u64) -> Taken {
        let taken = self.table.with_new(pool.key, now, |own| {
            own.demand.count(counted);
            own.take(pool.version, cost, now)
        });
        let (taken, surplus) = taken?;
        self.keep(surplus);
        taken
    }

    /// The outcome of a request that takes nothing. `None` where there are too few
    /// units.
    pub(super) fn peek(&self, pool: PoolKey, cost: u64, now: u64) -> Option<Outcome> {
        self.table.with(pool.key, |own| own.peek(pool.version, cost, now)).flatten()
    }

    /// A request of some units found too few. If it begins an exchange, that is for requests
    /// of `waiting` units.
    pub(super) fn want(&self, pool: PoolKey, (units, waiting): (u64, u64), now: u64) -> Begun {
        let begun = self.table.with(pool.key, |own| match own.want(units, now, pool.interval) {
            Want::Wait(exchange) => Want::Wait(exchange),
            Want::Ask(ahead) => Want::Ask(self.begin(pool.key, own, (waiting.max(units), ahead, now, pool.interval))),
            Want::Decide => Want::Decide,
        });
        begun.unwrap_or(Want::Decide)
    }

    /// An exchange of each pool that lacks units at the end of an interval, or of only one,
    /// with the index of its lane.
    pub(super) fn want_more(&self, only: Option<Fingerprint>) -> Vec<(usize, ChargeSet)> {
        let Some(now) = self.time.now() else { return Vec::new() };
        let mut sets = Vec::new();
        let mut want = |key, pool: &mut Pool| {
            if let Some(ahead) = pool.want_more(now)
                && let Some(reply) = pool.last_reply()
            {
                let (lane, interval) = (reply.template.lane, reply.template.interval);
                let set = reply.charge_set(self.time.decides.then_some(now / 1_000));
                let (_, ask) = self.begin(key, pool, (0, ahead, now, interval));
                sets.push((lane, ChargeSet { lease: Some(ask), ..set }));
            }
        };
        match only {
            Some(key) => _ = self.table.with(key, |pool| want(key, pool)),
            None => self.table.for_each(want),
        }
        sets
    }

    fn begin(
        &self,
        key: Fingerprint,
        pool: &mut Pool,
        (needed, ahead, now, interval): (u64, u64, u64, u64),
    ) -> (Arc<Exchange>, LeaseAsk) {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let exchange = pool.begin(number, needed);
        let under_way = UnderWay { pools: Weak::clone(&self.own), key, exchange: Arc::clone(&exchange) };
        let ask = LeaseAsk {
            pool: key,
            version: pool.version,
            needed,
            ahead,
            asked: (now, Instant::now()),
            interval,
            number,
            known: exchange.known,
            guard: Arc::new(under_way),
        };
        (exchange, ask)
    }

    /// The exchanges that are under way, of some pools or of all.
    pub(super) fn under_way(&self, keys: Option<&[Fingerprint]>) -> Vec<Arc<Exchange>> {
        let mut all = Vec::new();
        let mut add = |pool: &mut Pool| all.extend(pool.under_way().cloned());
        match keys {
            Some(keys) => keys.iter().for_each(|key| _ = self.table.with(*key, &mut add)),
            None => self.table.for_each(|_, pool| add(pool)),
        }
        all
    }

    /// All units of some pools are to be given back: the store decides, and must know all
    /// that is free.
    pub(super) fn give_back(&self, keys: &[Fingerprint], now: u64) {
        let of_key = |key: &Fingerprint| self.table.with(*key, |pool| pool.give_back(u64::MAX, now)).flatten();
        keys.iter().for_each(|key| self.keep(of_key(key)));
    }

    /// The store has leased units.
    pub(crate) fn add(&self, set: &ChargeSet, reply: &ChargeReply, lane: usize) {
        let Some(ask) = &set.lease else { return };
        // Counted from before the store was asked.
        let (asked, now) = (ask.asked.0, self.time.since(ask.asked));
        let (units, instances) = (reply.admitted, reply.when.unsigned_abs());
        self.instances.observe(instances);
        self.report.leased(units);
        let (template, tag) = lock(&self.templates).share(set, &self.prefix, ask.interval, lane);
        let last_reply = LastReply::new(template, tag, reply);
        let leased = Leased {
            version: ask.version,
            units,
            headroom: last_reply.headroom() / instances.max(1),
            asked,
            expires: last_reply.expiry(ask.lasts(), asked),
            reply: last_reply,
        };
        self.keep(self.table.with(ask.pool, |own| own.add(leased, now)).flatten());
    }

    /// Finds what is to be given back after a while: see [`Pool::sweep`].
    pub(super) fn sweep(&self) {
        let Some(now) = self.time.now() else { return };
        self.table.for_each(|_, pool| self.keep(pool.sweep(now, LEASE)));
        lock(&self.templates).drop_unused();
        lock(&self.of_charge).retain(|_, pools| {
            pools.retain(|key| self.may_admit(&[*key]));
            !pools.is_empty()
        });
    }

    /// All units are to be given back.
    pub(super) fn drain(&self, now: u64) {
        self.table.for_each(|_, pool| self.keep(pool.drain(now)));
    }

    /// Counts units that were not used, and keeps them until they are given back. What has
    /// expired need not be.
    fn keep(&self, surplus: Option<ReturnedUnits>) {
        let Some(surplus) = surplus else { return };
        self.report.unused(surplus.units, surplus.is_void);
        if !surplus.is_void {
            lock(&self.surplus).push(surplus);
        }
    }

    /// The units that are kept to be given back, which is to be done now.
    pub(super) fn kept_surplus(&self) -> Vec<ReturnedUnits> {
        std::mem::take(&mut *lock(&self.surplus))
    }

    /// The shortest interval of the exchanges that units are kept for.
    pub(super) fn surplus_interval(&self) -> Option<u64> {
        lock(&self.surplus).iter().map(|surplus| surplus.reply.template.interval).min()
    }

    /// The pools that take units of the leased counters of a request: its own, and those of
    /// requests that other rules charge.
    pub(super) fn related(&self, pool: Option<PoolKey>, charges: &[Charge<'_>]) -> PoolKeys {
        let (mut of_charge, mut keys) = (lock(&self.of_charge), PoolKeys::new());
        for charge in charges.iter().filter(|charge| is_leased(charge)) {
            keys.push(charge.key);
            if let Some(pool) = pool.filter(|pool| pool.key != charge.key) {
                let pools = of_charge.entry(charge.fingerprint()).or_default();
                if !pools.contains(&pool.key) {
                    pools.push(pool.key);
                }
            }
            keys.extend(of_charge.get(&charge.fingerprint()).into_iter().flatten().copied());
        }
        keys.sort_unstable_by_key(|key| key.to_u128());
        keys.dedup();
        keys
    }

    /// Whether one of these has units, or may have some soon.
    pub(super) fn may_admit(&self, keys: &[Fingerprint]) -> bool {
        keys.iter().any(|key| self.table.with(*key, |pool| pool.may_admit()) == Some(true))
    }

    /// Drops all units: the store has lost its counters.
    pub(crate) fn forget(&self) {
        lock(&self.surplus).clear();
        self.table.for_each(|_, pool| pool.forget());
    }
}

/// Ends an exchange when it is dropped, with the last copy of its ask.
#[derive(Debug)]
struct UnderWay {
    pools: Weak<Pools>,
    key: Fingerprint,
    exchange: Arc<Exchange>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(pools) = self.pools.upgrade() {
            pools.table.with(self.key, Pool::on_ended);
        }
        self.exchange.end();
    }
}

/// Names a pool and the policy that it is asked under.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolKey {
    pub(super) key: Fingerprint,
    pub(super) version: u64,
    /// Nanoseconds.
    pub(super) interval: u64,
}

/// The pool of a request, and how many of its units the request takes. `None` where a
/// rule is not leased, or the charges do not all take the same number of units.
pub(super) fn pool_of(charges: &[Charge<'_>]) -> Option<(PoolKey, u64)> {
    let (first, rest) = charges.split_first()?;
    let (mut pool, units_of_first) = (pool_key(first)?, units(first)?);
    let mut key = pool.key.to_u128();
    for charge in rest {
        let other = pool_key(charge)?;
        key = key.rotate_left(9) ^ other.key.to_u128();
        pool.version = pool.version.rotate_left(9) ^ other.version;
        pool.interval = pool.interval.min(other.interval);
        if units(charge)? != units_of_first {
            return None;
        }
    }
    Some((PoolKey { key: Fingerprint::from_u128(key), ..pool }, units_of_first))
}

/// Whether a pool may decide the request. Only the store decides what a smooth rule
/// may delay.
pub(super) fn fits_pool(request: &Request<'_>) -> bool {
    request.max_wait.is_zero() || !request.charges.iter().any(Charge::is_smooth)
}

/// Whether a pool may have units of a charge: its rule is leased, and so may its tiers be.
pub(super) fn is_leased(charge: &Charge<'_>) -> bool {
    charge.rule.options.consistency == Consistency::Leased
        && charge.tiers().iter().all(|tier| is_leasable(tier.quota().counted_by()))
}

fn pool_key(charge: &Charge<'_>) -> Option<PoolKey> {
    let key = || PoolKey { key: charge.key, version: charge.local_version(), interval: nanos(charge.sync_interval()) };
    is_leased(charge).then(key)
}

/// How many times the rule's own cost the request takes.
fn units(charge: &Charge<'_>) -> Option<u64> {
    let each = charge.rule.options.cost;
    (each > 0 && charge.cost.is_multiple_of(each)).then(|| charge.cost / each)
}

pub(super) fn one_unit<'a>(charge: &Charge<'a>) -> Charge<'a> {
    Charge { cost: charge.rule.options.cost, ..*charge }
}

/// The limiter's time, for what is done without a request: that of the last request, and
/// what has passed since. Where the limiter's clock decides, which a test may step, time
/// passes only with requests.
#[derive(Debug)]
pub(super) struct LimiterTime {
    /// The limiter's time in nanoseconds, and when it was that.
    last: Mutex<Option<(u64, Instant)>>,
    /// Whether it decides instead of the store's clock.
    pub(super) decides: bool,
}

impl LimiterTime {
    /// The limiter's clock is at `now`, in nanoseconds.
    pub(super) fn observe(&self, now: u64) {
        *lock(&self.last) = Some((now, Instant::now()));
    }

    /// `None` before the first request.
    fn now(&self) -> Option<u64> {
        (*lock(&self.last)).map(|last| self.since(last))
    }

    /// The limiter's time, in nanoseconds, which was `at` at another time.
    pub(super) fn since(&self, (at, time): (u64, Instant)) -> u64 {
        if self.decides { at } else { at.saturating_add(nanos(time.elapsed())) }
    }
}

/// How long the largest number counts, at least: not every counter is used by all
/// instances.
pub(super) const KEPT: Duration = Duration::from_secs(10);

/// How many instances the store has seen lately, by its replies about single counters: the
/// largest number in the time before, and in the present one, which began then.
#[derive(Debug)]
pub(crate) struct Instances(Mutex<(u64, u64, Instant)>);

impl Instances {
    pub(crate) fn new() -> Self {
        Self(Mutex::new((1, 1, Instant::now())))
    }

    /// The largest number of instances that used a counter lately; at least 1.
    pub(crate) fn get(&self) -> u64 {
        let (before, recent, _) = *lock(&self.0);
        before.max(recent)
    }

    /// The store has seen so many instances use a counter.
    pub(crate) fn observe(&self, instances: u64) {
        let (before, recent, since) = &mut *lock(&self.0);
        if since.elapsed() >= KEPT {
            (*before, *recent, *since) = (*recent, 1, Instant::now());
        }
        *recent = instances.max(*recent);
    }
}

#[cfg(test)]
mod tests;
