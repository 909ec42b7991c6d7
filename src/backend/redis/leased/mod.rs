//! The level `leased`: decides on units that this process has reserved in the store
//! ahead of demand. Rules of other levels go to the store, and so do sliding windows
//! and logs (a unit that was reserved in one window may be used in the next), and
//! concurrency limits (each release is a change in the store anyway).
//!
//! A [`pool`] is what the process knows of one key: the units of its [`lease`], its
//! [`demand`], and its exchange with the store. [`pools`] is the table of them. [`Levels`]
//! decides a request: by units that are there, else by those of an exchange, else by the
//! store. It sends exchanges: at once for a key that is dry, and together at the end of an
//! interval.
//!
//! The unit is the whole charge set of a request: an exchange charges it n times over. So
//! a request stays all or nothing over tiers and rules, and the fleet never admits
//! what the store has not charged.
//!
//! Invariant: a request is admitted only by units that the store has charged, and a unit is
//! used once. It is rejected only by the store, once that knows of all units that this process
//! does not use: what is given back leaves before what is asked for.

mod demand;
mod lease;
mod pool;
pub(super) mod pools;

use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::future::BoxFuture;
use smallvec::{Array, SmallVec};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::{
    lease::ReturnedUnits,
    pool::Exchange,
    pools::{Begun, PoolKey, PoolKeys, Pools, fits_pool, is_leased, one_unit, pool_of},
};
use super::{
    dispatch::{Asking, Dispatcher},
    executor::Operation,
    plan::{ChargeSet, LeaseAsk, micros},
    transport::task_runtime::late,
};
use crate::{
    backend::{Charge, Decide, Outcome, Request, TierState},
    error::BackendError,
    fingerprint::Fingerprint,
    policy::charge::Charges,
    sync::lock,
    time::{Timestamp, nanos},
};

/// How often [`Levels::drain`] waits for what is under way.
const DRAIN_ROUNDS: usize = 64;

/// How often pools are checked for what is to be given back.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// All pools join one that is dry at most once in this part of an interval: a look at all of
/// them takes time.
const JOINS: u64 = 8;

/// Decides requests at the level that each of their rules asks for.
pub(super) struct Levels {
    pub(super) dispatcher: Arc<Dispatcher>,
    pools: Arc<Pools>,
    schedule: Mutex<Schedule>,
    /// The start of the intervals of exchanges.
    origin: Instant,
}

/// When all pools that are low are asked for, and when they last joined one that was dry.
struct Schedule {
    due: Option<Instant>,
    joined: Instant,
}

impl Levels {
    /// Decides with this dispatcher, and gives back what is not used.
    pub(super) fn start(dispatcher: Arc<Dispatcher>) -> Arc<Self> {
        let origin = Instant::now();
        let schedule = Mutex::new(Schedule { due: None, joined: origin });
        let levels = Arc::new(Self { pools: Arc::clone(&dispatcher.pools), dispatcher, schedule, origin });
        if !levels.pools.time.decides {
            levels.dispatcher.link.runtime.keep(sweep(Arc::downgrade(&levels)));
        }
        levels
    }

    pub(super) fn decide(self: &Arc<Self>, request: &Request<'_>) -> Decide {
        let now = request.now.as_nanos();
        let pool = pool_of(request.charges).filter(|_| fits_pool(request));
        if let Some((pool, units)) = pool
            && let Some(outcome) = self.take(pool, units, units, now)
        {
            return Decide::Now(Ok(outcome));
        }
        match request.charges.iter().any(is_leased) {
            true => self.decide_dry(request, pool),
            false => self.dispatcher.ask(request, Asking::Now),
        }
    }

