//! How a request of leased rules is decided.
//!
//! The unit is the whole charge set of a request. A refill is one charge of it, n
//! times over: requests that wait take the first units, the others fill the pool. So
//! a request stays all or nothing over tiers and rules, and the fleet never admits
//! what the store has not charged.
//!
//! Invariant: a request is admitted only by units that the store has charged.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    pool::{Refill, Take},
    pool_key::{fits_pool, holds_in_flight, is_recorded, may_wait, pool_of},
    pools::{PoolKey, Pools},
    refills::Refills,
};
use crate::{
    backend::{
        Charge, Decide, Outcome, Request,
        redis::{dispatch::Dispatcher, executor::Operation, plan::LeaseAsk},
    },
    error::BackendError,
    time::{Timestamp, nanos},
};

pub(crate) struct Leased {
    dispatcher: Arc<Dispatcher>,
    pools: Arc<Pools>,
    refills: Arc<Refills>,
}

impl Leased {
    pub(crate) fn new(dispatcher: &Arc<Dispatcher>) -> Arc<Self> {
        let pools = Arc::clone(&dispatcher.pools);
        Arc::new(Self { dispatcher: Arc::clone(dispatcher), pools, refills: Refills::new(dispatcher) })
    }

    pub(crate) fn acquire(self: &Arc<Self>, request: &Request<'_>) -> Decide {
        let Some((pool, units)) = pool_of(request) else { return self.dispatcher.acquire(request) };
        let now = request.now.as_nanos();
        if !fits_pool(request, units) {
            return self.ask_alone(request, pool);
        }
        let take = self.take_units(pool, units, now);
        match take.outcome {
            Some(outcome) => {
                if let Some(refill) = take.refill {
                    self.refills.start(request, pool, refill);
                }
                Decide::Now(Ok(outcome))
            }
            None => self.ask(request, pool, units, take.refill),
        }
    }

    /// Takes units of a pool. What it gives back reaches the store before anything that
    /// the store has to decide.
    fn take_units(&self, pool: PoolKey, units: u64, now: u64) -> Take {
        let mut take = self.pools.take(pool, units, now);
        if let Some(surplus) = take.surplus.take().and_then(|surplus| self.pools.keep(surplus)) {
            self.refills.give_back(&surplus, Timestamp::from_nanos(now));
        }
        if take.outcome.is_none() {
            self.refills.send_surplus();
        }
        take
    }

    /// The status of a request that the pool would admit.
    pub(crate) fn peek(&self, request: &Request<'_>) -> Decide {
        let outcome = pool_of(request).and_then(|(pool, units)| self.pools.peek(pool, units, request.now.as_nanos()));
        if let Some(outcome) = outcome {
            return Decide::Now(Ok(outcome));
        }
        self.refills.send_surplus();
        self.dispatcher.peek(request)
    }

