//! What a process knows of one key of a leased rule: [`Pool`]. Times are nanoseconds on
//! the limiter's clock.
//!
//! A pool is in one of two states by its units, and in one of four by its refill:
//!
//! | | units |
//! |---|---|
//! | empty | none were leased under its policy, or none for a while: no [`Lease`] |
//! | granted | a [`Lease`] with units, or one that has run dry and whose window goes on |
//!
//! | | the refill that was asked for last |
//! |---|---|
//! | ended | it has ended, or there was none: another may be asked for |
//! | scheduled | it is sent at the end of the interval |
//! | asked | it was sent: no other is asked for meanwhile |
//! | superseded | it was sent under an earlier policy: what it brings is given back |
//!
//! [`InFlightAsks`] has the second state.
//!
//! Invariant: no unit is used under another policy than it was leased under.

use super::{
    demand::{self, Demand},
    in_flight_asks::{AskNumbers, InFlightAsks},
    last_reply::LastReply,
    lease::{Lease, Leased},
    returned_units::ReturnedUnits,
};
use crate::{
    backend::{Outcome, redis::plan::LeaseAsk},
    store::Evictable,
};

/// Which part of a window a pool may be idle before it gives back its units: others can
/// still use them in it.
const IDLE_PART: u64 = 4;

/// One key. Small, since a key without units has one as well.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Names the policy that units are leased under.
    version: u64,
    demand: Demand,
    asks: InFlightAsks,
    lease: Option<Box<Lease>>,
}

/// What becomes of a request.
#[derive(Debug, Default)]
pub(crate) struct Take {
    /// It takes its units; `None` where there are too few.
    pub(crate) outcome: Option<Outcome>,
    /// When the units expire that it takes.
    pub(crate) expires: u64,
    /// The refill that is needed.
    pub(crate) refill: Option<Refill>,
    /// What expired.
    pub(crate) surplus: Option<ReturnedUnits>,
}

/// A refill that a pool needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refill {
    /// Units beyond those that requests wait for.
    pub(crate) ahead: u64,
    /// Whether it cannot wait for the end of the interval.
    pub(crate) is_urgent: bool,
}

