//! The level `leased`: decides on units that this process has reserved in the store
//! ahead of demand.
//!
//! The unit is the whole charge set of a request. A refill is one charge of it, n
//! times over: requests that wait take the first units, the others fill the pool. So
//! a request stays all or nothing over tiers and rules, and the fleet never admits
//! what the store has not charged.
//!
//! Invariant: at most one refill of a pool is under way or scheduled.

use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::{
    pool_key::{fits_pool, holds_in_flight, one_unit, pool_of, units_of},
    taken::{Taken, may_wait},
};
use crate::{
    backend::{
        Acquire, AcquireRequest, Charge, Outcome, QuotaStatuses,
        redis::{
            dispatch::Dispatcher,
            executor::Operation,
            plan::{ChargeSet, LeaseAsk, micros},
            pools::{AskNumbers, PoolKey, Pools, Refill, Surplus, Take},
            sync::lock,
        },
    },
    error::BackendError,
    policy::charge::{Charges, LocalCharge},
    time::{Timestamp, nanos},
};

/// How long units are leased that do not end with a window: at least this, and at
/// least four intervals.
const LEASE: Duration = Duration::from_secs(1);

/// For how long an instance counts that has asked: at least this, and at least two
/// intervals.
const LATELY: Duration = Duration::from_secs(1);

/// How often [`Leased::drain`] waits for what is under way.
const DRAIN_ROUNDS: usize = 64;

/// How often pools are checked for what is to be given back.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

pub(super) struct Leased {
    dispatcher: Arc<Dispatcher>,
    pools: Arc<Pools>,
    scheduled: Mutex<Scheduled>,
    /// The start of the intervals.
    origin: Instant,
}

/// What is sent together at the end of an interval.
#[derive(Default)]
struct Scheduled {
    /// Refills, each with the index of its lane. Units to give back are with the pools.
    refills: Vec<(usize, ChargeSet)>,
    due: Option<Instant>,
}

impl Leased {
    pub(super) fn new(dispatcher: &Arc<Dispatcher>) -> Arc<Self> {
        let pools = Arc::clone(&dispatcher.pools);
        let leased = Arc::new(Self {
            dispatcher: Arc::clone(dispatcher),
            pools,
            scheduled: Mutex::default(),
            origin: Instant::now(),
        });
        if !dispatcher.uses_limiter_time() {
            let weak = Arc::downgrade(&leased);
            dispatcher.link.home.keep(move || sweep(weak.clone()));
        }
        leased
    }

    pub(super) fn acquire(self: &Arc<Self>, request: &AcquireRequest<'_>) -> Acquire {
        let Some((pool, units)) = pool_of(request) else { return self.dispatcher.acquire(request) };
        let now = request.now.as_nanos();
        if !fits_pool(request, units) {
            return self.ask_alone(request, pool);
        }
        let take = self.take_units(pool, units, now);
        match take.outcome {
            Some(outcome) => {
                if let Some(refill) = take.refill {
                    self.refill(request, pool, refill);
                }
                Acquire::Ready(Ok(outcome))
            }
            None => self.ask(request, pool, units, take.refill),
        }
    }

    /// Takes units of a pool. What it gives back reaches the store before anything that
    /// the store has to decide.
    fn take_units(&self, pool: PoolKey, units: u64, now: u64) -> Take {
        let mut take = self.pools.take(pool, units, now);
        if let Some(surplus) = take.surplus.take().and_then(|surplus| self.pools.keep(surplus)) {
            self.give_back(&surplus, Timestamp::from_nanos(now));
        }
        if take.outcome.is_none() {
            self.send_surplus();
        }
        take
    }

    /// Makes a charge for which the pool has units, and needs no refill.
    #[inline]
    pub(super) fn try_charge(&self, charge: &LocalCharge<'_>, now: u64) -> Option<QuotaStatuses> {
        let units = units_of(charge.target.cost, charge.rule).filter(|_| !charge.rule.options.smooth)?;
        self.pools.try_take(charge.target.key, charge.version, units, now)
    }

