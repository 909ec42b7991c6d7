//! What the level `leased` sends on its own: refills, at once or together at the end of
//! an interval, and units that are given back. It decides no request.
//!
//! Invariant: at most one refill of a pool is scheduled. None is, or is asked for, while
//! the pool expects one; but threads that find it dry at the same time may each ask.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use foldhash::fast::RandomState;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::{
    in_flight_asks::AskNumbers,
    pool::Refill,
    pool_key::one_unit,
    pools::{PoolKey, Pools},
    returned_units::ReturnedUnits,
};
use crate::{
    backend::{
        Request,
        redis::{
            dispatch::Dispatcher,
            executor::Operation,
            plan::{ChargeSet, LeaseAsk, micros},
            sync::lock,
        },
    },
    policy::charge::Charges,
    time::{Timestamp, nanos},
};

/// How long units are leased that do not end with a window: at least this, and at
/// least four intervals.
const LEASE: Duration = Duration::from_secs(1);

/// For how long an instance counts that has asked: at least this, and at least two
/// intervals.
const LATELY: Duration = Duration::from_secs(1);

/// How often [`Refills::drain`] waits for what is under way.
const DRAIN_ROUNDS: usize = 64;

/// How often pools are checked for what is to be given back.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Sends refills, and units that are given back.
pub(super) struct Refills {
    dispatcher: Arc<Dispatcher>,
    pools: Arc<Pools>,
    scheduled: Mutex<Scheduled>,
    /// The start of the intervals.
    origin: Instant,
}

/// What is sent together at the end of an interval.
#[derive(Default)]
struct Scheduled {
    /// Refills by the key of their pool, each with the index of its lane. Units to give
    /// back are with the pools.
    refills: HashMap<u128, (usize, ChargeSet), RandomState>,
    due: Option<Instant>,
}

impl Refills {
    pub(super) fn new(dispatcher: &Arc<Dispatcher>) -> Arc<Self> {
        let refills = Arc::new(Self {
            dispatcher: Arc::clone(dispatcher),
            pools: Arc::clone(&dispatcher.pools),
            scheduled: Mutex::default(),
            origin: Instant::now(),
        });
        if !dispatcher.uses_limiter_time() {
            let weak = Arc::downgrade(&refills);
            dispatcher.link.runtime.keep(sweep(weak));
        }
        refills
    }

    pub(super) fn lease_ask(
        &self,
        pool: PoolKey,
        now: u64,
        ahead: u64,
        (is_sent, is_background): (bool, bool),
    ) -> LeaseAsk {
        // One that is scheduled is not sent any more. If the pool took it for one that is
        // under way, it would not ask for what a lost reply brought.
        let scheduled = lock(&self.scheduled).refills.remove(&pool.key.to_u128());
        drop(scheduled);
        let (numbers, guard) = self.pools.ask(pool, now, (ahead, is_sent));
        let AskNumbers { own: number, known, lost } = numbers;
        let lasts = nanos(LEASE).max(pool.interval.saturating_mul(4));
        let lately = micros(nanos(LATELY).max(pool.interval.saturating_mul(2)));
        let PoolKey { key, version, interval } = pool;
        let asked = (now, Instant::now());
        LeaseAsk {
            pool: key,
            version,
            ahead,
            is_refill: numbers.is_refill(ahead),
            lately,
            is_background,
            asked,
            interval,
            lasts,
            number,
            known,
            lost,
            guard,
        }
    }

    /// Refills a pool in the background: at the end of the interval, if it lasts
    /// until then.
    #[cold]
    pub(super) fn start(self: &Arc<Self>, request: &Request<'_>, pool: PoolKey, refill: Refill) {
        let is_sent = refill.is_urgent || self.dispatcher.uses_limiter_time();
        let Some((lane, set)) = self.background(request, pool, refill.ahead, is_sent) else { return };
        if is_sent {
            return self.dispatcher.push_all(vec![(lane, Operation::Charge(set))]);
        }
        self.schedule(pool.interval, |scheduled| _ = scheduled.refills.insert(pool.key.to_u128(), (lane, set)));
    }

    /// Adds to what is sent at the end of an interval of this length.
    fn schedule(self: &Arc<Self>, length: u64, add: impl FnOnce(&mut Scheduled)) {
        let due = self.end_of_interval(length);
        let mut scheduled = lock(&self.scheduled);
        add(&mut scheduled);
        if scheduled.due.is_none_or(|before| due < before) {
            scheduled.due = Some(due);
            let weak = Arc::downgrade(self);
            self.dispatcher.link.runtime.spawn(async move {
                sleep_until(due).await;
                if let Some(refills) = weak.upgrade() {
                    refills.flush();
                }
            });
        }
    }