    /// Charges a request by units that its pool has at hand, unless a rule may delay it. Where
    /// there are too few, it is not counted either.
    pub(super) fn charge_leased(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        now: u64,
        states: &mut SmallVec<impl Array<Item = TierState>>,
    ) -> bool {
        let pool = pool_of(charges).filter(|_| !charges.iter().any(Charge::is_smooth));
        let Some((pool, units)) = pool else { return false };
        let taken = self.pools.take_at_hand(pool, units, now, states);
        if taken == Some(true) {
            self.ask_later(pool, now);
        }
        taken.is_some()
    }

    /// The status of a request that the pool would admit.
    pub(super) fn peek(self: &Arc<Self>, request: &Request<'_>) -> Decide {
        let here = pool_of(request.charges);
        let here = here.and_then(|(pool, units)| self.pools.peek(pool, units, request.now.as_nanos()));
        if let Some(outcome) = here {
            return Decide::Now(Ok(outcome));
        }
        self.flush(request.now);
        self.dispatcher.ask(&Request { max_wait: Duration::ZERO, ..*request }, Asking::Peek)
    }

    /// Forgets what these charges have used, here and in the store.
    pub(super) fn reset(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> BoxFuture<'static, Result<u64, BackendError>> {
        // Afterwards it would give back units of others.
        self.flush(now);
        let related = self.pools.related(pool_of(charges).map(|(pool, _)| pool), charges);
        self.pools.give_back(&related, now.as_nanos());
        drop(self.pools.kept_surplus());
        self.dispatcher.reset(charges, now)
    }

    /// Gives back all units, and waits until the store has them.
    pub(super) async fn drain(&self, now: Timestamp) {
        for _ in 0..DRAIN_ROUNDS {
            let under_way = self.pools.under_way(None);
            self.pools.drain(now.as_nanos());
            self.submit(now).await;
            // What is under way brings more units.
            let Some(exchange) = under_way.first() else { return };
            if self.dispatcher.link.deadline.within(exchange.ended()).await.is_none() {
                return;
            }
        }
    }

    /// Decides by an exchange or by the store. Out of line, as most requests find units.
    #[inline(never)]
    fn decide_dry(self: &Arc<Self>, request: &Request<'_>, pool: Option<(PoolKey, u64)>) -> Decide {
        let now = request.now.as_nanos();
        // What was given back reaches the store before anything that the store has to decide.
        self.flush(request.now);
        let related = self.pools.related(pool.map(|(pool, _)| pool), request.charges);
        let may_admit = self.pools.may_admit(&related);
        if !may_admit && self.dispatcher.is_rejected(request) {
            return self.dispatcher.ask(request, Asking::Now);
        }
        let begun = pool.map_or(Begun::Decide, |(pool, units)| self.pools.want(pool, (units, units), now));
        if let Begun::Decide = begun
            && !may_admit
        {
            return self.dispatcher.ask(request, Asking::Now);
        }
        let first = match self.dispatcher.ask(request, Asking::Later) {
            Decide::Now(result) => return Decide::Now(result),
            later => later,
        };
        // Nothing of it is sent before it is polled.
        let again = self.dispatcher.ask(request, Asking::Later);
        let own = pool.and_then(|(pool, units)| Some((pool, units, self.unit_of(request)?)));
        let dry = Dry { levels: Arc::clone(self), own, asked: (now, Instant::now()), related };
        let exchange = dry.exchange(begun);
        Decide::Later(Box::pin(dry.decide(exchange, first, again)))
    }

    /// Takes units of a pool, counted as so many, if there are enough.
    #[inline]
    fn take(self: &Arc<Self>, pool: PoolKey, counted: u64, units: u64, now: u64) -> Option<Outcome> {
        let (outcome, is_low) = self.pools.take(pool, counted, units, now)?;
        if is_low {
            self.ask_later(pool, now);
        }
        Some(outcome)
    }

    /// What one unit of the request's pool is charged.
    fn unit_of(&self, request: &Request<'_>) -> Option<(usize, ChargeSet)> {
        let charges: Charges<'_> = request.charges.iter().map(one_unit).collect();
        self.dispatcher.charge_set(&Request { charges: &charges, max_wait: Duration::ZERO, ..*request })
    }
}

