//! The units that a pool holds: [`Lease`]; those that a reply brings: [`Leased`]; and those
//! that are to be given back: [`ReturnedUnits`]. All of them have the [`LastReply`], by which
//! units are charged and described, and share its [`PoolTemplate`] with other pools of a rule.
//! It knows neither demand nor exchanges.
//!
//! Invariant: a unit leaves a lease once, none is used after it expires, and none is refunded
//! once all its windows are over. A status is as old as the reply that it is from.

use std::{collections::HashSet, mem, sync::Arc};

use foldhash::fast::RandomState;
use smallvec::{Array, SmallVec};

use super::demand::DELAYED;
use crate::{
    backend::{
        Outcome, OutcomeKind, TierState, TierStates,
        redis::{
            plan::{Change, ChargeSet, Definition, TierCharge, around_tag},
            wire::{ChargeReply, statuses},
        },
    },
    fingerprint::Fingerprint,
};

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
        // All their windows are over. They expire with the first one.
        let ends = || self.expires.saturating_add(self.reply.window_spread());
        let is_void = self.reply.template.ends_with_window && now >= ends();
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

/// Larger numbers count as this one.
fn saturating(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// What the store replied last about a pool, without its units.
#[derive(Clone, Debug)]
pub(super) struct LastReply {
    pub(super) template: Arc<PoolTemplate>,
    /// The part of the counters' names that other pools do not have. A short one takes no
    /// memory of its own.
    tag: SmallVec<[u8; 16]>,
    /// In microseconds, on the store's clock.
    pub(super) now: u64,
    pub(super) numbers: PackedStatus,
}

impl LastReply {
    pub(super) fn new(template: Arc<PoolTemplate>, tag: &str, reply: &ChargeReply) -> Self {
        Self {
            template,
            tag: SmallVec::from_slice(tag.as_bytes()),
            now: reply.now,
            numbers: PackedStatus::new(&reply.tiers),
        }
    }

    /// When units expire that were asked for at `asked`. Those that no window bounds
    /// are leased for `lasts`. The store has decided after that, so a window ends later
    /// than it.
    pub(super) fn expiry(&self, lasts: u64, asked: u64) -> u64 {
        let tiers = self.template.definitions().zip(self.statuses(0));
        let ends = tiers.map(|(definition, status)| if definition.ends_with_window() { status.reset } else { lasts });
        asked.saturating_add(ends.min().unwrap_or(0))
    }

    /// How many units the store could lease beyond these.
    pub(super) fn headroom(&self) -> u64 {
        let units = |(definition, status): (&Definition, TierState)| status.remaining / definition.cost.max(1);
        self.template.definitions().zip(self.statuses(0)).map(units).min().unwrap_or(0)
    }

    /// By how much the last of the windows outlasts the first.
    fn window_spread(&self) -> u64 {
        let resets = || self.statuses(0).map(|status| status.reset);
        resets().max().unwrap_or(0) - resets().min().unwrap_or(0)
    }

    /// The status of all tiers while `later` units were not taken.
    #[inline]
    pub(super) fn statuses(&self, later: u64) -> impl Iterator<Item = TierState> {
        let tiers = self.template.definitions().enumerate();
        statuses(tiers.map(|(index, definition)| (definition, self.numbers.of(index))), later, 0)
    }

    /// The outcome of a request that is admitted with these states, of an `age` since the
    /// store was asked, in nanoseconds.
    pub(super) fn admit(&self, age: u64, tiers: TierStates) -> Outcome {
        let decided_at = Some(self.now.saturating_mul(1_000).saturating_add(age));
        Outcome { answer: OutcomeKind::Admitted { wait: 0 }, tiers, decided_at, later: 0 }
    }

    /// What one request of the pool is charged.
    pub(super) fn charge_set(&self, now: Option<u64>) -> ChargeSet {
        self.template.charge_set(str::from_utf8(&self.tag).unwrap_or_default(), now)
    }

    /// The changes that refund so many units.
    pub(super) fn refunds(&self, units: u64, now: Option<u64>) -> Vec<Change> {
        let mut set = self.charge_set(now);
        set.tiers.iter_mut().for_each(|tier| tier.definition = tier.definition.repeated(units));
        Change::undo(&set, &self.admit(0, self.statuses(0).collect()))
    }
}

/// Three numbers of each tier.
#[derive(Clone, Debug)]
pub(super) enum PackedStatus {
    /// Of one tier, as most rules have. Windows longer than 71 minutes need more.
    Narrow([u32; 3]),
    Wide(Box<SmallVec<[[u64; 3]; 2]>>),
}

impl PackedStatus {
    pub(super) fn new(tiers: &[[u64; 3]]) -> Self {
        if let [[first, second, third]] = *tiers
            && let (Ok(first), Ok(second), Ok(third)) = (first.try_into(), second.try_into(), third.try_into())
        {
            return Self::Narrow([first, second, third]);
        }
        Self::Wide(Box::new(tiers.into()))
    }

    /// Those of the tier at an index.
    #[inline]
    pub(super) fn of(&self, tier: usize) -> [u64; 3] {
        match self {
            Self::Narrow(numbers) => numbers.map(u64::from),
            Self::Wide(all) => all.get(tier).copied().unwrap_or_default(),
        }
    }
}

/// How a unit of a pool is charged.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolTemplate {
    /// The interval of exchanges, in nanoseconds.
    pub(super) interval: u64,
    /// The index of the lane that leases them.
    pub(super) lane: usize,
    /// Whether all units end with a window, and so are worth nothing after it.
    pub(super) ends_with_window: bool,
    /// Whether the tag chooses the hash slot of a cluster.
    is_cluster: bool,
    tiers: Box<[TierTemplate]>,
}

