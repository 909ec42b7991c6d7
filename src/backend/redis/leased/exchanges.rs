//! What the level `leased` sends: an exchange at once for a key that is dry, exchanges of
//! all keys that are low together at the end of an interval, and units that are given back.
//! It decides no request.
//!
//! Invariant: what is given back leaves before what is asked for.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::{lease::ReturnedUnits, level::Levels, pool_key::PoolKey};
use crate::{
    backend::redis::{
        executor::Operation,
        plan::{ChargeSet, LEASE, LeaseAsk, micros},
    },
    fingerprint::Fingerprint,
    sync::lock,
    time::{Timestamp, nanos},
};

/// How often [`Exchanges::drain`] waits for what is under way.
const DRAIN_ROUNDS: usize = 64;

/// How often pools are checked for what is to be given back.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// All pools join one that is dry at most once in this part of an interval: a look at all of
/// them takes time.
const JOINS: u64 = 8;

impl Levels {
    /// Gives back what is not used, from now on.
    pub(super) fn keep_sweeping(self: &Arc<Self>) {
        if !self.pools.time.decides {
            self.dispatcher.link.runtime.keep(sweep(Arc::downgrade(self)));
        }
    }

    /// Sends the exchange of a key that is dry. If others have not joined one lately, they
    /// do: their windows may have ended as well.
    pub(super) fn send(&self, (lane, set): &(usize, ChargeSet), ask: LeaseAsk) {
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
    pub(super) fn ask_later(self: &Arc<Self>, pool: PoolKey, now: u64) {
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
    pub(super) fn flush(&self, now: Timestamp) {
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
    pub(super) async fn settle(&self, keys: &[Fingerprint], now: Timestamp) {
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

    /// Gives back all units, and waits until the store has them.
    pub(crate) async fn drain(&self, now: Timestamp) {
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
}

/// Gives back what is not used, for as long as the backend exists.
async fn sweep(levels: Weak<Levels>) {
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(levels) = levels.upgrade() else { return };
        levels.pools.sweep(LEASE);
        if let Some(interval) = levels.pools.surplus_interval() {
            levels.schedule_at(levels.end_of_interval(interval));
        }
    }
}