/// A request whose pool has too few units, or that has none.
struct Dry {
    levels: Arc<Levels>,
    /// Its pool, what it takes of it, and what an exchange charges for a unit with the lane
    /// that sends it. `None` where only the store may decide.
    own: Option<(PoolKey, u64, (usize, ChargeSet))>,
    /// The limiter's time when it was asked, and the monotonic one.
    asked: (u64, Instant),
    /// The pools that must not hold units when the store rejects it.
    related: PoolKeys,
}

impl Dry {
    /// Decides by the units of exchanges, else by the store: by its first decision, and if
    /// units came back after that, by another one.
    async fn decide(
        self,
        exchange: Option<Arc<Exchange>>,
        first: Decide,
        again: Decide,
    ) -> Result<Outcome, BackendError> {
        // A rejection that came in time stands.
        let mut outcome = Err(late());
        let decided = async {
            if let Some(taken) = self.take_when_there(exchange).await {
                outcome = Ok(taken);
                return;
            }
            for (acquire, is_last) in [(first, false), (again, true)] {
                // Without units of its own, it takes those of others only once it was rejected.
                if is_last || self.own.is_some() {
                    let now = Timestamp::from_nanos(self.levels.pools.time.since(self.asked));
                    self.levels.settle(&self.related, now).await;
                }
                outcome = wait_for(acquire).await;
                let is_rejected = outcome.as_ref().is_ok_and(|outcome| !outcome.is_admitted());
                if is_last || !is_rejected || !self.levels.pools.may_admit(&self.related) {
                    return;
                }
                for exchange in self.levels.pools.under_way(Some(&self.related)) {
                    exchange.ended().await;
                }
            }
        };
        let _ = self.levels.dispatcher.link.deadline.within(decided).await;
        outcome
    }

    /// Waits for exchanges until one has brought its units. `None` if one brought nothing,
    /// or had no reply.
    async fn take_when_there(&self, mut exchange: Option<Arc<Exchange>>) -> Option<Outcome> {
        let (pool, units, _) = self.own.as_ref()?;
        while let Some(under_way) = exchange {
            under_way.ended().await;
            let now = self.levels.pools.time.since(self.asked);
            let outcome = self.levels.take(*pool, 0, *units, now);
            if outcome.is_some() {
                return outcome;
            }
            if !under_way.has_brought_units() {
                return None;
            }
            exchange = self.exchange(self.levels.pools.want(*pool, (*units, under_way.missing()), now));
        }
        None
    }

    /// Sends an exchange that has begun.
    fn exchange(&self, begun: Begun) -> Option<Arc<Exchange>> {
        match begun {
            Begun::Wait(exchange) => Some(exchange),
            Begun::Ask((exchange, ask)) => {
                let (.., unit) = self.own.as_ref()?;
                self.levels.send(unit, ask);
                Some(exchange)
            }
            Begun::Decide => None,
        }
    }
}

async fn wait_for(acquire: Decide) -> Result<Outcome, BackendError> {
    match acquire {
        Decide::Now(result) => result,
        Decide::Later(reply) => reply.await,
    }
}

/// What it sends.
impl Levels {
    /// Sends the exchange of a key that is dry. If others have not joined one lately, they
    /// do: their windows may have ended as well.
    fn send(&self, (lane, set): &(usize, ChargeSet), ask: LeaseAsk) {
        let joins_others = !self.pools.time.decides && self.joins(Duration::from_nanos(ask.interval / JOINS));
        let now = self.pools.time.since(ask.asked);
        self.pools.time.observe(now);
        let own = (*lane, ChargeSet { lease: Some(ask), ..set.clone() });
        let others = if joins_others { self.low() } else { Vec::new() };
        self.send_all(Timestamp::from_nanos(now), std::iter::once(own).chain(others));
    }

