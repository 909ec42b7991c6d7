//! The adaptive concurrency limits of keys: [`AdaptiveLimits`]. Knows no requests and no clock.
//!
//! Invariant: memory is bounded, whatever keys come. A limit that is forgotten lives on in the
//! requests that it has admitted, and is lost with them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::fast::RandomState;

use super::gradient::{GradientState, LimitSummary, Window};
use crate::{
    backend::Charge,
    fingerprint::Fingerprint,
    policy::{LimitBounds, LimitSteps},
    store::{Lock, Shards},
    time::Timestamp,
};

/// The adaptive limits of all keys.
#[derive(Debug)]
pub(in crate::limiter) struct AdaptiveLimits(Shards<Keys>);

type Keys = HashMap<u128, Known, RandomState>;

#[derive(Debug)]
struct Known {
    limit: Arc<KeyLimit>,
    used_at: Timestamp,
}

/// The limit of one key. Admitted requests keep it, and are measured without a look-up.
#[derive(Debug)]
pub(in crate::limiter) struct KeyLimit {
    pub(super) key: Fingerprint,
    /// The rule's id.
    pub(super) rule: &'static str,
    /// That of `state`, in whole units: to be read without its lock.
    limit: AtomicU64,
    state: Lock<GradientState>,
}

const SHARDS: usize = 16;

/// The most keys of a shard: twice its part of 4,096, since chance spreads them. One takes
/// less than 1 KB.
const MOST_KEYS: usize = 2 * 4_096 / SHARDS;

/// A key that was not used for so long, in nanoseconds, starts again.
const KNOWN_FOR: u64 = 3_600_000_000_000;

impl Default for AdaptiveLimits {
    fn default() -> Self {
        Self(Shards::new(SHARDS))
    }
}

impl AdaptiveLimits {
    /// The limit of a charge's key. One that is not known is at its start.
    pub(super) fn of(&self, charge: &Charge<'_>, steps: &LimitSteps, now: Timestamp) -> Arc<KeyLimit> {
        let mut keys = self.0.lock(self.0.index_of(charge.key));
        if let Some(known) = keys.get_mut(&charge.fingerprint())
            && now.as_nanos().saturating_sub(known.used_at.as_nanos()) <= KNOWN_FOR
        {
            known.used_at = now;
            return Arc::clone(&known.limit);
        }
        let limit = Arc::new(KeyLimit::new(charge.key, charge.rule.id, &steps.bounds));
        add(&mut keys, Known { limit: Arc::clone(&limit), used_at: now });
        limit
    }
}

impl KeyLimit {
    fn new(key: Fingerprint, rule: &'static str, bounds: &LimitBounds) -> Self {
        let state = GradientState::new(bounds);
        Self { key, rule, limit: AtomicU64::new(whole(state.limit())), state: Lock::new(state) }
    }

    /// The index of the highest step that it reaches.
    pub(super) fn step(&self, steps: &LimitSteps) -> usize {
        steps.step(self.limit.load(Ordering::Relaxed))
    }

    pub(super) fn summary(&self) -> LimitSummary {
        self.state.lock().summary()
    }

    /// As [`GradientState::admitted`], under the bounds of the policy in force.
    pub(super) fn admitted(&self, bounds: &LimitBounds, cost: u64, in_flight: u64, most: u64) {
        let mut state = self.state.lock();
        state.bounds = *bounds;
        state.admitted(cost, in_flight, most);
    }

    /// As [`GradientState::answered`]. Also returns what is known after the window.
    pub(super) fn answered(&self, latency: u64, now: Timestamp) -> Option<(Window, LimitSummary)> {
        let mut state = self.state.lock();
        let window = state.answered(latency, now.as_nanos())?;
        self.limit.store(whole(state.limit()), Ordering::Relaxed);
        Some((window, state.summary()))
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within the bounds")]
fn whole(limit: f64) -> u64 {
    limit as u64
}

/// Adds a key. In a full shard it drops the eighth of the keys that were not used for longest.
#[cold]
fn add(keys: &mut Keys, known: Known) {
    if keys.len() >= MOST_KEYS {
        let mut used: Vec<_> = keys.iter().map(|(key, known)| (known.used_at, *key)).collect();
        let dropped = used.len() / 8;
        used.select_nth_unstable(dropped);
        used[..dropped].iter().for_each(|(_, key)| drop(keys.remove(key)));
    }
    keys.insert(known.limit.key.to_u128(), known);
}

#[cfg(test)]
#[cfg(feature = "test-util")]
mod tests;
