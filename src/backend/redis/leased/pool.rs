//! What a process knows of one key of a leased rule: [`Pool`], and its [`Exchange`] with the
//! store. Times are nanoseconds on the limiter's clock. It sends nothing.
//!
//! | its exchange | what may follow |
//! |---|---|
//! | none | one begins: a request finds too few units, or an interval ends and it is low |
//! | under way | requests that find too few units wait for its end |
//! | ended without a reply | the next one brings what this one has leased |
//!
//! Invariant: no unit is used under another policy than it was leased under. A pool has at
//! most one exchange under way, so the store knows by one number, that of the last reply
//! received, whether the reply that it recorded last was lost.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use smallvec::{Array, SmallVec};
use tokio::sync::Semaphore;

use super::{
    demand::{self, Demand, Moment},
    lease::{LastReply, Lease, Leased, ReturnedUnits},
};
use crate::{
    backend::{Outcome, TierState, TierStates, redis::plan::LEASE},
    store::Evictable,
};

/// Which part of a window a pool may be idle before it gives back its units: others can
/// still use them in it.
const IDLE_PART: u64 = 4;

/// An exchange at the end of an interval is for each pool that lacks this part of its units.
const LACKING_PART: u64 = 4;

/// How many times what it wants the store must have for a pool to lease for longer than an
/// interval: others must not lack what it holds.
const PLENTY: u64 = 4;

/// One key. Small, since a key without units has one as well.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Names the policy that units are leased under.
    pub(super) version: u64,
    pub(super) demand: Demand,
    /// When an exchange last brought nothing.
    empty: Moment,
    lease: Option<Box<Lease>>,
    exchange: Option<Arc<Exchange>>,
}

/// A request that takes its units, and whether more are needed at the end of the interval.
/// `None` where there are too few.
pub(crate) type Taken = Option<(Outcome, bool)>;

/// How a request that found too few units gets them.
#[derive(Debug)]
pub(super) enum Want<A = u64> {
    /// By the exchange that is under way.
    Wait(Arc<Exchange>),
    /// By a new one. Of a pool, the units that it brings, if there are, beyond those that
    /// requests wait for.
    Ask(A),
    /// The store decides it: nothing shows that more requests follow, or the store had
    /// nothing a moment ago.
    Decide,
}

