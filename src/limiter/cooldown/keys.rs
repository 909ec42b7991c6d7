//! The keys that are cooling down, and until when, and the paces at which keys
//! resume. Knows no requests and no clock.
//!
//! Invariant: a cooldown never ends earlier than requested, unless more than
//! 65,536 keys cool down. Without any cooldown, a decision costs one load.

use std::{
    borrow::Borrow,
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use foldhash::fast::RandomState;

use super::pace::{Pace, rate};
use crate::{
    backend::Charge,
    jitter::draw,
    time::{Timestamp, nanos},
};

/// The most keys that cool down at once. One more drops the key whose cooldown
/// ends first.
const MOST_KEYS: usize = 65_536;

/// The end is put off by at most this.
pub(super) const MOST_JITTER: u64 = 10_000_000_000;

/// The keys that are cooling down, and those with a pace.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Cooldowns {
    /// When the last cooldown or pause ends, in nanoseconds.
    latest: AtomicU64,
    /// Whether any key has a pace.
    is_paced: AtomicBool,
    keys: Mutex<Keys>,
    /// Set once other instances' cooldowns are received.
    pub(super) subscription: OnceLock<()>,
}

type Keys = HashMap<u128, Entry, RandomState>;

/// A slot that the paces of its keys have put off.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct PutOff {
    pub(in crate::limiter) at: Timestamp,
    /// When it was, or just after the last change of the schedule that it takes
    /// into account.
    pub(in crate::limiter) claimed: Timestamp,
}

#[derive(Debug, Default)]
struct Entry {
    /// The end of the cooldown.
    until: u64,
    pace: Option<Pace>,
}

impl Entry {
    /// The end of the cooldown and of the pause.
    fn end(&self) -> u64 {
        self.pace.map_or(0, |pace| pace.next).max(self.until)
    }
}

impl Cooldowns {
    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a key's entry, which may be new.
    fn change<R>(&self, key: u128, now: u64, change: impl FnOnce(&mut Entry) -> R) -> R {
        let mut keys = self.lock();
        if keys.len() >= MOST_KEYS && !keys.contains_key(&key) {
            keys.retain(|_, entry| entry.end() > now);
            if keys.len() >= MOST_KEYS
                && let Some(first) = keys.iter().min_by_key(|(_, entry)| entry.end()).map(|(key, _)| *key)
            {
                keys.remove(&first);
            }
        }
        let entry = keys.entry(key).or_default();
        let changed = change(entry);
        self.latest.fetch_max(entry.end(), Ordering::Release);
        changed
    }

    /// Starts a cooldown, or extends the one that there is.
    pub(in crate::limiter) fn start(&self, key: u128, until: u64, now: u64) {
        self.change(key, now, |entry| entry.until = entry.until.max(until));
    }

    /// Changes a key's pace, which may be new, at the rate of `charge`. `None`
    /// where that has no rate.
    pub(super) fn change_pace<R>(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        change: impl FnOnce(&mut Pace) -> R,
    ) -> Option<R> {
        let rate = rate(charge)?;
        Some(self.change(charge.fingerprint(), now.as_nanos(), |entry| {
            self.is_paced.store(true, Ordering::Relaxed);
            let pace = entry.pace.get_or_insert_default();
            pace.set_rate(rate);
            change(pace)
        }))
    }

    /// The upstream admitted a request of this charge, whose rate may have grown.
    pub(super) fn admitted(&self, charge: &Charge<'_>, sent: Timestamp) {
        if self.is_paced()
            && let Some(rate) = rate(charge)
            && let Some(Entry { pace: Some(pace), .. }) = self.lock().get_mut(&charge.fingerprint())
        {
            pace.set_rate(rate);
            pace.admitted(sent.as_nanos());
        }
    }

