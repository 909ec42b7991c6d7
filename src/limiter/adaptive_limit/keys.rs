//! The adaptive concurrency limits of keys: [`AdaptiveLimits`]. Knows no requests and no clock.
//!
//! Invariant: memory is bounded, whatever keys come.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use foldhash::fast::RandomState;

use super::gradient::GradientState;
use crate::{backend::Charge, policy::LimitSteps, time::Timestamp};

/// The adaptive limits of all keys.
#[derive(Debug, Default)]
pub(in crate::limiter) struct AdaptiveLimits(Mutex<Keys>);

type Keys = HashMap<u128, KeyLimit, RandomState>;

#[derive(Debug)]
struct KeyLimit {
    state: GradientState,
    used_at: Timestamp,
}

/// The most keys. One takes less than 1 KB.
const MOST_KEYS: usize = 4_096;

/// A key that was not used for so long, in nanoseconds, starts again.
const KNOWN_FOR: u64 = 3_600_000_000_000;

impl AdaptiveLimits {
    /// Reads or changes the state of a charge's key. One that is not known is at its start.
    pub(super) fn with<R>(
        &self,
        charge: &Charge<'_>,
        steps: &LimitSteps,
        now: Timestamp,
        change: impl FnOnce(&mut GradientState) -> R,
    ) -> R {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= MOST_KEYS && !keys.contains_key(&charge.fingerprint()) {
            make_room(&mut keys);
        }
        let new = || KeyLimit { state: GradientState::new(&steps.bounds), used_at: now };
        let limit = keys.entry(charge.fingerprint()).or_insert_with(new);
        if now.as_nanos().saturating_sub(limit.used_at.as_nanos()) > KNOWN_FOR {
            *limit = new();
        }
        limit.used_at = now;
        limit.state.bind(&steps.bounds);
        change(&mut limit.state)
    }
}

/// Drops the eighth of the keys that were not used for longest.
fn make_room(keys: &mut Keys) {
    let mut used: Vec<_> = keys.iter().map(|(key, limit)| (limit.used_at, *key)).collect();
    let dropped = used.len() / 8;
    used.select_nth_unstable(dropped);
    used[..dropped].iter().for_each(|(_, key)| drop(keys.remove(key)));
}