    /// Drops the units of charges whose counters are reset.
    pub(crate) fn forget(&self, charges: &[Charge<'_>], now: Timestamp) {
        // Afterwards it would give back units of others.
        self.refills.send_surplus();
        if let Some((pool, _)) = pool_of(&Request::new(charges, now, Duration::ZERO)) {
            // In flight units stay in use, so the store has to know which are not.
            let surplus = self.pools.give_back(pool, now.as_nanos());
            if let Some(surplus) = surplus.filter(|_| holds_in_flight(charges)) {
                self.refills.give_back(&surplus, now);
            }
        }
    }

    /// Takes the part of a request that other rules decide as well. `None` if only the
    /// store can decide; nothing is charged then.
    pub(crate) fn take(self: &Arc<Self>, request: &Request<'_>) -> Option<(Outcome, TakenUnits)> {
        let (pool, units) = pool_of(request)?;
        let now = request.now.as_nanos();
        if holds_in_flight(request.charges) {
            self.refills.empty(pool, request.now);
            return None;
        }
        let take = self.take_units(pool, units, now);
        if let Some(refill) = take.refill {
            self.refills.start(request, pool, refill);
        }
        let taken =
            TakenUnits { leased: Arc::clone(self), pool, units, expires: take.expires, taken: (now, Instant::now()) };
        Some((take.outcome?, taken))
    }

    /// The pool has too few units: the store decides, and leases more if demand asks
    /// for it.
    #[cold]
    fn ask(self: &Arc<Self>, request: &Request<'_>, pool: PoolKey, units: u64, refill: Option<Refill>) -> Decide {
        let now = request.now.as_nanos();
        if self.pools.is_superseded(pool) {
            let (own, asked) = (Arc::clone(self), Instant::now());
            let later = self.dispatcher.acquire_later(request);
            return Decide::Later(Box::pin(async move {
                let decided = async {
                    own.settle(pool, now, asked).await;
                    wait_for(later).await
                };
                own.dispatcher.link.deadline.decide(decided).await
            }));
        }
        let returned = self.pools.returned(pool);
        let ahead = refill.map_or(0, |refill| refill.ahead);
        let ask = || self.refills.lease_ask(pool, now, ahead, (true, false));
        let (mut lease, mut after) = (None::<&dyn Fn() -> LeaseAsk>, None);
        // Beside a refill, a request asks for itself where the store records that: it is
        // leased again if the reply is lost.
        if units == 1 && (ahead > 0 || is_recorded(request.charges)) {
            lease = Some(&ask);
        } else if ahead > 0 {
            // It must not take what the request itself needs.
            after = self.refills.background(request, pool, ahead, true);
        }
        let at_once = Request { max_wait: Duration::ZERO, ..*request };
        let may_wait = may_wait(request);
        let reply = match self.dispatcher.acquire_leasing(&at_once, lease) {
            Decide::Now(Ok(rejected)) if !may_wait && !self.pools.may_admit(pool) => {
                return Decide::Now(Ok(rejected));
            }
            Decide::Now(Err(error)) => return Decide::Now(Err(error)),
            reply => reply,
        };
        // Nothing of it is sent before it is polled.
        let later = self.dispatcher.acquire_later(request);
        let (own, asked) = (Arc::clone(self), Instant::now());
        Decide::Later(Box::pin(async move {
            let deadline = &own.dispatcher.link.deadline;
            let end = deadline.end();
            let outcome = wait_for(reply).await?;
            if outcome.is_admitted() {
                let after = after.into_iter().map(|(lane, set)| (lane, Operation::Charge(set)));
                own.dispatcher.push_all(after.collect());
                return Ok(outcome);
            }
            drop(after);
            // A refill that was under way has taken the last units.
            let retake = |now| own.take_units(pool, units, now).outcome;
            let settled = async {
                match own.until_settled(pool, (now, asked), retake).await {
                    Some(outcome) => Some(Ok(outcome)),
                    None if may_wait || own.pools.returned(pool) != returned => Some(wait_for(later).await),
                    None => None,
                }
            };
            // A rejection that came in time stands.
            deadline.until(end, settled).await.flatten().unwrap_or(Ok(outcome))
        }))
    }

    /// The store decides a request that takes no units of the pool. It must know all
    /// that is free.
    #[cold]
    fn ask_alone(self: &Arc<Self>, request: &Request<'_>, pool: PoolKey) -> Decide {
        let (own, now, asked) = (Arc::clone(self), request.now.as_nanos(), Instant::now());
        self.refills.empty(pool, request.now);
        self.refills.send_surplus();
        let returned = self.pools.returned(pool);
        let reply = match self.dispatcher.acquire(request) {
            Decide::Later(reply) => reply,
            ready => return ready,
        };
        let later = self.dispatcher.acquire_later(request);
        Decide::Later(Box::pin(async move {
            let deadline = &own.dispatcher.link.deadline;
            let end = deadline.end();
            let outcome = reply.await?;
            if outcome.is_admitted() {
                return Ok(outcome);
            }
            let settled = async {
                own.settle(pool, now, asked).await;
                if own.pools.returned(pool) == returned { None } else { Some(wait_for(later).await) }
            };
            deadline.until(end, settled).await.flatten().unwrap_or(Ok(outcome))
        }))
    }

    /// Gives back all units of a pool, and those that are on their way.
    async fn settle(&self, pool: PoolKey, now: u64, asked: Instant) {
        let empty = |now| -> Option<()> {
            self.refills.empty(pool, Timestamp::from_nanos(now));
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
            let changed = self.pools.changed(pool);
            let result = attempt(now);
            if result.is_some() {
                return result;
            }
            let changed = changed?;
            self.refills.flush();
            changed.await;
        }
    }

    /// The limiter's time, which was `at` at the time `since`.
    fn later(&self, at: u64, since: Instant) -> u64 {
        let passed = if self.dispatcher.uses_limiter_time() { 0 } else { nanos(since.elapsed()) };
        at.saturating_add(passed)
    }

    /// Gives back all units, and waits until the store has them.
    pub(crate) async fn drain(&self, now: Timestamp) {
        self.refills.drain(now).await;
    }
}

/// Units that were taken for a request which the store has not decided yet. Put back
/// when they are dropped.
pub(crate) struct TakenUnits {
    leased: Arc<Leased>,
    pool: PoolKey,
    units: u64,
    expires: u64,
    /// When: on the limiter's clock, and on the monotonic one.
    taken: (u64, Instant),
}

impl TakenUnits {
    /// The store has admitted the request.
    pub(crate) fn keep(mut self) {
        self.units = 0;
    }
}

impl Drop for TakenUnits {
    fn drop(&mut self) {
        if self.units > 0 {
            let now = self.leased.later(self.taken.0, self.taken.1);
            // Units that the pool cannot take any more are lost until their lease ends.
            let _ = self.leased.pools.put_back(self.pool, self.units, self.expires, now);
        }
    }
}

async fn wait_for(acquire: Decide) -> Result<Outcome, BackendError> {
    match acquire {
        Decide::Now(result) => result,
        Decide::Later(reply) => reply.await,
    }
}