impl Pool {
    fn level(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.level())
    }

    /// A request of `cost` units takes them, if there are enough. Returns also what has
    /// expired.
    #[inline]
    pub(super) fn take(&mut self, version: u64, cost: u64, now: u64) -> (Taken, Option<ReturnedUnits>) {
        let (mut tiers, mut surplus) = (TierStates::new(), None);
        let mut taken = self.take_at_hand(version, cost, now, &mut tiers);
        if taken.is_none() {
            surplus = self.turn(version, cost, self.present(now));
            taken = self.take_at_hand(version, cost, now, &mut tiers);
        }
        let lease = self.lease.as_ref().zip(taken);
        (lease.map(|(lease, is_low)| (lease.admit(lease.present(now), tiers), is_low)), surplus)
    }

    /// A request of `cost` units takes them, if the earlier ones are enough. Returns whether
    /// more are needed at the end of the interval, which is told once.
    #[inline]
    pub(super) fn take_at_hand(
        &mut self,
        version: u64,
        cost: u64,
        now: u64,
        states: &mut SmallVec<impl Array<Item = TierState>>,
    ) -> Option<bool> {
        let lease = self.lease.as_mut().filter(|_| version == self.version)?;
        let now = lease.present(now);
        if !lease.has(cost.max(1), now) {
            return None;
        }
        lease.take(cost, now, states);
        let is_low = lease.is_low();
        if is_low {
            lease.set_alarm(0);
        }
        Some(is_low)
    }

    /// The outcome of a request that takes nothing.
    pub(super) fn peek(&self, version: u64, cost: u64, now: u64) -> Option<Outcome> {
        let now = self.present(now);
        let lease = self.lease.as_ref().filter(|lease| version == self.version && lease.has(cost.max(1), now))?;
        let mut tiers = TierStates::new();
        lease.describe(now, &mut tiers);
        Some(lease.admit(now, tiers))
    }

    /// The time of a request that may have been delayed.
    fn present(&self, now: u64) -> u64 {
        self.lease.as_ref().map_or(now, |lease| lease.present(now))
    }

    /// Drops what the request cannot use, and brings the later units forward.
    fn turn(&mut self, version: u64, cost: u64, now: u64) -> Option<ReturnedUnits> {
        if version == self.version && self.lease.as_ref().is_none_or(|lease| !lease.is_later_than(now)) {
            return self.lease.as_mut()?.turn(cost, now);
        }
        self.version = version;
        self.empty = Moment::default();
        self.lease.take()?.give_back(u64::MAX, now)
    }

    /// Up to so many units, the later ones last, to be given back.
    pub(super) fn give_back(&mut self, units: u64, now: u64) -> Option<ReturnedUnits> {
        self.lease.as_mut()?.give_back(units, now)
    }

    /// All units, to be given back before the process ends: it asks for no more by itself.
    pub(super) fn drain(&mut self, now: u64) -> Option<ReturnedUnits> {
        self.lease.take()?.give_back(u64::MAX, now)
    }

    /// What a request of so many units does that found too few.
    pub(super) fn want(&mut self, units: u64, now: u64, interval: u64) -> Want {
        if let Some(exchange) = self.under_way() {
            exchange.join(units);
            return Want::Wait(Arc::clone(exchange));
        }
        let was_empty = u64::try_from(self.empty.age(now)).is_ok_and(|age| age < interval);
        if was_empty || self.demand.parts(now, interval) == 0 {
            return Want::Decide;
        }
        Want::Ask(self.target(now, interval).saturating_sub(self.lasting(now, interval)))
    }

    /// The units that an exchange brings at the end of an interval; `None` where none is
    /// needed. Where others may lack them, a pool that has none, or that the store has none
    /// for, waits for its next request, which asks at once: after a burst, none may come
    /// until the window ends.
    pub(super) fn want_more(&mut self, now: u64) -> Option<u64> {
        let interval = self.lease.as_ref()?.reply.template.interval;
        let is_scarce = self.level() == 0 || self.headroom() == 0;
        if self.under_way().is_some() || is_scarce && self.of_plenty(now, interval).is_none() {
            return None;
        }
        let (target, lasting) = (self.target(now, interval), self.lasting(now, interval));
        let lacks = target.saturating_sub(lasting);
        self.set_alarm(now, interval);
        let is_due = lasting < self.low(now, interval) || lacks >= target.div_ceil(LACKING_PART);
        (lacks > 0 && is_due).then_some(lacks)
    }

    pub(super) fn under_way(&self) -> Option<&Arc<Exchange>> {
        self.exchange.as_ref().filter(|exchange| exchange.is_under_way())
    }

    /// The units that do not expire within an interval.
    fn lasting(&self, now: u64, interval: u64) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.lasting(now, interval))
    }

    /// The units that it should have after an exchange: those of an interval, or of a second
    /// where there is plenty, and what chance adds to it. Where others may lack them, less
    /// than one unit is none, and there are no more than are used until their window ends.
    fn target(&mut self, now: u64, interval: u64) -> u64 {
        if let Some(of_second) = self.of_plenty(now, interval) {
            return of_second;
        }
        let until_end = self.demand.of_span(now, interval, self.window_left(now));
        demand::with_spare(self.demand.per_interval(now, interval)).min(until_end)
    }

    /// The units of a second, or of the rest of the window, if there is plenty.
    fn of_plenty(&mut self, now: u64, interval: u64) -> Option<u64> {
        self.plenty_for(now, interval, self.window_left(now))
    }

    /// The units of a second, but at most of `longest` nanoseconds, if there is plenty.
    fn plenty_for(&mut self, now: u64, interval: u64, longest: u64) -> Option<u64> {
        let of_second = self.demand.of_span(now, interval, interval.max(LEASE).min(longest));
        let of_second = demand::with_spare(of_second.saturating_add(1));
        (of_second <= self.headroom() / PLENTY).then_some(of_second)
    }

    fn headroom(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.headroom.into())
    }

    fn window_left(&self, now: u64) -> u64 {
        self.lease.as_ref().and_then(|lease| lease.window_left(now)).unwrap_or(u64::MAX)
    }

    /// Below this level a pool cannot wait for the end of the interval after the next one.
    fn low(&mut self, now: u64, interval: u64) -> u64 {
        let of_two = self.demand.of_span(now, interval, interval.saturating_mul(2));
        demand::with_spare(of_two.saturating_add(1)).min(self.target(now, interval))
    }

    fn set_alarm(&mut self, now: u64, interval: u64) {
        let low = self.low(now, interval);
        if let Some(lease) = &mut self.lease {
            lease.set_alarm(low);
        }
    }

    /// Begins an exchange of this number, for which requests of `waiting` units wait.
    pub(super) fn begin(&mut self, number: u64, waiting: u64) -> Arc<Exchange> {
        // Without a lost one, the last reply was received, whichever that was. What was lost
        // under an earlier policy is of other counters.
        let lost = self.exchange.as_ref().filter(|lost| !lost.has_reply() && lost.version == self.version);
        let known = lost.map_or(number - 1, |lost| lost.known);
        let exchange = Arc::new(Exchange {
            version: self.version,
            known,
            waiting: AtomicU64::new(waiting),
            brought: OnceLock::new(),
            under_way: Semaphore::new(0),
        });
        self.exchange = Some(Arc::clone(&exchange));
        exchange
    }

    /// Its exchange has ended.
    pub(super) fn on_ended(&mut self) {
        self.exchange.take_if(|exchange| exchange.has_reply());
    }

    /// Adds units that were leased. Returns what cannot be used.
    pub(super) fn add(&mut self, leased: Leased, now: u64) -> Option<ReturnedUnits> {
        if let Some(exchange) = &self.exchange {
            exchange.on_reply(leased.units);
        }
        // Where the reply was late, its units are not mixed with those of a later window.
        if leased.version != self.version || leased.units > 0 && now >= leased.expires {
            return Lease::new(leased).give_back(u64::MAX, now);
        }
        if leased.units == 0 {
            self.empty = Moment::of(now);
        }
        let mut surplus = None;
        if self.lease.as_ref().is_some_and(|lease| lease.level() > 0 && lease.has_expired(now)) {
            surplus = self.turn(leased.version, 0, now);
        }
        let interval = leased.reply.template.interval;
        match &mut self.lease {
            _ if leased.units == 0 => {}
            Some(lease) => lease.add(leased),
            None => self.lease = Some(Box::new(Lease::new(leased))),
        }
        self.set_alarm(self.present(now), interval);
        surplus
    }

    /// What is given back after a while: what has expired, what is idle, and what
    /// demand no longer needs. `idle` is for how many nanoseconds a pool is kept that is not
    /// asked for.
    pub(super) fn sweep(&mut self, now: u64, idle: u64) -> Option<ReturnedUnits> {
        let idle_for = self.demand.idle_for(now);
        let lease = self.lease.as_mut()?;
        let template = &lease.reply.template;
        let (interval, idle) = (template.interval, idle.min(template.shortest_window() / IDLE_PART));
        let is_over = lease.has_all_expired(now) || idle_for >= idle.max(interval);
        if lease.level() == 0 {
            if is_over {
                self.lease = None;
            }
            return None;
        }
        if is_over {
            return self.give_back(u64::MAX, now);
        }
        if lease.has_expired(now) {
            return self.turn(self.version, 0, now);
        }
        // Where there is plenty, no instance lacks what is left because a window ends soon.
        let of_second = self.plenty_for(now, interval, u64::MAX);
        let needed = of_second.unwrap_or_else(|| self.target(now, interval));
        let needed = needed.max(self.demand.per_interval(now, interval).saturating_mul(4));
        let excess = self.level().saturating_sub(needed);
        if excess > self.level() / 2 { self.give_back(excess, now) } else { None }
    }

    /// Whether it has units, or may have some soon.
    pub(super) fn may_admit(&self) -> bool {
        self.level() > 0 || self.under_way().is_some()
    }

    /// Drops all units: the store has lost the counters that they were charged to.
    pub(super) fn forget(&mut self) {
        self.lease = None;
        self.empty = Moment::default();
        self.exchange.take_if(|exchange| !exchange.is_under_way());
    }

    /// The reply that its units are from.
    pub(super) fn last_reply(&self) -> Option<&LastReply> {
        self.lease.as_ref().map(|lease| &lease.reply)
    }
}

