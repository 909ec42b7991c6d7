//! The keys that are cooling down, and until when. Knows no requests and no
//! clock.
//!
//! Invariant: a cooldown never ends earlier than requested, unless more than
//! 65,536 keys cool down. Without any cooldown, a decision costs one load.

use std::{
    borrow::Borrow,
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use foldhash::fast::RandomState;

use crate::{
    backend::Charge,
    headers::draw,
    time::{Timestamp, nanos},
};

/// The most keys that cool down at once. One more drops the key whose cooldown
/// ends first.
const MOST_KEYS: usize = 65_536;

/// The end is put off by up to a quarter of the cooldown, and by at most this.
const MOST_JITTER: u64 = 10_000_000_000;

/// The keys that are cooling down.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Cooldowns {
    /// When the last of them ends, in nanoseconds.
    latest: AtomicU64,
    keys: Mutex<HashMap<u128, u64, RandomState>>,
    /// Set once other instances' cooldowns are received.
    pub(super) subscription: OnceLock<()>,
}

impl Cooldowns {
    fn lock(&self) -> MutexGuard<'_, HashMap<u128, u64, RandomState>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a cooldown, or extends the one that there is.
    pub(in crate::limiter) fn start(&self, key: u128, until: u64, now: u64) {
        let mut keys = self.lock();
        if keys.len() >= MOST_KEYS && !keys.contains_key(&key) {
            keys.retain(|_, end| *end > now);
            if keys.len() >= MOST_KEYS
                && let Some(first) = keys.iter().min_by_key(|(_, end)| **end).map(|(key, _)| *key)
            {
                keys.remove(&first);
            }
        }
        let end = keys.entry(key).or_insert(until);
        *end = until.max(*end);
        self.latest.fetch_max(*end, Ordering::Release);
    }

    /// Starts a cooldown that another instance reports. Changes nothing where
    /// the key cools down for as long already: an instance receives its own
    /// reports too.
    pub(in crate::limiter) fn start_reported(&self, key: u128, time: Duration, now: Timestamp) {
        let asked = now.saturating_add(time).as_nanos();
        if self.lock().get(&key).is_none_or(|end| *end < asked) {
            self.start(key, end(now, time), now.as_nanos());
        }
    }

    /// Whether any key is cooling down.
    #[inline]
    pub(in crate::limiter) fn any(&self, now: Timestamp) -> bool {
        self.latest.load(Ordering::Acquire) > now.as_nanos()
    }

    /// When the last cooldown of the charges' keys ends, if it has not ended.
    #[inline]
    pub(in crate::limiter) fn until<'a>(
        &self,
        charges: impl IntoIterator<Item: Borrow<Charge<'a>>>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let fingerprints = charges.into_iter().map(|charge| charge.borrow().fingerprint());
        if self.any(now) { self.latest_of(fingerprints, now) } else { None }
    }

    /// Called when a request has slept until `until` by the timer, but the clock
    /// shows an earlier time, because it was set back. Ends the cooldowns of its
    /// keys that the request slept through, for every request.
    #[cold]
    pub(in crate::limiter) fn slept_out<'a>(
        &self,
        charges: impl IntoIterator<Item: Borrow<Charge<'a>>>,
        until: Timestamp,
    ) {
        let mut keys = self.lock();
        let before = keys.len();
        for charge in charges {
            let key = charge.borrow().fingerprint();
            if keys.get(&key).is_some_and(|end| *end <= until.as_nanos()) {
                keys.remove(&key);
            }
        }
        if keys.len() < before {
            let latest = keys.values().copied().max();
            self.latest.store(latest.unwrap_or(0), Ordering::Release);
        }
    }

    /// Whether the cooldowns of all charges' keys end at `until`.
    #[cold]
    pub(in crate::limiter) fn all_end_at(&self, charges: &[Charge<'_>], until: Timestamp) -> bool {
        let keys = self.lock();
        charges.iter().all(|charge| keys.get(&charge.fingerprint()) == Some(&until.as_nanos()))
    }

    #[cold]
    fn latest_of(&self, fingerprints: impl Iterator<Item = u128>, now: Timestamp) -> Option<Timestamp> {
        let keys = self.lock();
        let until = fingerprints.filter_map(|key| keys.get(&key).copied()).max();
        until.filter(|until| *until > now.as_nanos()).map(Timestamp::from_nanos)
    }
}

/// When a cooldown of that time ends: put off at random, so that the instances
/// of a fleet do not all resume at once.
pub(in crate::limiter) fn end(now: Timestamp, time: Duration) -> u64 {
    let time = nanos(time);
    let most = (time / 4).min(MOST_JITTER);
    now.as_nanos().saturating_add(time).saturating_add(draw(most))
}

#[cfg(test)]
mod tests;
