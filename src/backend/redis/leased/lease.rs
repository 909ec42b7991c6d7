//! The units that a pool holds: [`Lease`]; those that a reply brings: [`Leased`]; and those
//! that are to be given back: [`ReturnedUnits`]. It knows neither demand nor exchanges.
//!
//! Invariant: a unit leaves it once, none is used after it expires, and none is refunded
//! once all its windows are over.

use std::mem;

use smallvec::{Array, SmallVec};

use super::{demand::DELAYED, last_reply::LastReply};
use crate::backend::{Outcome, TierState, TierStates, redis::plan::Change};

/// Units that were leased ahead.
#[derive(Debug)]
pub(super) struct Leased {
    pub(super) reply: LastReply,
    /// Names the policy that they are leased under.
    pub(super) version: u64,
    pub(super) units: u64,
    /// How many more the store would lease this instance now, about.
    pub(super) headroom: u64,
    /// When the store was asked, and when they expire.
    pub(super) asked: u64,
    pub(super) expires: u64,
}

/// The units of a pool, under one policy. The earlier ones expire first.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) reply: LastReply,
    /// When the store was asked for that, at the earliest; and when the earlier and the
    /// later units expire.
    asked: u64,
    expires: u64,
    next_expires: u64,
    units: u32,
    next_units: u32,
    /// Below this level more are needed.
    alarm: u32,
    /// How many units the store would have leased beyond these.
    pub(super) headroom: u32,
}

impl Lease {
    pub(super) fn new(leased: Leased) -> Self {
        let Leased { reply, units, headroom, asked, expires, .. } = leased;
        let (units, headroom) = (saturating(units), saturating(headroom));
        Self { reply, asked, expires, next_expires: 0, units, next_units: 0, alarm: 0, headroom }
    }

    pub(super) fn level(&self) -> u64 {
        u64::from(self.units) + u64::from(self.next_units)
    }

    /// Whether the earlier units are as many, and a request can take them at `now`.
    pub(super) fn has(&self, units: u64, now: u64) -> bool {
        self.is_valid(now) && u64::from(self.units) >= units
    }

    fn is_valid(&self, now: u64) -> bool {
        (self.asked..self.expires).contains(&now)
    }

    /// Whether `now` is of a clock that was set back since.
    pub(super) fn is_later_than(&self, now: u64) -> bool {
        now < self.asked
    }

    /// The time of a request that may have been delayed.
    pub(super) fn present(&self, now: u64) -> u64 {
        if (1..=DELAYED).contains(&self.asked.saturating_sub(now)) { self.asked } else { now }
    }

    /// Whether more are needed than it has.
    pub(super) fn is_low(&self) -> bool {
        self.level() < u64::from(self.alarm)
    }

    pub(super) fn set_alarm(&mut self, level: u64) {
        self.alarm = saturating(level);
    }

    /// A request of `cost` units takes them, of which the earlier ones are as many.
    #[inline]
    pub(super) fn take(&mut self, cost: u64, now: u64, states: &mut SmallVec<impl Array<Item = TierState>>) {
        self.units = saturating(u64::from(self.units).saturating_sub(cost));
        self.describe(now, states);
    }

    /// Adds the states of a request.
    #[inline]
    pub(super) fn describe(&self, now: u64, states: &mut SmallVec<impl Array<Item = TierState>>) {
        let age = now.saturating_sub(self.asked);
        self.reply.statuses(self.level()).for_each(|tier| states.push(TierState { age, ..tier }));
    }

    /// The outcome of a request with these states.
    pub(super) fn admit(&self, now: u64, tiers: TierStates) -> Outcome {
        self.reply.admit(now.saturating_sub(self.asked), tiers)
    }

    /// Adds units that were leased and have not expired.
    pub(super) fn add(&mut self, leased: Leased) {
        let count = saturating(leased.units);
        if self.units == 0 {
            (self.units, self.expires) = (count, leased.expires);
        } else {
            self.append(count, leased.expires);
        }
        self.headroom = saturating(leased.headroom);
        (self.asked, self.reply) = (leased.asked, leased.reply);
    }

