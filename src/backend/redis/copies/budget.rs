//! How many units an instance may charge on its own before it reports again, and how
//! soon it reports. Times are nanoseconds on the store's clock. It counts nothing.
//!
//! Invariant: all instances that report a key together charge at most what was left
//! of it when they last knew, plus what comes back until they report.

use crate::{
    algorithm::CopiedState,
    backend::redis::plan::{CopiedTier, Kind},
};

/// The shortest time between two reports of a key.
pub(super) const SHORTEST: u64 = 10_000_000;

/// For how long a key that is new to this instance is decided by the store: until all
/// instances that a burst reaches are known to it.
const NEW: u64 = 2 * SHORTEST;

/// Below this limit, one unit is more than one percent.
const SMALL: f64 = 100.0;

/// For how long, at most, a key that was at its limit counts as near it.
const LONGEST_TIGHT: u64 = 10_000_000_000;

/// For how many intervals without a reply the last known counts decide.
pub(super) const MAX_STALENESS: u64 = 10;

/// How near to its limit a tier is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    /// Units left, and units that come back in a nanosecond.
    headroom: f64,
    refill: f64,
    /// When its window ends, how long the next one is, and what that admits.
    rolls: u64,
    window: u64,
    full: f64,
    /// Units beyond the limit.
    excess: u64,
}

impl Level {
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    fn of(tier: &CopiedTier, copied: CopiedState, now: u64) -> Self {
        let (quota, definition) = (tier.tier.quota(), &tier.definition);
        let limit = quota.limit();
        let window = crate::time::nanos(quota.window()).max(1);
        let none = Self { headroom: 0.0, refill: 0.0, rolls: u64::MAX, window, full: limit as f64, excess: 0 };
        match definition.kind {
            Kind::Bucket => {
                let refill = limit as f64 / window as f64;
                let used = copied.ends.saturating_sub(now) as f64 * refill;
                let headroom = definition.capacity as f64 - used;
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
                let excess = (-headroom).max(0.0) as u64;
                // A leaky bucket has no units ahead of its time.
                let headroom = if definition.is_leaky { 1.0 - used } else { headroom };
                Self { headroom: headroom.max(0.0), refill, excess, ..none }
            }
            Kind::SlidingWindow => {
                let start = copied.ends.saturating_sub(2 * window);
                let end = start.saturating_add(window);
                let (current, previous) = match now {
                    _ if now < end => (copied.current, copied.previous),
                    _ if now < copied.ends => (0, copied.current),
                    _ => (0, 0),
                };
                let end = if now < end { end } else { now - now % window + window };
                let weight = previous as f64 * end.saturating_sub(now) as f64 / window as f64;
                let used = current as f64 + weight;
                let headroom = if now < start { 0.0 } else { (limit as f64 - used).max(0.0) };
                Self {
                    headroom,
                    refill: previous as f64 / window as f64,
                    excess: current.saturating_sub(limit),
                    ..none
                }
            }
            _ => {
                let is_open = now < copied.ends;
                let aligned = definition.kind == Kind::FixedWindow;
                let next = if aligned { now - now % window } else { now }.saturating_add(window);
                let (rolls, used) = if is_open { (copied.ends, copied.current) } else { (next, 0) };
                let is_later = rolls > now.saturating_add(window);
                let headroom = if is_later { 0 } else { limit.saturating_sub(used) };
                let excess = if is_later { used } else { used.saturating_sub(limit) };
                Self { headroom: headroom as f64, rolls, excess, ..none }
            }
        }
    }
}

/// What an instance may charge beyond what it was granted while the store does not
/// reply: its part of what the fleet uses, at the pace at which that comes up, since
/// others use the same units. Also the same after a window has ended.
#[derive(Clone, Copy, Debug, Default)]
struct Alone {
    /// Units in a nanosecond.
    pace: f32,
    later_pace: f32,
    most: u64,
    later_most: u64,
}