    /// The status of a request that the pool would admit.
    pub(super) fn peek(&self, request: &AcquireRequest<'_>) -> Acquire {
        let outcome = pool_of(request).and_then(|(pool, units)| self.pools.peek(pool, units, request.now.as_nanos()));
        if let Some(outcome) = outcome {
            return Acquire::Ready(Ok(outcome));
        }
        self.send_surplus();
        self.dispatcher.peek(request)
    }

    /// Drops the units of charges whose counters are reset.
    pub(super) fn forget(&self, charges: &[Charge<'_>], now: Timestamp) {
        // Afterwards it would give back units of others.
        self.send_surplus();
        if let Some((pool, _)) = pool_of(&AcquireRequest::new(charges, now, Duration::ZERO)) {
            // In flight units stay in use, so the store has to know which are not.
            let surplus = self.pools.give_back(pool, now.as_nanos());
            if let Some(surplus) = surplus.filter(|_| holds_in_flight(charges)) {
                self.give_back(&surplus, now);
            }
        }
    }

    /// Takes the part of a request that other rules decide as well.
    pub(super) fn take(self: &Arc<Self>, request: &AcquireRequest<'_>) -> Taken {
        let Some((pool, units)) = pool_of(request) else { return Taken::Undecided };
        let now = request.now.as_nanos();
        if holds_in_flight(request.charges) {
            self.empty(pool, request.now);
            return Taken::Undecided;
        }
        let take = self.take_units(pool, units, now);
        if let Some(refill) = take.refill {
            self.refill(request, pool, refill);
        }
        let Some(outcome) = take.outcome else { return Taken::Undecided };
        let (own, taken, expires) = (Arc::clone(self), Instant::now(), take.expires);
        // Units that the pool cannot take any more are lost until their lease ends.
        let undo = move || _ = own.pools.put_back(pool, units, expires, own.later(now, taken));
        Taken::Admitted(outcome, Box::new(undo))
    }

    /// The pool has too few units: the store decides, and leases more if demand asks
    /// for it.
    #[cold]
    fn ask(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        pool: PoolKey,
        units: u64,
        refill: Option<Refill>,
    ) -> Acquire {
        let now = request.now.as_nanos();
        if self.pools.is_superseded(pool, now) {
            let (own, asked) = (Arc::clone(self), Instant::now());
            let later = self.dispatcher.acquire_later(request);
            return Acquire::Pending(Box::pin(async move {
                own.settle(pool, now, asked).await;
                wait_for(later).await
            }));
        }
        let returned = self.pools.returned(pool);
        let (mut ask, mut after) = (None, None);
        match refill {
            Some(refill) if units == 1 => ask = Some(self.lease_ask(pool, now, refill.ahead, (true, false))),
            // It must not take what the request itself needs.
            Some(refill) => after = self.background(request, pool, refill.ahead, true),
            None => {}
        }
        let at_once = AcquireRequest { max_wait: Duration::ZERO, ..*request };
        let may_wait = may_wait(request);
        let reply = match self.dispatcher.acquire_leasing(&at_once, ask) {
            Acquire::Ready(Ok(rejected)) if !may_wait && self.pools.changed(pool, now).is_none() => {
                return Acquire::Ready(Ok(rejected));
            }
            Acquire::Ready(Err(error)) => return Acquire::Ready(Err(error)),
            reply => reply,
        };
        // Nothing of it is sent before it is polled.
        let later = self.dispatcher.acquire_later(request);
        let (own, asked) = (Arc::clone(self), Instant::now());
        Acquire::Pending(Box::pin(async move {
            let outcome = wait_for(reply).await?;
            if outcome.is_admitted() {
                let after = after.into_iter().map(|(lane, set)| (lane, Operation::Charge(set)));
                own.dispatcher.push_all(after.collect());
                return Ok(outcome);
            }
            drop(after);
            // A refill that was under way has taken the last units.
            let retake = |now| own.take_units(pool, units, now).outcome;
            match own.until_settled(pool, (now, asked), retake).await {
                Some(outcome) => Ok(outcome),
                None if may_wait || own.pools.returned(pool) != returned => wait_for(later).await,
                None => Ok(outcome),
            }
        }))
    }

    /// The store decides a request that takes no units of the pool. It must know all
    /// that is free.
    #[cold]
    fn ask_alone(self: &Arc<Self>, request: &AcquireRequest<'_>, pool: PoolKey) -> Acquire {
        let (own, now, asked) = (Arc::clone(self), request.now.as_nanos(), Instant::now());
        self.empty(pool, request.now);
        self.send_surplus();
        let returned = self.pools.returned(pool);
        let reply = match self.dispatcher.acquire(request) {
            Acquire::Pending(reply) => reply,
            ready => return ready,
        };
        let later = self.dispatcher.acquire_later(request);
        Acquire::Pending(Box::pin(async move {
            let outcome = reply.await?;
            if outcome.is_admitted() {
                return Ok(outcome);
            }
            own.settle(pool, now, asked).await;
            if own.pools.returned(pool) == returned { Ok(outcome) } else { wait_for(later).await }
        }))
    }

    /// Gives back all units of a pool, and those that are on their way.
    async fn settle(&self, pool: PoolKey, now: u64, asked: Instant) {
        let empty = |now| -> Option<()> {
            self.empty(pool, Timestamp::from_nanos(now));
            None
        };
        self.until_settled(pool, (now, asked), empty).await;
    }

    /// Tries, at a time of the limiter, until there is a result; or until no refill of
    /// the pool is under way, and the store is told of all that was given back. The
    /// limiter's time was `now` at the time `asked`.
    async fn until_settled<T>(
        &self,
        pool: PoolKey,
        (now, asked): (u64, Instant),
        mut attempt: impl FnMut(u64) -> Option<T>,
    ) -> Option<T> {
        loop {
            let now = self.later(now, asked);
            let changed = self.pools.changed(pool, now);
            let result = attempt(now);
            if result.is_some() {
                return result;
            }
            let changed = changed?;
            self.flush();
            self.dispatcher.link.deadline.within(changed).await?;
        }
    }

    /// The limiter's time, which was `at` at the time `since`.
    fn later(&self, at: u64, since: Instant) -> u64 {
        let passed = if self.dispatcher.uses_limiter_time() { 0 } else { nanos(since.elapsed()) };
        at.saturating_add(passed)
    }

    fn lease_ask(&self, pool: PoolKey, now: u64, ahead: u64, (is_sent, is_background): (bool, bool)) -> LeaseAsk {
        let (AskNumbers { own: number, known }, guard) = self.pools.ask(pool, now, is_sent);
        let lasts = nanos(LEASE).max(pool.interval.saturating_mul(4));
        let lately = micros(nanos(LATELY).max(pool.interval.saturating_mul(2)));
        let PoolKey { key, version, interval } = pool;
        let asked = (now, Instant::now());
        LeaseAsk { pool: key, version, ahead, lately, is_background, asked, interval, lasts, number, known, guard }
    }

    /// Refills a pool in the background: at the end of the interval, if it lasts
    /// until then.
    #[cold]
    fn refill(self: &Arc<Self>, request: &AcquireRequest<'_>, pool: PoolKey, refill: Refill) {
        let is_sent = refill.is_urgent || self.dispatcher.uses_limiter_time();
        let Some((lane, set)) = self.background(request, pool, refill.ahead, is_sent) else { return };
        if is_sent {
            return self.dispatcher.push_all(vec![(lane, Operation::Charge(set))]);
        }
        self.schedule(pool.interval, |scheduled| scheduled.refills.push((lane, set)));
    }

    /// Adds to what is sent at the end of an interval of this length.
    fn schedule(self: &Arc<Self>, length: u64, add: impl FnOnce(&mut Scheduled)) {
        let due = self.end_of_interval(length);
        let mut scheduled = lock(&self.scheduled);
        add(&mut scheduled);
        if scheduled.due.is_none_or(|before| due < before) {
            scheduled.due = Some(due);
            let weak = Arc::downgrade(self);
            self.dispatcher.link.home.runtime().handle.spawn(async move {
                sleep_until(due).await;
                if let Some(leased) = weak.upgrade() {
                    leased.flush();
                }
            });
        }
    }

    /// A refill that no request waits for. If it is dropped, the pool is told.
    fn background(
        &self,
        request: &AcquireRequest<'_>,
        pool: PoolKey,
        ahead: u64,
        is_sent: bool,
    ) -> Option<(usize, ChargeSet)> {
        let ask = self.lease_ask(pool, request.now.as_nanos(), ahead, (is_sent, true));
        if ahead == 0 || self.dispatcher.link.rejection().is_some() {
            return None;
        }
        let charges: Charges<'_> = request.charges.iter().map(one_unit).collect();
        let unit = AcquireRequest { charges: &charges, max_wait: Duration::ZERO, ..*request };
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
    fn flush(&self) {
        let refills = std::mem::take(&mut *lock(&self.scheduled)).refills;
        let refill = |(lane, mut set): (usize, ChargeSet)| {
            let ask = set.lease.as_mut()?;
            ask.ahead = self.pools.send(ask)?;
            set.request_id = self.dispatcher.request_ids(ask.ahead);
            Some((lane, Operation::Charge(set)))
        };
        self.send(refills.into_iter().filter_map(refill));
    }

    /// Gives back what is kept for it: the store is about to decide.
    fn send_surplus(&self) {
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
    fn empty(&self, pool: PoolKey, now: Timestamp) {
        if let Some(surplus) = self.pools.give_back(pool, now.as_nanos()) {
            self.give_back(&surplus, now);
        }
    }

    fn give_back(&self, surplus: &Surplus, now: Timestamp) {
        self.dispatcher.push_all(vec![self.changes(surplus, Some(now))]);
        if !surplus.is_void {
            self.dispatcher.rejections.clear();
        }
    }

    fn changes(&self, surplus: &Surplus, now: Option<Timestamp>) -> (usize, Operation) {
        let now = now.filter(|_| self.dispatcher.uses_limiter_time()).map(|now| micros(now.as_nanos()));
        (surplus.lane, Operation::Change(surplus.changes(now)))
    }

    /// Gives back all units, and waits until the store has them.
    pub(super) async fn drain(&self, now: Timestamp) {
        let refills = std::mem::take(&mut lock(&self.scheduled).refills);
        drop(refills);
        for _ in 0..DRAIN_ROUNDS {
            let changed = self.pools.any_changed(now.as_nanos());
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

async fn wait_for(acquire: Acquire) -> Result<Outcome, BackendError> {
    match acquire {
        Acquire::Ready(result) => result,
        Acquire::Pending(reply) => reply.await,
    }
}

/// Gives back what is not used, for as long as the backend exists.
async fn sweep(leased: Weak<Leased>) {
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(leased) = leased.upgrade() else { return };
        if leased.pools.len() == 0 {
            continue;
        }
        let surplus = leased.pools.sweep(None, nanos(LEASE), false);
        let now: Vec<_> = surplus.into_iter().filter_map(|surplus| leased.pools.keep(surplus)).collect();
        leased.dispatcher.push_all(now.iter().map(|surplus| leased.changes(surplus, None)).collect());
        if let Some(interval) = leased.pools.surplus_interval() {
            leased.schedule(interval, |_| {});
        }
    }
}
