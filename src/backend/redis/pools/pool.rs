//! The units of one charge set that this process has leased and not used yet.
//! Times are nanoseconds on the limiter's clock.
//!
//! Invariant: a unit leaves the pool once: to a request, or to be given back. None
//! is used after it expires, or under another policy than it was leased under.

use std::mem;

use super::{
    demand::{self, Demand},
    expiry::{expiry, slots},
    last_lease::{LastLease, Leased},
    surplus::Surplus,
};
use crate::{
    algorithm::QuotaStatus,
    backend::{Outcome, QuotaStatuses, TierState, redis::plan::LeaseAsk},
    store::Evictable,
};

/// For how long an asked refill is waited for before another is asked for, beyond
/// its interval.
const REPLY_WITHIN: u64 = 1_000_000_000;

/// Which part of a window a pool may be idle before it gives back its units: others can
/// still use them in it.
const IDLE_PART: u64 = 4;

/// How long, in nanoseconds, a request may have read the clock before units were
/// leased that it takes: it was delayed since then. One from longer ago has another
/// clock.
const DELAYED: u64 = 1_000_000_000;

/// The units of one key.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Names the policy that the units were leased under.
    version: u64,
    /// When they were leased, and when the earlier and the later ones expire.
    from: u64,
    expires: u64,
    next_expires: u64,
    /// Until when a refill is expected.
    asked_until: u64,
    units: u32,
    next_units: u32,
    /// Below this level a refill is needed, or needed at once.
    alarm: u32,
    /// Whether that is sent at the end of the interval.
    is_scheduled: bool,
    /// Whether it was asked for under an earlier policy.
    is_earlier: bool,
    /// The number of the refill that was asked for last, of the last one that was
    /// received, and how many are scheduled or under way.
    asked: u32,
    known: u32,
    under_way: u32,
    /// How often units were given back, and how many times the store is not told yet.
    returned: u32,
    returning: u32,
    demand: Demand,
    last: Option<Box<LastLease>>,
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
    pub(crate) surplus: Option<Surplus>,
}

