//! The pools of units that this process has leased: one for each charge set of a
//! leased rule. It asks the store for nothing, and decides only from what it has.
//!
//! Invariant: the number of pools is capped. A key without a pool is decided by the
//! store.

use std::{
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{Notify, futures::Notified};

use super::{
    in_flight_asks::AskNumbers,
    instances::Instances,
    last_reply::LastReply,
    lease::Leased,
    limiter_time::LimiterTime,
    pool::{Pool, Take},
    pool_template::{PoolTemplate, Shared},
    returned_units::ReturnedUnits,
};
use crate::{
    backend::{
        Outcome,
        redis::{
            plan::{AskGuard, ChargeSet, LeaseAsk},
            sync::lock,
            wire::decode::{ChargeReply, LeaseReply},
        },
    },
    fingerprint::Fingerprint,
    observe::StoreReport,
    store::ShardedTable,
};

/// A round trip, in nanoseconds, before one was measured.
const ROUND_TRIP: u64 = 1_000_000;

/// The pools of a backend.
pub(crate) struct Pools {
    table: ShardedTable<Pool>,
    templates: Mutex<Shared<PoolTemplate>>,
    /// The prefix of all keys.
    prefix: String,
    instances: Arc<Instances>,
    /// In nanoseconds.
    round_trip: AtomicU64,
    time: LimiterTime,
    /// Units that are given back together with the next refills.
    surplus: Mutex<Vec<ReturnedUnits>>,
    /// Notified when a refill is no longer under way.
    refilled: Notify,
    report: Arc<StoreReport>,
    own: Weak<Self>,
}

/// An ask that is under way or scheduled, by its number and whether it is a refill; or
/// units that have left a pool, and of which the store is not told yet. Dropped once that
/// is over.
struct UnderWay {
    pools: Weak<Pools>,
    key: Fingerprint,
    ask: Option<(u32, bool)>,
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnderWay").field("ask", &self.ask).finish_non_exhaustive()
    }
}

impl AskGuard for UnderWay {}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(pools) = self.pools.upgrade() {
            pools.table.with(self.key, |own| match self.ask {
                Some((number, is_refill)) => own.ended(number, is_refill),
                None => own.on_returned(),
            });
            pools.refilled.notify_waiters();
        }
    }
}

/// Names a pool and the policy that it is asked under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolKey {
    pub(crate) key: Fingerprint,
    pub(crate) version: u64,
    /// Nanoseconds.
    pub(crate) interval: u64,
}

impl Pools {
    pub(crate) fn new(
        prefix: &str,
        uses_limiter_time: bool,
        report: &Arc<StoreReport>,
        instances: &Arc<Instances>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            table: ShardedTable::new(),
            templates: Mutex::default(),
            prefix: prefix.to_owned(),
            instances: Arc::clone(instances),
            round_trip: AtomicU64::new(ROUND_TRIP),
            time: LimiterTime::new(uses_limiter_time),
            surplus: Mutex::default(),
            refilled: Notify::new(),
            report: Arc::clone(report),
            own: Weak::clone(own),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// A request of `cost` units takes them, if there are enough.
    #[inline]
    pub(crate) fn take(&self, pool: PoolKey, cost: u64, now: u64) -> Take {
        let take = self.table.with_new(pool.key, now, |own| own.take(pool.version, cost, now, pool.interval));
        let mut take = take.unwrap_or_default();
        if take.surplus.is_some() {
            take.surplus = self.reported(pool.key, take.surplus);
        }
        take
    }

    /// The outcome of a request that takes nothing. `None` where there are too few
    /// units.
    pub(crate) fn peek(&self, pool: PoolKey, cost: u64, now: u64) -> Option<Outcome> {
        self.table.with(pool.key, |own| own.peek(pool.version, cost, now)).flatten()
    }

    /// Puts back units that a request took and did not use: they expire at `expires`.
    /// Whether the pool could take them.
    pub(crate) fn put_back(&self, pool: PoolKey, cost: u64, expires: u64, now: u64) -> bool {
        self.table.with(pool.key, |own| own.put_back(pool.version, cost, expires, now)) == Some(true)
    }

    /// A refill was asked for, or will be at the end of the interval; or a request asks
    /// for itself only.
    pub(crate) fn ask(
        &self,
        pool: PoolKey,
        now: u64,
        (ahead, is_sent): (u64, bool),
    ) -> (AskNumbers, Arc<dyn AskGuard>) {
        if is_sent {
            self.time.observe(now);
        }
        let round_trip = self.round_trip.load(Ordering::Relaxed);
        let numbers = self.table.with(pool.key, |own| match ahead {
            0 => own.asked_alone(),
            _ => own.asked(now, pool.interval, is_sent, round_trip),
        });
        // Without a pool nothing is counted, so nothing ends either: there may be one by then.
        let pools = if numbers.is_some() { Weak::clone(&self.own) } else { Weak::new() };
        let numbers = numbers.unwrap_or_default();
        let ask = Some((numbers.own, numbers.is_refill(ahead)));
        (numbers, Arc::new(UnderWay { pools, key: pool.key, ask }))
    }

    /// Ends when a refill of any pool has ended, or the store is told of what one has
    /// given back. `None` if nothing of this one is under way.
    pub(crate) fn changed(&self, pool: PoolKey) -> Option<Notified<'_>> {
        let changed = self.refilled.notified();
        (self.table.with(pool.key, |own| own.is_changing()) == Some(true)).then_some(changed)
    }

    /// Whether a rejection of the store need not be the last word: units have arrived
    /// since the pool was empty, or may arrive.
    pub(crate) fn may_admit(&self, pool: PoolKey) -> bool {
        self.table.with(pool.key, |own| own.may_admit()) == Some(true)
    }