impl Alone {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, which is not negative"
    )]
    fn after(&self, passed: u64) -> u64 {
        ((f64::from(self.pace) * passed as f64) as u64).min(self.most)
    }

    fn roll(&mut self) {
        (self.pace, self.most) = (self.later_pace, self.later_most);
    }
}

/// What is known of a key's use by the fleet, and what this instance may charge.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// Units that may be charged here before the next report.
    pub(super) units: u64,
    /// The same after `rolls`.
    after: u64,
    /// What this instance may charge while the store does not reply: what it was
    /// granted, and more from a time on.
    granted: u64,
    alone_from: u64,
    alone: Alone,
    /// What this instance and the fleet have used, of which the last intervals count most.
    used_here: f32,
    used: f32,
    /// When a window ends, and how long the next one is; 0 if that is not known.
    pub(super) rolls: u64,
    /// The same at the last report.
    ends: u64,
    window: u64,
    is_aligned: bool,
    /// For how long the next report may wait.
    pub(super) wait: u64,
    /// Whether the limit may be reached before the next report, and until when that
    /// is taken for granted.
    is_near: bool,
    tight_until: u64,
    /// What was left, when, and how fast the fleet uses units.
    headroom: f64,
    at: u64,
    rate: f32,
    /// What the fleet has used since when, to find that.
    counted: f32,
    counted_from: u64,
    /// Since when the key is known here without a gap.
    since: u64,
}

impl Budget {
    /// Of a key that is new to this instance.
    pub(super) fn new(since: u64) -> Self {
        Self { since, ..Self::default() }
    }