/// How a unit is charged on one counter, whose name has the tag between `head` and `tail`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct TierTemplate {
    head: Box<str>,
    tail: Box<str>,
    definition: Definition,
}

impl PoolTemplate {
    /// The template of a charge set, and its tag. Where its counters have different tags,
    /// the template has their whole names, and there is none.
    fn of<'s>(set: &'s ChargeSet, prefix: &str, interval: u64, lane: usize) -> (Self, Option<&'s str>) {
        let names = || set.tiers.iter().map(|tier| around_tag(prefix, &tier.key));
        let tag = names().next().map_or("", |(_, tag, _)| tag);
        let tag = names().all(|(_, own, _)| own == tag).then_some(tag);
        let template = |tier: &TierCharge| {
            let (head, _, tail) = if tag.is_some() { around_tag(prefix, &tier.key) } else { (&*tier.key, "", "") };
            TierTemplate { head: head.into(), tail: tail.into(), definition: tier.definition }
        };
        let own = Self {
            interval,
            lane,
            ends_with_window: set.tiers.iter().all(|tier| tier.definition.ends_with_window()),
            is_cluster: !set.hash_tag.is_empty(),
            tiers: set.tiers.iter().map(template).collect(),
        };
        (own, tag)
    }

    /// What one request of the pool with this tag is charged.
    pub(super) fn charge_set(&self, tag: &str, now: Option<u64>) -> ChargeSet {
        let tier = |tier: &TierTemplate| TierCharge {
            key: [&*tier.head, tag, &*tier.tail].concat(),
            // Told only to requests that the store decides.
            counter: Fingerprint::NONE,
            definition: tier.definition,
            index: 0,
        };
        ChargeSet {
            hash_tag: if self.is_cluster { tag.to_owned() } else { String::new() },
            tiers: self.tiers.iter().map(tier).collect(),
            now,
            ..ChargeSet::default()
        }
    }

    #[inline]
    pub(super) fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.tiers.iter().map(|tier| &tier.definition)
    }

    /// The shortest window, in nanoseconds.
    pub(super) fn shortest_window(&self) -> u64 {
        self.definitions().map(|tier| tier.rate.window.saturating_mul(1_000)).min().unwrap_or(u64::MAX)
    }
}

/// Templates, of which equal ones are kept once.
#[derive(Debug, Default)]
pub(crate) struct Templates(HashSet<Arc<PoolTemplate>, RandomState>);

impl Templates {
    /// The template of a charge set, which equal ones share, and its tag.
    pub(super) fn share<'s>(
        &mut self,
        set: &'s ChargeSet,
        prefix: &str,
        interval: u64,
        lane: usize,
    ) -> (Arc<PoolTemplate>, &'s str) {
        let (own, tag) = PoolTemplate::of(set, prefix, interval, lane);
        let Some(tag) = tag else { return (Arc::new(own), "") };
        if let Some(known) = self.0.get(&own) {
            return (Arc::clone(known), tag);
        }
        let own = Arc::new(own);
        self.0.insert(Arc::clone(&own));
        (own, tag)
    }

    /// Drops those that no pool has. Returns how many are left.
    pub(super) fn drop_unused(&mut self) -> usize {
        self.0.retain(|template| Arc::strong_count(template) > 1);
        self.0.len()
    }
}