    /// Whether others join a key that is dry: not if they did within this time.
    fn joins(&self, within: Duration) -> bool {
        let mut schedule = lock(&self.schedule);
        let joins = schedule.joined.elapsed() >= within;
        if joins {
            schedule.joined = Instant::now();
        }
        joins
    }

    /// At the end of an interval, sends the exchanges of all keys that are low. Where the
    /// limiter's clock decides, that of this key at once. `now` is the limiter's time.
    fn ask_later(self: &Arc<Self>, pool: PoolKey, now: u64) {
        self.pools.time.observe(now);
        match self.pools.time.decides {
            true => self.send_all(Timestamp::from_nanos(now), self.pools.want_more(Some(pool.key)).into_iter()),
            false => self.schedule_at(self.end_of_interval(pool.interval)),
        }
    }

    fn schedule_at(self: &Arc<Self>, due: Instant) {
        let mut schedule = lock(&self.schedule);
        if schedule.due.is_none_or(|before| due < before) {
            schedule.due = Some(due);
            let weak = Arc::downgrade(self);
            self.dispatcher.link.runtime.spawn(async move {
                sleep_until(due).await;
                if let Some(levels) = weak.upgrade() {
                    // Only where the limiter's clock decides is its time sent.
                    levels.send_all(Timestamp::default(), levels.low().into_iter());
                }
            });
        }
    }

    /// All intervals of a length end at the same times, so that exchanges leave together.
    fn end_of_interval(&self, length: u64) -> Instant {
        let passed = nanos(self.origin.elapsed());
        let next = (passed / length.max(1) + 1).saturating_mul(length);
        self.origin + Duration::from_nanos(next)
    }

    /// The exchanges of all keys that are low.
    fn low(&self) -> Vec<(usize, ChargeSet)> {
        lock(&self.schedule).due = None;
        if self.dispatcher.link.rejection().is_some() { Vec::new() } else { self.pools.want_more(None) }
    }

    /// Gives back what is kept for it: the store is about to decide.
    fn flush(&self, now: Timestamp) {
        self.send_all(now, std::iter::empty());
    }

    /// Sends exchanges, and before them what is kept to be given back.
    fn send_all(&self, now: Timestamp, sets: impl Iterator<Item = (usize, ChargeSet)>) {
        let surplus = self.pools.kept_surplus();
        let exchange = |(lane, set)| (lane, Operation::Charge(set));
        self.dispatcher.push_all(self.changes(&surplus, now).chain(sets.map(exchange)));
        if !surplus.is_empty() {
            self.dispatcher.rejections.clear();
        }
    }

    /// Gives back all units of some pools and all that is kept for it, and waits until the
    /// store has them.
    async fn settle(&self, keys: &[Fingerprint], now: Timestamp) {
        self.pools.give_back(keys, now.as_nanos());
        self.submit(now).await;
    }

    async fn submit(&self, now: Timestamp) {
        let surplus = self.pools.kept_surplus();
        if !surplus.is_empty() {
            self.dispatcher.submit_all(self.changes(&surplus, now)).await;
            self.dispatcher.rejections.clear();
        }
    }

    /// The changes that give units back, each with the index of its lane.
    fn changes(&self, surplus: &[ReturnedUnits], now: Timestamp) -> impl Iterator<Item = (usize, Operation)> {
        let now = self.pools.time.decides.then(|| micros(now.as_nanos()));
        surplus.iter().map(move |surplus| (surplus.reply.template.lane, Operation::Change(surplus.changes(now))))
    }
}

/// Gives back what is not used, for as long as the backend exists.
async fn sweep(levels: Weak<Levels>) {
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(levels) = levels.upgrade() else { return };
        levels.pools.sweep();
        if let Some(interval) = levels.pools.surplus_interval() {
            levels.schedule_at(levels.end_of_interval(interval));
        }
    }
}