    /// Adds units that expire last. Of three generations, those two become one that lose
    /// less by it: it expires with the first of them.
    fn append(&mut self, count: u32, expires: u64) {
        if expires <= self.expires {
            // They were asked for earlier in the same window, as far as their reply tells.
            (self.units, self.expires) = (self.units.saturating_add(count), expires);
            return;
        }
        let lost = |units: u32, until: u64, from: u64| u128::from(units) * u128::from(until.saturating_sub(from));
        let lost_by_next = lost(self.next_units, self.next_expires, self.expires);
        if self.next_units > 0 && lost_by_next < lost(count, expires, self.next_expires) {
            self.units = self.units.saturating_add(mem::take(&mut self.next_units));
            self.expires = self.expires.min(self.next_expires);
        }
        self.next_expires = if self.next_units == 0 { expires } else { self.next_expires.min(expires) };
        self.next_units = self.next_units.saturating_add(count);
    }

    /// Brings the later units forward where a request of `cost` units needs them. Returns
    /// the earlier ones if they have expired. The later ones may have as well: the next turn,
    /// or a sweep, returns those.
    #[cold]
    pub(super) fn turn(&mut self, cost: u64, now: u64) -> Option<ReturnedUnits> {
        if now >= self.expires {
            let surplus = self.give_back(u64::from(self.units), now);
            (self.units, self.expires) = (mem::take(&mut self.next_units), self.next_expires);
            return surplus;
        }
        if u64::from(self.units) < cost && self.next_units > 0 {
            self.expires = if self.units == 0 { self.next_expires } else { self.expires.min(self.next_expires) };
            self.units = self.units.saturating_add(mem::take(&mut self.next_units));
        }
        None
    }

    /// Up to so many units, the later ones last, to be given back.
    pub(super) fn give_back(&mut self, units: u64, now: u64) -> Option<ReturnedUnits> {
        let units = units.min(self.level());
        if units == 0 {
            return None;
        }
        let is_void = is_void(&self.reply, self.expires, now);
        let earlier = units.min(u64::from(self.units));
        self.units -= saturating(earlier);
        self.next_units -= saturating(units - earlier);
        Some(ReturnedUnits { reply: self.reply.clone(), units, is_void })
    }

    /// The units that do not expire before a refill that is asked for later.
    pub(super) fn lasting(&self, now: u64, interval: u64) -> u64 {
        let end = if self.reply.template.ends_with_window { 0 } else { interval + interval / 4 };
        let lasting = |units, expires: u64| if expires > now.saturating_add(end) { u64::from(units) } else { 0 };
        lasting(self.units, self.expires) + lasting(self.next_units, self.next_expires)
    }

    /// How long a window goes on that all units end with.
    pub(super) fn window_left(&self, now: u64) -> Option<u64> {
        (self.reply.template.ends_with_window && self.is_valid(now)).then(|| self.expires - now)
    }

    /// Whether the earlier units have expired.
    pub(super) fn has_expired(&self, now: u64) -> bool {
        now >= self.expires
    }

    pub(super) fn has_all_expired(&self, now: u64) -> bool {
        now >= self.expires.max(self.next_expires)
    }
}

/// Units to give back.
#[derive(Debug)]
pub(crate) struct ReturnedUnits {
    pub(super) reply: LastReply,
    pub(super) units: u64,
    /// Whether all their windows are over.
    pub(super) is_void: bool,
}

impl ReturnedUnits {
    /// The changes that give them back.
    pub(crate) fn changes(&self, now: Option<u64>) -> Vec<Change> {
        if self.is_void { Vec::new() } else { self.reply.refunds(self.units, now) }
    }
}

/// Whether units that expire then are worth nothing: all their windows are over. They
/// expire with the first one.
fn is_void(reply: &LastReply, expires: u64, now: u64) -> bool {
    reply.template.ends_with_window && now >= expires.saturating_add(reply.window_spread())
}

/// Larger numbers count as this one.
fn saturating(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