impl Evictable for Pool {
    fn is_idle(&self, before: u64) -> bool {
        !self.may_admit() && self.demand.is_before(before)
    }
}

/// An exchange that is under way, or one that has ended without a reply.
#[derive(Debug)]
pub(super) struct Exchange {
    /// The policy that it leases under.
    version: u64,
    /// The last one of the pool whose reply was received.
    pub(super) known: u64,
    /// The units of the requests that wait for it.
    waiting: AtomicU64,
    /// Those that it has brought, once it has a reply.
    brought: OnceLock<u64>,
    /// Closed when it ends.
    under_way: Semaphore,
}

impl Exchange {
    fn is_under_way(&self) -> bool {
        !self.under_way.is_closed()
    }

    /// A request of so many units waits for it.
    fn join(&self, units: u64) {
        self.waiting.fetch_add(units, Ordering::Relaxed);
    }

    fn on_reply(&self, units: u64) {
        let _ = self.brought.set(units);
    }

    pub(super) fn has_reply(&self) -> bool {
        self.brought.get().is_some()
    }

    pub(super) fn has_brought_units(&self) -> bool {
        self.brought.get().is_some_and(|units| *units > 0)
    }

    /// The units that requests waited for and that it did not bring.
    pub(super) fn missing(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed).saturating_sub(*self.brought.get().unwrap_or(&u64::MAX))
    }

    /// Wakes what waits for it.
    pub(super) fn end(&self) {
        self.under_way.close();
    }

    pub(super) async fn ended(&self) {
        // It never has a permit, so this ends when it is closed.
        let _ = self.under_way.acquire().await;
    }
}
