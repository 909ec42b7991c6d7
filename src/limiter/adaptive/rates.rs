//! The adaptive rates of keys: bounded in number, forgotten after an hour
//! without feedback. Looking up a key does not create it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use foldhash::fast::RandomState;

use super::law::{Law, Times};
use crate::{
    policy::{RateBounds, RateSteps},
    time::Timestamp,
};

/// The rates of the keys with feedback in the last hour, at most [`MOST`] of
/// them.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Rates {
    shards: [Mutex<Shard>; SHARDS],
}

pub(super) const SHARDS: usize = 16;

/// The most keys. Those whose last feedback is the oldest are dropped.
pub(super) const MOST: usize = 65_536;

/// How long a key is known after its last feedback, in nanoseconds: an hour.
pub(super) const KNOWN_FOR: u64 = 3_600_000_000_000;

type Shard = HashMap<u128, Known, RandomState>;

#[derive(Debug)]
struct Known {
    law: Law,
    /// The rate in force: the law's, or slightly behind it.
    applied: f64,
    /// Units that have succeeded since the rate in force changed.
    since: f64,
    last_feedback: u64,
    /// Whether the upstream ever had something left after a request.
    has_left: bool,
}

impl Known {
    fn new(bounds: &RateBounds) -> Self {
        let law = Law::new(bounds);
        Self { applied: law.rate(), law, since: 0.0, last_feedback: 0, has_left: false }
    }

    /// Puts the law's rate in force, if that is another step. A counter whose
    /// limit changes rounds to whole units and may lose one, so a higher limit
    /// has to be worth a unit.
    fn apply(&mut self, ladder: &RateSteps) -> bool {
        let (from, to) = (ladder.step(self.applied), ladder.step(self.law.rate()));
        if from == to || from < to && (self.law.rate() / self.applied - 1.0) * self.since < 1.0 {
            return false;
        }
        self.applied = self.law.rate();
        self.since = 0.0;
        true
    }
}

impl Rates {
    #[allow(clippy::cast_possible_truncation, reason = "less than the number of shards")]
    fn shard(&self, key: u128) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[(key >> 64) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The step of a key on its rule's ladder.
    pub(super) fn step(&self, key: u128, ladder: &RateSteps, now: Timestamp) -> usize {
        let shard = self.shard(key);
        let known = shard.get(&key).filter(|known| is_known(known, now));
        let RateBounds { floor, ceiling, start, .. } = ladder.bounds;
        let rate = known.map_or(start, |known| known.applied);
        drop(shard);
        ladder.step(rate.clamp(floor, ceiling))
    }

    /// A key's rate, and how often the upstream rejected it.
    pub(super) fn look(&self, key: u128, bounds: &RateBounds, now: Timestamp) -> (f64, u64) {
        let shard = self.shard(key);
        let known = shard.get(&key).filter(|known| is_known(known, now));
        let (rate, rejections) = known.map_or((bounds.start, 0), |known| (known.law.rate(), known.law.rejections()));
        drop(shard);
        (rate.clamp(bounds.floor, bounds.ceiling), rejections)
    }

    /// A request of that cost succeeded, and the upstream has something left or
    /// not. Whether another step is in force as a result.
    #[allow(clippy::cast_precision_loss, reason = "a cost")]
    pub(super) fn succeeded(
        &self,
        key: u128,
        ladder: &RateSteps,
        times: Times,
        (cost, has_left): (u64, bool),
        now: Timestamp,
    ) -> bool {
        if cost == 0 {
            return false;
        }
        self.with(key, ladder, now, |bounds, known| {
            known.has_left |= has_left;
            if known.has_left && !has_left {
                return false;
            }
            let sent = times.sent.as_nanos().min(now.as_nanos());
            known.law.succeeded(bounds, (times.decided.as_nanos(), sent), cost as f64);
            known.since += cost as f64;
            known.apply(ladder)
        })
    }

    /// The new rate, if it changed.
    pub(super) fn rejected(&self, key: u128, ladder: &RateSteps, times: Times, now: Timestamp) -> Option<f64> {
        self.with(key, ladder, now, |bounds, known| {
            let changed = known.law.rejected(bounds, times.decided.as_nanos(), now.as_nanos());
            known.apply(ladder);
            changed.then(|| known.law.rate())
        })
    }

    fn with<R>(
        &self,
        key: u128,
        ladder: &RateSteps,
        now: Timestamp,
        change: impl FnOnce(&RateBounds, &mut Known) -> R,
    ) -> R {
        let bounds = &ladder.bounds;
        let mut shard = self.shard(key);
        if !shard.contains_key(&key) && shard.len() >= MOST / SHARDS {
            drop_oldest(&mut shard);
        }
        let known = shard.entry(key).or_insert_with(|| Known::new(bounds));
        if known.last_feedback > 0 && !is_known(known, now) {
            *known = Known::new(bounds);
        }
        known.law.bind(bounds);
        known.last_feedback = now.as_nanos().max(1);
        change(bounds, known)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
    }
}

fn is_known(known: &Known, now: Timestamp) -> bool {
    now.as_nanos().saturating_sub(known.last_feedback) <= KNOWN_FOR
}

/// Drops an eighth of the keys at a time, so that the cost per new key is small.
fn drop_oldest(shard: &mut Shard) {
    let mut last_feedback: Vec<u64> = shard.values().map(|known| known.last_feedback).collect();
    let last = (last_feedback.len() / 8).max(1).min(last_feedback.len()) - 1;
    let (_, oldest, _) = last_feedback.select_nth_unstable(last);
    let oldest = *oldest;
    let mut left = last + 1;
    shard.retain(|_, known| {
        let leaves = left > 0 && known.last_feedback <= oldest;
        left -= usize::from(leaves);
        !leaves
    });
}
