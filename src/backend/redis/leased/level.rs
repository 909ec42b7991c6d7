//! The levels of consistency: how a request is decided. One that only leased rules charge
//! is by units of its pool, else by those of an exchange, else by the store; all others are
//! by the store. It sends nothing itself.
//!
//! The unit is the whole charge set of a request: an exchange charges it n times over. So
//! a request stays all or nothing over tiers and rules, and the fleet never admits
//! what the store has not charged.
//!
//! Invariant: a request is rejected only by the store, once it knows of all units that this
//! process does not use.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::BoxFuture;
use smallvec::{Array, SmallVec};
use tokio::time::Instant;

use super::{
    pool::{Exchange, Taken},
    pool_key::{PoolKey, fits_pool, is_leased, one_unit, pool_of},
    pools::{Begun, PoolKeys, Pools},
};
use crate::{
    backend::{
        Charge, Decide, Outcome, Request, TierState,
        redis::{
            dispatch::{Asking, Dispatcher},
            plan::ChargeSet,
            transport::task_runtime::late,
        },
    },
    error::BackendError,
    policy::charge::Charges,
    time::Timestamp,
};

/// Decides requests at the level that each of their rules asks for.
pub(crate) struct Levels {
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(super) pools: Arc<Pools>,
    pub(super) schedule: Mutex<Schedule>,
    /// The start of the intervals of exchanges.
    pub(super) origin: Instant,
}

/// When all pools that are low are asked for, and when they last joined one that was dry.
pub(super) struct Schedule {
    pub(super) due: Option<Instant>,
    pub(super) joined: Instant,
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

impl Levels {
    /// Decides with this dispatcher, and gives back what is not used.
    pub(crate) fn start(dispatcher: Arc<Dispatcher>) -> Arc<Self> {
        let origin = Instant::now();
        let schedule = Mutex::new(Schedule { due: None, joined: origin });
        let levels = Arc::new(Self { pools: Arc::clone(&dispatcher.pools), dispatcher, schedule, origin });
        levels.keep_sweeping();
        levels
    }

    pub(crate) fn decide(self: &Arc<Self>, request: &Request<'_>) -> Decide {
        let now = request.now.as_nanos();
        let pool = pool_of(request.charges).filter(|_| fits_pool(request));
        if let Some((pool, units)) = pool
            && let Some(outcome) = self.taken(pool, now, self.pools.take(pool, units, units, now))
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
    pub(crate) fn charge_leased(
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

    #[inline]
    fn taken(self: &Arc<Self>, pool: PoolKey, now: u64, taken: Taken) -> Option<Outcome> {
        let (outcome, is_low) = taken?;
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

    /// The status of a request that the pool would admit.
    pub(crate) fn peek(self: &Arc<Self>, request: &Request<'_>) -> Decide {
        let here = pool_of(request.charges);
        let here = here.and_then(|(pool, units)| self.pools.peek(pool, units, request.now.as_nanos()));
        if let Some(outcome) = here {
            return Decide::Now(Ok(outcome));
        }
        self.flush(request.now);
        self.dispatcher.ask(&Request { max_wait: Duration::ZERO, ..*request }, Asking::Peek)
    }

    /// Forgets what these charges have used, here and in the store.
    pub(crate) fn reset(
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
            let taken = self.levels.pools.take(*pool, 0, *units, now);
            let outcome = self.levels.taken(*pool, now, taken);
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