    /// A refill that no request waits for. If it is dropped, the pool is told.
    pub(super) fn background(
        &self,
        request: &Request<'_>,
        pool: PoolKey,
        ahead: u64,
        is_sent: bool,
    ) -> Option<(usize, ChargeSet)> {
        let ask = self.lease_ask(pool, request.now.as_nanos(), ahead, (is_sent, true));
        if ahead == 0 || self.dispatcher.link.rejection().is_some() {
            return None;
        }
        let charges: Charges<'_> = request.charges.iter().map(one_unit).collect();
        let unit = Request { charges: &charges, max_wait: Duration::ZERO, ..*request };
        self.dispatcher.lease(&unit, ask)
    }

    /// All intervals of a length end at the same times, so that refills leave
    /// together.
    fn end_of_interval(&self, length: u64) -> Instant {
        let passed = nanos(self.origin.elapsed());
        let next = (passed / length.max(1) + 1).saturating_mul(length);
        self.origin + Duration::from_nanos(next)
    }

    /// Sends all that is scheduled.
    pub(super) fn flush(&self) {
        let refills = std::mem::take(&mut *lock(&self.scheduled)).refills;
        let refill = |(lane, mut set): (usize, ChargeSet)| {
            let ask = set.lease.as_mut()?;
            ask.ahead = self.pools.send(ask)?;
            set.request_id = self.dispatcher.request_ids(ask.ahead);
            Some((lane, Operation::Charge(set)))
        };
        self.send(refills.into_values().filter_map(refill));
    }

    /// Gives back what is kept for it: the store is about to decide.
    pub(super) fn send_surplus(&self) {
        if self.pools.keeps_surplus() {
            self.send(std::iter::empty());
        }
    }

    /// Gives back what is kept for it, and then sends other operations.
    fn send(&self, others: impl Iterator<Item = (usize, Operation)>) {
        let surplus = self.pools.kept_surplus();
        let changes = surplus.iter().map(|surplus| self.changes(surplus, None));
        self.dispatcher.push_all(changes.chain(others).collect());
        if !surplus.is_empty() {
            self.dispatcher.rejections.clear();
        }
    }

    /// Gives back all units of a pool.
    pub(super) fn empty(&self, pool: PoolKey, now: Timestamp) {
        if let Some(surplus) = self.pools.give_back(pool, now.as_nanos()) {
            self.give_back(&surplus, now);
        }
    }

    pub(super) fn give_back(&self, surplus: &ReturnedUnits, now: Timestamp) {
        self.dispatcher.push_all(vec![self.changes(surplus, Some(now))]);
        if !surplus.is_void {
            self.dispatcher.rejections.clear();
        }
    }

    fn changes(&self, surplus: &ReturnedUnits, now: Option<Timestamp>) -> (usize, Operation) {
        let now = now.filter(|_| self.dispatcher.uses_limiter_time()).map(|now| micros(now.as_nanos()));
        (surplus.lane(), Operation::Change(surplus.changes(now)))
    }

    /// Gives back all units, and waits until the store has them.
    pub(super) async fn drain(&self, now: Timestamp) {
        let refills = std::mem::take(&mut lock(&self.scheduled).refills);
        drop(refills);
        for _ in 0..DRAIN_ROUNDS {
            let changed = self.pools.any_changed();
            let mut surplus = self.pools.kept_surplus();
            surplus.extend(self.pools.sweep(Some(now.as_nanos()), 0, true));
            let changes = surplus.iter().map(|surplus| self.changes(surplus, Some(now))).collect();
            self.dispatcher.submit_all(changes).await;
            drop(surplus);
            // What is under way brings more units.
            let Some(changed) = changed else { return };
            if self.dispatcher.link.deadline.within(changed).await.is_none() {
                return;
            }
        }
    }
}

/// Gives back what is not used, for as long as the backend exists.
async fn sweep(refills: Weak<Refills>) {
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(refills) = refills.upgrade() else { return };
        if refills.pools.len() == 0 {
            continue;
        }
        let surplus = refills.pools.sweep(None, nanos(LEASE), false);
        let now: Vec<_> = surplus.into_iter().filter_map(|surplus| refills.pools.keep(surplus)).collect();
        refills.dispatcher.push_all(now.iter().map(|surplus| refills.changes(surplus, None)).collect());
        if let Some(interval) = refills.pools.surplus_interval() {
            refills.schedule(interval, |_| {});
        }
    }
}