    /// When the paces of the charges' keys permit the next request, if that is
    /// after `now`.
    #[inline]
    pub(in crate::limiter) fn paced_until(&self, charges: &[Charge<'_>], now: Timestamp) -> Option<Timestamp> {
        if self.is_paced() { next_of(&self.lock(), charges, now) } else { None }
    }

    /// Whether any key has a pace.
    #[inline]
    pub(in crate::limiter) fn is_paced(&self) -> bool {
        self.is_paced.load(Ordering::Relaxed)
    }

    /// A request of these charges is sent as soon as its keys' paces permit it.
    /// Returns that time, if it is after `now`. A request that has `claimed` its
    /// time before keeps it, unless the schedule has started again since.
    #[inline]
    pub(in crate::limiter) fn claim(
        &self,
        charges: &[Charge<'_>],
        claimed: Option<&PutOff>,
        now: Timestamp,
    ) -> Option<PutOff> {
        if self.is_paced() { self.claim_of(charges, claimed, now) } else { None }
    }

    #[cold]
    fn claim_of(&self, charges: &[Charge<'_>], claimed: Option<&PutOff>, now: Timestamp) -> Option<PutOff> {
        let mut keys = self.lock();
        let paces = charges.iter().filter_map(|charge| keys.get(&charge.fingerprint())?.pace);
        let restarted = paces.map(|pace| pace.rejected.max(pace.restarted)).max()?;
        if let Some(put_off) = claimed.filter(|put_off| put_off.claimed.as_nanos() > restarted) {
            let mut restarts = false;
            for charge in charges {
                if let Some(pace) = keys.get_mut(&charge.fingerprint()).and_then(|entry| entry.pace.as_mut()) {
                    restarts |= pace.restarts_if_late(put_off.at.as_nanos(), now.as_nanos());
                }
            }
            if !restarts {
                return None;
            }
        }
        let next = next_of(&keys, charges, now);
        for charge in charges {
            let key = charge.fingerprint();
            let Some(entry) = keys.get_mut(&key) else { continue };
            entry.pace = entry.pace.filter(|pace| !pace.is_over(now.as_nanos()));
            if let Some(pace) = &mut entry.pace {
                pace.sends(next.unwrap_or(now).as_nanos(), charge.cost);
                self.latest.fetch_max(pace.next, Ordering::Release);
            } else if entry.until <= now.as_nanos() {
                keys.remove(&key);
            }
        }
        if keys.is_empty() {
            self.is_paced.store(false, Ordering::Relaxed);
        }
        // A rejection or restart at this very moment was before the claim.
        next.map(|at| PutOff { at, claimed: Timestamp::from_nanos(now.as_nanos().max(restarted + 1)) })
    }

    /// Starts a cooldown that another instance reports. Changes nothing where
    /// the key cools down for as long already: an instance receives its own
    /// reports too.
    pub(in crate::limiter) fn start_reported(&self, key: u128, time: Duration, now: Timestamp) {
        let asked = now.saturating_add(time).as_nanos();
        if self.lock().get(&key).is_none_or(|entry| entry.until < asked) {
            self.start(key, end(now, time, MOST_JITTER), now.as_nanos());
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
        let mut has_ended = false;
        for charge in charges {
            let key = charge.borrow().fingerprint();
            if let Some(entry) = keys.get_mut(&key)
                && entry.until > 0
                && entry.until <= until.as_nanos()
            {
                *entry = Entry::default();
                has_ended = true;
            }
        }
        if has_ended {
            let latest = keys.values().map(Entry::end).max();
            self.latest.store(latest.unwrap_or(0), Ordering::Release);
        }
    }

    /// Whether the cooldowns of all charges' keys end at `until`.
    #[cold]
    pub(in crate::limiter) fn all_end_at(&self, charges: &[Charge<'_>], until: Timestamp) -> bool {
        let keys = self.lock();
        charges
            .iter()
            .all(|charge| keys.get(&charge.fingerprint()).is_some_and(|entry| entry.until == until.as_nanos()))
    }

    #[cold]
    pub(super) fn latest_of(&self, fingerprints: impl Iterator<Item = u128>, now: Timestamp) -> Option<Timestamp> {
        let keys = self.lock();
        let until = fingerprints.filter_map(|key| keys.get(&key).map(|entry| entry.until)).max();
        until.filter(|until| *until > now.as_nanos()).map(Timestamp::from_nanos)
    }
}

/// When the paces of these charges' keys permit the next request, if that is
/// after `now`.
#[cold]
fn next_of(keys: &Keys, charges: &[Charge<'_>], now: Timestamp) -> Option<Timestamp> {
    let paces = charges.iter().filter_map(|charge| keys.get(&charge.fingerprint())?.pace);
    let next = paces.map(|pace| pace.next).max()?;
    (next > now.as_nanos()).then(|| Timestamp::from_nanos(next))
}

/// When a cooldown of that time ends: put off at random, by up to a quarter and
/// at most `most_jitter`, so that the instances of a fleet do not all resume at
/// once.
pub(in crate::limiter) fn end(now: Timestamp, time: Duration, most_jitter: u64) -> u64 {
    let time = nanos(time);
    now.as_nanos().saturating_add(time).saturating_add(draw((time / 4).min(most_jitter)))
}

#[cfg(test)]
mod tests;