    /// Whether something is under way that was asked for under an earlier policy.
    pub(crate) fn is_superseded(&self, pool: PoolKey) -> bool {
        self.table.with(pool.key, |own| own.is_superseded(pool.version)) == Some(true)
    }

    /// As [`Self::changed`], if anything of any pool is under way.
    pub(crate) fn any_changed(&self) -> Option<Notified<'_>> {
        let changed = self.refilled.notified();
        let mut is_changing = false;
        self.table.for_each(|_, own| is_changing |= own.is_changing());
        is_changing.then_some(changed)
    }

    /// Differs once more units of a pool were given back.
    pub(crate) fn returned(&self, pool: PoolKey) -> u8 {
        self.table.with(pool.key, |own| own.returned()).unwrap_or(0)
    }

    /// How many units a refill is to bring that was scheduled and is about to be sent.
    /// `None` if it is not needed any more.
    pub(crate) fn send(&self, ask: &LeaseAsk) -> Option<u64> {
        let now = ask.sent_at(self.time.decides);
        self.time.observe(now);
        self.table.with(ask.pool, |own| own.send(ask, now)).flatten()
    }

    /// All units of a pool, to be given back: the store decides, and must know all
    /// that is free.
    pub(crate) fn give_back(&self, pool: PoolKey, now: u64) -> Option<ReturnedUnits> {
        self.reported(pool.key, self.table.with(pool.key, |own| own.give_back(u64::MAX, now)).flatten())
    }

    /// The store has leased units, of which `waiting` requests take the first. The
    /// others are the pool's. Returns what cannot be used.
    pub(crate) fn add(
        &self,
        set: &ChargeSet,
        waiting: u64,
        reply: &LeaseReply,
        sent: u64,
        lane: usize,
    ) -> Option<ReturnedUnits> {
        let ask = set.lease.as_ref()?;
        let now = ask.sent_at(self.time.decides);
        self.instances.observe(reply.instances);
        if !self.time.decides {
            let took = now.saturating_sub(sent);
            let before = self.round_trip.load(Ordering::Relaxed);
            self.round_trip.store(before - before / 8 + took / 8, Ordering::Relaxed);
        }
        let units = reply.reply.admitted.saturating_sub(waiting);
        self.report.leased(units);
        let reply = self.last_reply(set, (ask, lane), &reply.reply);
        let leased = Leased {
            version: ask.version,
            number: ask.number,
            is_refill: ask.is_refill,
            units,
            first_slot: set.request_id.saturating_add(waiting),
            asked: sent,
            expires: reply.expiry(ask.lasts, sent),
            reply,
        };
        self.reported(ask.pool, self.table.with_new(ask.pool, now, |own| own.add(leased, now)).flatten())
    }

    /// What a pool keeps of a reply.
    fn last_reply(&self, set: &ChargeSet, (ask, lane): (&LeaseAsk, usize), reply: &ChargeReply) -> LastReply {
        let known = self.table.with(ask.pool, |own| own.last_reply().cloned()).flatten();
        if let Some(known) = known.filter(|known| known.is_of(set, (ask.interval, lane))) {
            return known.renewed(reply);
        }
        let (template, tag) = PoolTemplate::shared(&mut lock(&self.templates), set, &self.prefix, (ask.interval, lane));
        LastReply::new(template, tag, reply)
    }

    /// What is given back after a while: see [`Pool::sweep`]. `idle` is for how many
    /// nanoseconds a pool is kept that is not asked for. With `all`, everything.
    pub(crate) fn sweep(&self, now: Option<u64>, idle: u64, all: bool) -> Vec<ReturnedUnits> {
        let Some(now) = now.or_else(|| self.time.now()) else { return Vec::new() };
        let mut surplus = Vec::new();
        self.table.for_each(|key, pool| {
            let own = if all { pool.give_back(u64::MAX, now) } else { pool.sweep(now, idle) };
            surplus.extend(own.map(|own| (key, own)));
        });
        surplus.into_iter().filter_map(|(key, surplus)| self.reported(key, Some(surplus))).collect()
    }

    /// Counts units that were not used. What has expired needs no call, unless it
    /// holds units in flight.
    fn reported(&self, key: Fingerprint, surplus: Option<ReturnedUnits>) -> Option<ReturnedUnits> {
        let mut surplus = surplus?;
        surplus.returning = match surplus.is_void {
            true => None,
            false => Some(Box::new(UnderWay { pools: Weak::clone(&self.own), key, ask: None })),
        };
        self.report.unused(surplus.units(), surplus.is_void);
        (!surplus.is_void || surplus.holds_in_flight()).then_some(surplus)
    }

    /// Keeps units until they are given back together with the next refills. Returns
    /// them if that cannot wait: units in flight are needed elsewhere.
    pub(crate) fn keep(&self, surplus: ReturnedUnits) -> Option<ReturnedUnits> {
        if self.time.decides || surplus.holds_in_flight() {
            return Some(surplus);
        }
        lock(&self.surplus).push(surplus);
        None
    }

    pub(crate) fn keeps_surplus(&self) -> bool {
        !lock(&self.surplus).is_empty()
    }

    /// The units that are kept to be given back, which is to be done now.
    pub(crate) fn kept_surplus(&self) -> Vec<ReturnedUnits> {
        std::mem::take(&mut *lock(&self.surplus))
    }

    /// The shortest interval of the refills that units are kept for.
    pub(crate) fn surplus_interval(&self) -> Option<u64> {
        lock(&self.surplus).iter().map(ReturnedUnits::interval).min()
    }

    /// Drops all units: the store has lost its counters.
    pub(crate) fn forget(&self) {
        lock(&self.surplus).clear();
        self.table.for_each(|_, pool| pool.forget());
    }
}

#[cfg(test)]
mod tests;
