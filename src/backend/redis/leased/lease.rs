//! The units that a pool holds: [`Lease`], and those that a reply brings: [`Leased`]. It
//! knows neither demand nor what is under way.
//!
//! Invariant: a unit leaves it once, and none is used after it expires.

use std::mem;

use super::{last_reply::LastReply, returned_units::ReturnedUnits};
use crate::backend::Outcome;

/// How long, in nanoseconds, a request may have read the clock before units were
/// leased that it takes: it was delayed since then. One from longer ago has another
/// clock.
const DELAYED: u64 = 1_000_000_000;

/// Units that were leased ahead.
#[derive(Debug)]
pub(super) struct Leased {
    pub(super) reply: LastReply,
    /// Names the policy that they are leased under, and the ask.
    pub(super) version: u64,
    pub(super) number: u32,
    pub(super) is_refill: bool,
    pub(super) units: u64,
    /// The first name of a unit in flight.
    pub(super) first_slot: u64,
    /// When the store was asked, and when they expire.
    pub(super) asked: u64,
    pub(super) expires: u64,
}

impl Leased {
    /// The names of units in flight, the first one last.
    fn slots(&self) -> Slots {
        let names = self.first_slot..self.first_slot.saturating_add(self.units);
        if self.reply.template.holds_units() { Slots(names.rev().collect()) } else { Slots::default() }
    }

    /// Gives them back, before any was used.
    pub(super) fn unused(self, now: u64) -> Option<ReturnedUnits> {
        let is_void = is_void(&self.reply, self.expires, now);
        let Slots(slots) = self.slots();
        let Self { reply, units, .. } = self;
        (units > 0).then_some(ReturnedUnits { reply, units, slots, is_void, returning: None })
    }
}

/// The units of a pool, under one policy. The earlier ones expire first.
#[derive(Debug)]
pub(super) struct Lease {
    reply: LastReply,
    /// When the store was asked for that, at the earliest; and when the earlier and the
    /// later units expire.
    asked: u64,
    expires: u64,
    next_expires: u64,
    units: u32,
    next_units: u32,
    /// Below this level a refill is needed, or needed at once.
    alarm: u32,
    slots: Option<Box<Slots>>,
}

/// What names each unit in flight that is not used, the next one last.
#[derive(Debug, Default)]
struct Slots(Vec<u64>);

impl Lease {
    pub(super) fn new(leased: Leased) -> Self {
        let slots = boxed(leased.slots());
        let Leased { reply, units, asked, expires, .. } = leased;
        let units = saturating(units);
        Self { reply, asked, expires, next_expires: 0, units, next_units: 0, alarm: 0, slots }
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

    pub(super) fn needs_refill(&self) -> bool {
        self.level() < u64::from(self.alarm)
    }

    pub(super) fn set_alarm(&mut self, level: u64) {
        self.alarm = saturating(level);
    }

    /// A request of `cost` units takes them, if there are enough. Returns also when they
    /// expire.
    pub(super) fn take(&mut self, cost: u64, now: u64) -> Option<(Outcome, u64)> {
        let left = u64::from(self.units).checked_sub(cost).filter(|_| self.units > 0)?;
        self.units = saturating(left);
        let slot = self.slots.as_mut().filter(|_| cost > 0).and_then(|slots| slots.0.pop());
        Some((self.outcome(slot.unwrap_or(0), now), self.expires))
    }

    /// The outcome of a request that took the unit in flight of this name.
    pub(super) fn outcome(&self, slot: u64, now: u64) -> Outcome {
        self.reply.outcome(self.level(), slot, self.age(now))
    }

    fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.asked)
    }

    /// Puts back units that a request took. They expire at `expires`.
    pub(super) fn put_back(&mut self, units: u64, expires: u64) {
        self.expires = if self.units == 0 { expires } else { self.expires.min(expires) };
        self.units = self.units.saturating_add(saturating(units));
    }

    /// Adds units that were leased and have not expired.
    pub(super) fn add(&mut self, leased: Leased) {
        let count = saturating(leased.units);
        let Slots(mut slots) = leased.slots();
        let is_held = !slots.is_empty();
        slots.extend(self.slots.take().map(|slots| slots.0).unwrap_or_default());
        self.slots = boxed(Slots(slots));
        if self.units == 0 {
            (self.units, self.expires) = (count, leased.expires);
        } else if is_held {
            (self.units, self.expires) = (self.units.saturating_add(count), self.expires.min(leased.expires));
        } else {
            self.append(count, leased.expires);
        }
        (self.asked, self.reply) = (leased.asked, leased.reply);
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

    /// Brings the later units forward where a request of `cost` units needs them. Returns
    /// what has expired.
    #[cold]
    pub(super) fn turn(&mut self, cost: u64, now: u64) -> Option<ReturnedUnits> {
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
    pub(super) fn give_back(&mut self, units: u64, now: u64) -> Option<ReturnedUnits> {
        let units = units.min(self.level());
        if units == 0 {
            return None;
        }
        let is_void = is_void(&self.reply, self.expires, now);
        let earlier = units.min(u64::from(self.units));
        self.units -= saturating(earlier);
        self.next_units -= saturating(units - earlier);
        let mut slots = Vec::new();
        if let Some(mut own) = self.slots.take() {
            let kept = own.0.len().saturating_sub(usize::try_from(units).unwrap_or(usize::MAX));
            slots = own.0.split_off(kept);
            self.slots = boxed(*own);
        }
        Some(ReturnedUnits { reply: self.reply.clone(), units, slots, is_void, returning: None })
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

    pub(super) fn reply(&self) -> &LastReply {
        &self.reply
    }

    /// Whether it has units in flight.
    pub(super) fn has_slots(&self) -> bool {
        self.slots.as_ref().is_some_and(|slots| !slots.0.is_empty())
    }
}

/// Whether units that expire then are worth nothing: all their windows are over. They
/// expire with the first one.
fn is_void(reply: &LastReply, expires: u64, now: u64) -> bool {
    reply.template.ends_with_window && now >= expires.saturating_add(reply.window_spread())
}

fn boxed(slots: Slots) -> Option<Box<Slots>> {
    (!slots.0.is_empty()).then(|| Box::new(slots))
}

/// Larger numbers count as this one.
fn saturating(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