/// The number of an ask, and of the last one that was received before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AskNumbers {
    pub(crate) own: u32,
    pub(crate) known: u32,
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
        u64::from(self.units) + u64::from(self.next_units)
    }

    /// A request of `cost` units takes them, if there are enough.
    pub(super) fn take(&mut self, version: u64, cost: u64, now: u64, interval: u64) -> Take {
        let mut take = Take::default();
        let now = self.present(now);
        if version != self.version || !(self.from..self.expires).contains(&now) || u64::from(self.units) < cost {
            take.surplus = self.turn(version, cost, now);
        }
        self.demand.count(cost);
        if u64::from(self.units) < cost && self.level() > 0 {
            // The store decides, and must know all that is free.
            let expired = take.surplus.take();
            take.surplus = self.give_back(u64::MAX, now).map(|surplus| surplus.with(expired));
        }
        if u64::from(self.units) >= cost.max(1)
            && let Some(last) = &mut self.last
        {
            #[allow(clippy::cast_possible_truncation, reason = "at most the units")]
            let taken = cost as u32;
            self.units -= taken;
            take.expires = self.expires;
            let slot = if cost > 0 { last.slots.pop().unwrap_or(0) } else { 0 };
            let later = u64::from(self.units) + u64::from(self.next_units);
            take.outcome = Some(last.outcome(later, slot, now));
        }
        if self.level() < u64::from(self.alarm) || take.outcome.is_none() {
            take.refill = self.refill(now, interval, take.outcome.is_none());
        }
        take
    }

    /// The same where the pool has them and needs no refill. Else nothing has changed.
    #[inline]
    pub(super) fn try_take(&mut self, version: u64, cost: u64, now: u64) -> Option<QuotaStatuses> {
        let now = self.present(now);
        let is_valid = version == self.version && (self.from..self.expires).contains(&now);
        let left = u64::from(self.units).checked_sub(cost).filter(|_| is_valid && cost > 0)?;
        let later = left + u64::from(self.next_units);
        let last = self.last.as_ref().filter(|last| later >= u64::from(self.alarm) && last.slots.is_empty())?;
        let age = now.saturating_sub(last.asked);
        let status = |tier: TierState| QuotaStatus { remaining: tier.remaining, reset: tier.reset.saturating_sub(age) };
        let statuses = last.reply.each_status(&last.set, later, 0).map(status).collect();
        self.demand.count(cost);
        #[allow(clippy::cast_possible_truncation, reason = "at most the units")]
        let left = left as u32;
        self.units = left;
        Some(statuses)
    }

    /// The outcome of a request that takes nothing.
    pub(super) fn peek(&self, version: u64, cost: u64, now: u64) -> Option<Outcome> {
        let now = self.present(now);
        let is_valid = version == self.version && (self.from..self.expires).contains(&now);
        let last = self.last.as_ref().filter(|_| is_valid && u64::from(self.units) >= cost.max(1))?;
        Some(last.outcome(self.level(), 0, now))
    }

    /// Puts back units that a request took and did not use. They expire at `expires`,
    /// which is later than `now`. Whether the pool could take them.
    pub(super) fn put_back(&mut self, version: u64, cost: u64, expires: u64, now: u64) -> bool {
        let fits = version == self.version && now < expires && self.last.is_some();
        if fits {
            self.expires = if self.units == 0 { expires } else { self.expires.min(expires) };
            self.from = self.from.min(now);
            self.units = self.units.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
        }
        fits
    }

    /// The time of a request that may have been delayed.
    fn present(&self, now: u64) -> u64 {
        if (1..=DELAYED).contains(&self.from.saturating_sub(now)) { self.from } else { now }
    }

    /// How often units were given back.
    pub(super) fn returned(&self) -> u32 {
        self.returned
    }

    /// The store is told of units that were given back.
    pub(super) fn on_returned(&mut self) {
        (self.returned, self.returning) = (self.returned.wrapping_add(1), self.returning.saturating_sub(1));
    }

    /// Drops what the request cannot use, and brings the later units forward.
    #[cold]
    fn turn(&mut self, version: u64, cost: u64, now: u64) -> Option<Surplus> {
        if version != self.version || now < self.from {
            let surplus = self.give_back(u64::MAX, now);
            // What was sent is expected: its units are given back then.
            let asked_until = if self.is_scheduled { 0 } else { self.asked_until };
            let demand = mem::take(&mut self.demand);
            *self = Self { version, demand, asked_until, is_earlier: now < asked_until, ..self.emptied() };
            return surplus;
        }
        let mut surplus = None;
        if now >= self.expires {
            surplus = self.give_back(u64::from(self.units), now);
            (self.units, self.expires) = (mem::take(&mut self.next_units), self.next_expires);
            if self.units > 0 && now >= self.expires {
                surplus = self.give_back(u64::MAX, now).map(|later| later.with(surplus));
            }
        } else if u64::from(self.units) < cost && self.next_units > 0 && now >= self.next_expires {
            // They were asked for earlier, and their reply was late.
            let valid = (self.units, self.expires);
            (self.units, self.expires) = (mem::take(&mut self.next_units), self.next_expires);
            surplus = self.give_back(u64::MAX, now);
            (self.units, self.expires) = valid;
        } else if u64::from(self.units) < cost && self.next_units > 0 {
            self.expires = if self.units == 0 { self.next_expires } else { self.expires.min(self.next_expires) };
            self.units = self.units.saturating_add(mem::take(&mut self.next_units));
        }
        surplus
    }

    /// Up to so many units, the later ones last, to be given back.
    pub(super) fn give_back(&mut self, units: u64, now: u64) -> Option<Surplus> {
        let units = units.min(self.level());
        if units == 0 {
            return None;
        }
        let last = self.last.as_mut()?;
        let is_over = now >= self.expires;
        let earlier = units.min(u64::from(self.units));
        #[allow(clippy::cast_possible_truncation, reason = "at most the units")]
        {
            self.units -= earlier as u32;
            self.next_units -= (units - earlier) as u32;
        }
        let is_void = is_over && last.ends_with_window;
        self.returning += u32::from(!is_void);
        let kept = last.slots.len().saturating_sub(usize::try_from(units).unwrap_or(usize::MAX));
        Some(Surplus {
            set: last.set.clone(),
            reply: last.reply.clone(),
            units,
            slots: last.slots.split_off(kept),
            lane: last.lane,
            interval: last.interval,
            is_void,
            returning: None,
        })
    }

    /// The refill that is needed; `None` where one is expected already. One that is
    /// scheduled is not sent any more, if another is needed at once.
    fn refill(&mut self, now: u64, interval: u64, is_dry: bool) -> Option<Refill> {
        if now < self.asked_until && !self.is_scheduled {
            self.alarm = 0;
            return None;
        }
        let ahead = self.missing(now, interval);
        (ahead > 0).then_some(Refill { ahead, is_urgent: is_dry || self.is_scheduled })
    }

    /// The units that it lacks, without those that expire within an interval. If it
    /// lacks none, any that is used is reason to ask again.
    fn missing(&mut self, now: u64, interval: u64) -> u64 {
        let target = self.target(now, interval);
        let end =
            if self.last.as_ref().is_some_and(|last| last.ends_with_window) { 0 } else { interval + interval / 4 };
        let lasting = |units, expires: u64| if expires > now.saturating_add(end) { u64::from(units) } else { 0 };
        let lasts = lasting(self.units, self.expires) + lasting(self.next_units, self.next_expires);
        self.alarm = u32::try_from(target.min(lasts)).unwrap_or(u32::MAX);
        target.saturating_sub(lasts)
    }

    /// The units that it should have: those of an interval and what chance adds to it, but
    /// no more than are used until their window ends.
    fn target(&mut self, now: u64, interval: u64) -> u64 {
        let demand = self.demand.per_interval(now, interval);
        let until_end = match &self.last {
            Some(last) if last.ends_with_window && (self.from..self.expires).contains(&now) => {
                u128::from(demand) * u128::from(self.expires - now) / u128::from(interval.max(1))
            }
            _ => u128::MAX,
        };
        u64::try_from(until_end).unwrap_or(u64::MAX).min(demand::with_spare(demand)).min(u64::from(u32::MAX / 4))
    }

    /// A refill will be asked for at the end of the interval, or was asked for.
    /// `urgent_below` is the level at which it must not wait.
    pub(super) fn asked(&mut self, now: u64, interval: u64, is_sent: bool, round_trip: u64) -> AskNumbers {
        // What another ask brings is not lost yet.
        self.known = if self.under_way == 0 { self.known } else { self.asked };
        self.asked = self.asked.wrapping_add(1);
        self.under_way += 1;
        self.asked_until = now.saturating_add(interval).saturating_add(REPLY_WITHIN);
        (self.is_scheduled, self.is_earlier) = (!is_sent, false);
        let demand = self.demand.per_interval(now, interval);
        let in_round_trip = u128::from(demand) * u128::from(round_trip.saturating_mul(2)) / u128::from(interval.max(1));
        let urgent_below = u32::try_from(in_round_trip).unwrap_or(u32::MAX);
        self.alarm = if is_sent { 0 } else { urgent_below };
        AskNumbers { own: self.asked, known: self.known }
    }

    /// A refill that was scheduled is about to be sent: how many units it is to bring.
    /// `None` if it is not needed any more.
    pub(super) fn send(&mut self, ask: &LeaseAsk, now: u64) -> Option<u64> {
        if (ask.version, ask.number) != (self.version, self.asked) {
            return None;
        }
        self.is_scheduled = false;
        let ahead = self.missing(now, ask.interval);
        match ahead {
            0 => self.asked_until = 0,
            _ => self.alarm = 0,
        }
        (ahead > 0).then_some(ahead)
    }

    /// The ask of this number is gone: the pool asks again when half of its units are
    /// used.
    pub(super) fn ended(&mut self, number: u32) {
        self.under_way = self.under_way.saturating_sub(1);
        if number == self.asked && self.asked_until > 0 {
            (self.asked_until, self.is_scheduled, self.is_earlier) = (0, false, false);
            self.alarm = u32::try_from(self.level() / 2).unwrap_or(u32::MAX);
        }
    }

    /// Adds units that were leased. Returns what cannot be used.
    pub(super) fn add(&mut self, leased: Leased, now: u64) -> Option<Surplus> {
        if leased.ask.version != self.version {
            return self.unusable(leased, false);
        }
        let (expires, ends_with_window) = expiry(&leased.set, &leased.reply, &leased.ask, leased.asked);
        if leased.ask.number == self.asked {
            (self.asked_until, self.is_scheduled, self.known) = (0, false, self.asked);
        }
        if now >= expires && leased.units > 0 {
            // The reply was late. Its units are not mixed with those of a later window.
            return self.unusable(leased, ends_with_window);
        }
        let Leased { set, ask, reply, units, first_slot, lane, asked } = leased;
        let mut surplus = None;
        if now >= self.expires && self.level() > 0 {
            surplus = self.turn(ask.version, 0, now);
        }
        let interval = ask.interval;
        if units > 0 {
            let count = u32::try_from(units).unwrap_or(u32::MAX);
            let mut own = slots(&set, first_slot, units);
            let is_held = !own.is_empty();
            own.extend(self.last.iter_mut().flat_map(|last| mem::take(&mut last.slots)));
            if self.units == 0 {
                (self.units, self.expires, self.from) = (count, expires, asked);
            } else if is_held {
                (self.units, self.expires) = (self.units.saturating_add(count), self.expires.min(expires));
            } else {
                self.append(count, expires);
            }
            self.last = Some(Box::new(LastLease { set, reply, lane, slots: own, ends_with_window, interval, asked }));
        }
        // A pool that is used joins the batch of each interval.
        let target = self.target(now.max(self.from), interval);
        self.alarm = u32::try_from(target).unwrap_or(u32::MAX);
        surplus
    }

    /// Units that never were in the pool, to be given back. Void ones are worth nothing.
    fn unusable(&mut self, leased: Leased, is_void: bool) -> Option<Surplus> {
        let Leased { set, ask, reply, units, first_slot, lane, .. } = leased;
        self.returning += u32::from(units > 0 && !is_void);
        let (slots, interval) = (slots(&set, first_slot, units), ask.interval);
        (units > 0).then_some(Surplus { set, reply, units, slots, lane, interval, is_void, returning: None })
    }

    /// Adds units that expire last. Of three generations, those two become one that lose
    /// less by it: it expires with the first of them.
    fn append(&mut self, count: u32, expires: u64) {
        let lost = |units: u32, until: u64, from: u64| u128::from(units) * u128::from(until.saturating_sub(from));
        let lost_by_next = lost(self.next_units, self.next_expires, self.expires);
        if self.next_units > 0 && lost_by_next < lost(count, expires, self.next_expires) {
            self.units = self.units.saturating_add(mem::take(&mut self.next_units));
            self.expires = self.expires.min(self.next_expires);
        }
        self.next_expires = if self.next_units == 0 { expires } else { self.next_expires.min(expires) };
        self.next_units = self.next_units.saturating_add(count);
    }

    /// What is given back after a while: what has expired, what is idle, and what
    /// demand no longer needs.
    pub(super) fn sweep(&mut self, now: u64, idle: u64) -> Option<Surplus> {
        let last = self.last.as_ref()?;
        let (interval, idle) = (last.interval, idle.min(last.set.shortest_window() / IDLE_PART));
        let is_over = now >= self.expires.max(self.next_expires) || self.demand.idle_for(now) >= idle.max(interval);
        if self.level() == 0 {
            if is_over {
                self.last = None;
            }
            return None;
        }
        if is_over {
            return self.give_back(u64::MAX, now);
        }
        if now >= self.expires {
            return self.turn(self.version, 0, now);
        }
        let needed = self.demand.per_interval(now, interval).saturating_mul(4);
        let excess = self.level().saturating_sub(needed);
        if excess > self.level() / 2 { self.give_back(excess, now) } else { None }
    }

    /// Whether a refill is under way or scheduled, or units on their way to the store.
    pub(super) fn is_changing(&self, now: u64) -> bool {
        now < self.asked_until || self.returning > 0
    }

    /// Whether units are on their way that were asked for under an earlier policy: they
    /// cannot be given back once the store has charged under the present one.
    pub(super) fn is_superseded(&self, version: u64, now: u64) -> bool {
        version == self.version && self.is_earlier && self.is_changing(now)
    }

    /// Without units, and without what they were leased under.
    fn emptied(&self) -> Self {
        let (asked, under_way, returned, returning) = (self.asked, self.under_way, self.returned, self.returning);
        // What was lost before is of other counters.
        Self { asked, known: asked, under_way, returned, returning, ..Self::default() }
    }

    /// Drops all units: the store has lost the counters that they were charged to.
    pub(super) fn forget(&mut self) {
        if self.last.as_ref().is_some_and(|last| !last.slots.is_empty()) {
            // Renewing restores what is held in flight.
            return;
        }
        let demand = mem::take(&mut self.demand);
        *self = Self { version: self.version, demand, ..self.emptied() };
    }
}

impl Evictable for Pool {
    fn is_idle(&self, before: u64) -> bool {
        self.level() == 0
            && self.returning == 0
            && self.under_way == 0
            && self.demand.since() < before
            && self.asked_until < before
    }
}