    /// After a report, of which this is the state of all tiers. This instance has charged
    /// `own` units since the last one. Returns units beyond the limit.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "estimates, which are not negative"
    )]
    pub(super) fn renew<'t>(
        &mut self,
        tiers: impl Iterator<Item = (&'t CopiedTier, CopiedState)>,
        (own, instances): (u64, u64),
        now: u64,
        interval: u64,
    ) -> u64 {
        let levels: Vec<(Level, bool)> = tiers
            .map(|(tier, copied)| (Level::of(tier, copied, now), tier.definition.kind == Kind::FixedWindow))
            .collect();
        let least = levels.iter().map(|(level, _)| *level).min_by(|one, other| one.headroom.total_cmp(&other.headroom));
        let Some(least) = least else { return 0 };
        let first = levels.iter().min_by_key(|(level, _)| level.rolls).copied().unwrap_or((least, false));
        let elapsed = now.saturating_sub(self.at) as f64;
        let has_rolled = least.rolls != self.ends;
        if self.at > 0 && elapsed > 0.0 {
            let used = (self.headroom + least.refill * elapsed - least.headroom).max(0.0);
            self.count(used as f32, now);
            if !has_rolled {
                let kept = (1.0 - elapsed.min(interval as f64) / interval as f64 / 4.0) as f32;
                self.used = self.used * kept + used as f32;
                self.used_here = self.used_here * kept + own as f32;
            }
        }
        if self.at == 0 {
            self.counted_from = now;
        }
        self.ends = least.rolls;
        (self.headroom, self.at) = (least.headroom, now);
        let shared = instances.max(1) as f64;
        let rate = f64::from(self.rate);
        // How long what is left lasts, at the rate at which the fleet uses it.
        let lasts = |headroom: f64, refill: f64| match rate - refill {
            drain if drain > 0.0 => headroom / drain,
            _ => f64::MAX,
        };
        let wait_for = |lasts: f64| ((lasts / 8.0).min(interval as f64) as u64).max(SHORTEST.min(interval));
        let lasting = lasts(least.headroom, least.refill);
        self.wait = wait_for(lasting);
        // What is near its end is not handed out as a whole: instances report at
        // different times. Of a small limit one unit is too many.
        if least.headroom < least.full / 20.0 + 1.0 {
            self.tight_until = now.saturating_add(least.window.saturating_mul(2).min(LONGEST_TIGHT));
        }
        let is_tight = now < self.tight_until;
        let is_near = |lasting: f64| is_tight || lasting < 2.0 * interval as f64;
        let part = |lasting: f64| match is_near(lasting) {
            true if least.full < SMALL => 0.0,
            true => 0.5,
            false => 1.0,
        };
        let is_new = now.saturating_sub(self.since) < NEW;
        let grant = |units: f64| if is_new { 0 } else { (units / shared) as u64 };
        self.units = grant(least.headroom * part(lasting) + least.refill * self.wait as f64);
        self.is_near = is_near(lasting);
        if is_new {
            self.wait = SHORTEST.min(interval);
        }
        let (level, is_aligned) = first;
        (self.rolls, self.window, self.is_aligned) = (level.rolls, level.window, is_aligned);
        let later =
            levels.iter().map(|(other, _)| if other.rolls == level.rolls { other.full } else { other.headroom });
        let later = later.fold(f64::MAX, f64::min);
        let lasting_later = lasts(later, 0.0);
        self.after = grant(later * part(lasting_later));
        let own_part = f64::from(self.used_here / self.used.max(1.0)).clamp(1.0 / shared, 1.0);
        // Where others may use up all that is left meanwhile, an equal part of the limit
        // is safe. Else it goes on as before.
        let staleness = (MAX_STALENESS * interval) as f64;
        let alone = |left: f64, lasting: f64, granted: u64| {
            let (part, pace) = match is_tight || lasting < staleness {
                true => (1.0 / shared, least.full / least.window as f64),
                false => (own_part, rate),
            };
            ((part * pace) as f32, ((part * left) as u64).saturating_sub(granted))
        };
        (self.granted, self.alone_from) = (self.units, now);
        let (pace, most) = alone(least.headroom + least.refill * staleness, lasting, self.granted);
        let (later_pace, later_most) = alone(later, lasting_later, 0);
        self.alone = Alone { pace, later_pace, most, later_most };
        levels.iter().map(|(level, _)| level.excess).max().unwrap_or(0)
    }

    /// The fleet has used units. Others report as seldom as this instance, each all at
    /// once: a rate is one over that time at least.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    fn count(&mut self, used: f32, now: u64) {
        self.counted += used;
        let (passed, least) = (now.saturating_sub(self.counted_from), self.wait.max(SHORTEST));
        if passed < least {
            self.rate = self.rate.max(self.counted / least as f32);
        } else {
            self.rate = (self.counted / passed as f32).max(self.rate * 0.75);
            (self.counted, self.counted_from) = (0.0, now);
        }
    }

    /// Whether the budget still holds. It lapses where others may use up what is left;
    /// else a report that is `expected` renews it.
    #[inline]
    pub(super) fn is_fresh(&self, now: u64, interval: u64, expected: Option<u64>) -> bool {
        let age = now.saturating_sub(self.at);
        match self.is_near {
            true => age <= self.wait + SHORTEST,
            false => age <= expected.unwrap_or(2) * interval,
        }
    }

    /// Units that this instance may have charged since the last report, if the store
    /// does not reply.
    pub(super) fn alone(&self, now: u64) -> u64 {
        self.granted.saturating_add(self.alone.after(now.saturating_sub(self.alone_from)))
    }

    /// Units that the last reply lacks were charged at a time, which may be in the next
    /// window.
    pub(super) fn deduct(&mut self, units: u64, at: u64) {
        if at >= self.rolls {
            self.after = self.after.saturating_sub(units);
        } else {
            self.units = self.units.saturating_sub(units);
            self.granted = self.granted.saturating_sub(units);
        }
    }

    /// When the counts were last renewed.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// A window has ended: what the next one admits is shared again. This instance has
    /// charged `own` units since the last report.
    pub(super) fn roll(&mut self, now: u64, own: u64) {
        let from = if self.is_aligned { now - now % self.window.max(1) } else { now };
        (self.units, self.granted, self.alone_from) = (self.after, own, from);
        self.alone.roll();
        self.rolls = from.saturating_add(self.window.max(1));
    }
}