impl Pool {
    fn level(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.level())
    }

    /// A request of `cost` units takes them, if there are enough.
    pub(super) fn take(&mut self, version: u64, cost: u64, now: u64, interval: u64) -> Take {
        let now = self.present(now);
        self.demand().count(cost);
        let has = |lease: &Option<Box<Lease>>| lease.as_ref().is_some_and(|lease| lease.has(cost, now));
        let mut surplus = None;
        if version != self.version || !has(&self.lease) {
            surplus = self.turn(version, cost, now);
        }
        let mut took = None;
        if let Some(lease) = &mut self.lease {
            took = lease.take(cost, now);
            if took.is_none() && cost > 0 && lease.level() > 0 {
                // The store decides, and must know all that is free.
                surplus = lease.give_back(u64::MAX, now).map(|all| all.with(surplus));
            }
        }
        let needs_refill = took.is_none() || self.lease.as_ref().is_some_and(|lease| lease.needs_refill());
        let refill = if needs_refill { self.refill(now, interval, took.is_none()) } else { None };
        let surplus = self.giving_back(surplus);
        let (outcome, expires) = took.map_or((None, 0), |(outcome, expires)| (Some(outcome), expires));
        Take { outcome, expires, refill, surplus }
    }

    /// Demand, with all that was taken so far.
    fn demand(&mut self) -> &mut Demand {
        &mut self.demand
    }

    /// The outcome of a request that takes nothing.
    pub(super) fn peek(&self, version: u64, cost: u64, now: u64) -> Option<Outcome> {
        let now = self.present(now);
        let lease = self.lease.as_ref().filter(|lease| version == self.version && lease.has(cost.max(1), now))?;
        Some(lease.outcome(0, now))
    }

    /// Puts back units that a request took and did not use. They expire at `expires`,
    /// which is later than `now`. Whether the pool could take them.
    pub(super) fn put_back(&mut self, version: u64, cost: u64, expires: u64, now: u64) -> bool {
        let lease = self.lease.as_mut().filter(|_| version == self.version && now < expires);
        lease.map(|lease| lease.put_back(cost, expires)).is_some()
    }

    /// The time of a request that may have been delayed.
    fn present(&self, now: u64) -> u64 {
        self.lease.as_ref().map_or(now, |lease| lease.present(now))
    }

    /// Differs once more units were given back.
    pub(super) fn returned(&self) -> u8 {
        self.asks.returned()
    }

    /// The store is told of units that were given back.
    pub(super) fn on_returned(&mut self) {
        self.asks.on_returned();
    }

    /// Drops what the request cannot use, and brings the later units forward.
    #[cold]
    fn turn(&mut self, version: u64, cost: u64, now: u64) -> Option<ReturnedUnits> {
        if version == self.version && self.lease.as_ref().is_none_or(|lease| !lease.is_later_than(now)) {
            return self.lease.as_mut()?.turn(cost, now);
        }
        self.version = version;
        self.asks.supersede(now);
        self.lease.take()?.give_back(u64::MAX, now)
    }

    /// Up to so many units, the later ones last, to be given back.
    pub(super) fn give_back(&mut self, units: u64, now: u64) -> Option<ReturnedUnits> {
        let surplus = self.lease.as_mut()?.give_back(units, now);
        self.giving_back(surplus)
    }

    /// The store is to be told of what is given back, unless it is void.
    fn giving_back(&mut self, surplus: Option<ReturnedUnits>) -> Option<ReturnedUnits> {
        if surplus.as_ref().is_some_and(|surplus| !surplus.is_void) {
            self.asks.on_giving_back();
        }
        surplus
    }

    fn set_alarm(&mut self, level: u64) {
        if let Some(lease) = &mut self.lease {
            lease.set_alarm(level);
        }
    }

    /// The refill that is needed; `None` where one is expected already. One that is
    /// scheduled is not sent any more, if another is needed at once.
    fn refill(&mut self, now: u64, interval: u64, is_dry: bool) -> Option<Refill> {
        if self.asks.is_asked(now) {
            self.set_alarm(0);
            return None;
        }
        let ahead = self.missing(now, interval);
        (ahead > 0).then_some(Refill { ahead, is_urgent: is_dry || self.asks.is_scheduled() })
    }

    /// The units that it lacks, without those that expire within an interval. If it
    /// lacks none, any that is used is reason to ask again.
    fn missing(&mut self, now: u64, interval: u64) -> u64 {
        if self.level() > 0 && self.is_sliding() {
            self.set_alarm(0);
            return 0;
        }
        let target = self.target(now, interval);
        let lasts = self.lease.as_ref().map_or(0, |lease| lease.lasting(now, interval));
        self.set_alarm(target.min(lasts));
        target.saturating_sub(lasts)
    }

    fn is_sliding(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.reply().template.is_sliding())
    }

    /// The units that it should have: those of an interval and what chance adds to it, but
    /// no more than are used until their window ends.
    fn target(&mut self, now: u64, interval: u64) -> u64 {
        let demand = self.demand().per_interval(now, interval);
        let until_end = match self.lease.as_ref().and_then(|lease| lease.window_left(now)) {
            Some(left) => u128::from(demand) * u128::from(left) / u128::from(interval.max(1)),
            None => u128::MAX,
        };
        u64::try_from(until_end).unwrap_or(u64::MAX).min(demand::with_spare(demand)).min(u64::from(u32::MAX / 4))
    }

    /// A refill will be asked for at the end of the interval, or was asked for.
    pub(super) fn asked(&mut self, now: u64, interval: u64, is_sent: bool, round_trip: u64) -> AskNumbers {
        let demand = self.demand().per_interval(now, interval);
        // What is used in two round trips: below it, the refill must not wait.
        let in_round_trip = u128::from(demand) * u128::from(round_trip.saturating_mul(2)) / u128::from(interval.max(1));
        let urgent_below = u64::try_from(in_round_trip).unwrap_or(u64::MAX);
        self.set_alarm(if is_sent { 0 } else { urgent_below });
        self.asks.ask(now, interval, is_sent)
    }

    /// A request asks for itself only.
    pub(super) fn asked_alone(&mut self) -> AskNumbers {
        self.asks.ask_alone()
    }

    /// A refill that was scheduled is about to be sent: how many units it is to bring.
    /// `None` if it is not needed any more.
    pub(super) fn send(&mut self, ask: &LeaseAsk, now: u64) -> Option<u64> {
        if ask.version != self.version || !self.asks.is_last(ask.number) {
            return None;
        }
        let ahead = self.missing(now, ask.interval);
        self.asks.on_due(ahead > 0);
        if ahead == 0 {
            return None;
        }
        self.set_alarm(0);
        Some(ahead)
    }

    /// The ask of this number is gone: the pool asks again when half of its units are
    /// used.
    pub(super) fn ended(&mut self, number: u32, is_refill: bool) {
        if self.asks.on_gone(number, is_refill) {
            self.set_alarm(self.level() / 2);
        }
    }

    /// Adds units that were leased. Returns what cannot be used.
    pub(super) fn add(&mut self, leased: Leased, now: u64) -> Option<ReturnedUnits> {
        let surplus = self.add_or_return(leased, now);
        self.giving_back(surplus)
    }

    fn add_or_return(&mut self, leased: Leased, now: u64) -> Option<ReturnedUnits> {
        if leased.version != self.version {
            return leased.unused(now);
        }
        self.asks.on_reply(leased.number, leased.is_refill);
        let interval = leased.reply.template.interval;
        if now >= leased.expires && leased.units > 0 {
            // The reply was late. Its units are not mixed with those of a later window.
            return leased.unused(now);
        }
        let mut surplus = None;
        if self.lease.as_ref().is_some_and(|lease| lease.level() > 0 && lease.has_expired(now)) {
            surplus = self.turn(leased.version, 0, now);
        }
        if leased.units > 0 && self.level() > 0 && leased.reply.template.is_sliding() {
            return leased.unused(now);
        }
        match &mut self.lease {
            _ if leased.units == 0 => {}
            Some(lease) => lease.add(leased),
            None => self.lease = Some(Box::new(Lease::new(leased))),
        }
        // A pool that is used joins the batch of each interval.
        let target = self.target(self.present(now), interval);
        self.set_alarm(target);
        surplus
    }

    /// What is given back after a while: what has expired, what is idle, and what
    /// demand no longer needs.
    pub(super) fn sweep(&mut self, now: u64, idle: u64) -> Option<ReturnedUnits> {
        let idle_for = self.demand().idle_for(now);
        let lease = self.lease.as_mut()?;
        let template = &lease.reply().template;
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
            let surplus = self.turn(self.version, 0, now);
            return self.giving_back(surplus);
        }
        let needed = self.demand().per_interval(now, interval).saturating_mul(4);
        let excess = self.level().saturating_sub(needed);
        if excess > self.level() / 2 { self.give_back(excess, now) } else { None }
    }

    /// Whether a refill is under way or scheduled, or units on their way to the store.
    pub(super) fn is_changing(&self) -> bool {
        self.asks.are_under_way()
    }

    /// Whether it has units that a request may take, or may have them soon.
    pub(super) fn may_admit(&self) -> bool {
        self.level() > 0 || self.is_changing()
    }

    /// Whether units are on their way that were asked for under an earlier policy: they
    /// cannot be given back once the store has charged under the present one.
    pub(super) fn is_superseded(&self, version: u64) -> bool {
        version == self.version && self.asks.are_superseded()
    }

    /// Drops all units: the store has lost the counters that they were charged to.
    pub(super) fn forget(&mut self) {
        // Renewing restores what is held in flight.
        if !self.lease.as_ref().is_some_and(|lease| lease.has_slots()) {
            self.lease = None;
            self.asks.forget();
        }
    }

    /// The reply that its units are from.
    pub(super) fn last_reply(&self) -> Option<&LastReply> {
        self.lease.as_ref().map(|lease| lease.reply())
    }
}

impl Evictable for Pool {
    fn is_idle(&self, before: u64) -> bool {
        self.level() == 0 && self.asks.are_over() && self.demand.is_before(before)
    }
}
