//! The controllers of keys: one for each key of which an upstream has said
//! something. Knows no requests and no clock.
//!
//! Invariant: a cooldown never ends earlier than requested, unless more than
//! 65,536 keys cool down. Without any cooldown, a decision costs one load.

use std::{
    any::Any,
    borrow::Borrow,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use foldhash::fast::RandomState;

use super::{
    aimd::KeyRate,
    resume::{ResumeSchedule, rate},
};
use crate::{
    backend::Charge,
    jitter::draw,
    policy::RateBounds,
    sync::lock,
    time::{Timestamp, nanos},
};

/// The most keys: see [`make_room`].
const MOST_KEYS: usize = 65_536;

/// The end is put off by at most this.
pub(super) const MOST_JITTER: u64 = 10_000_000_000;

/// What is known of the upstreams' keys.
#[derive(Debug, Default)]
pub(in crate::limiter) struct UpstreamKeys {
    /// When the last cooldown or pause ends, in nanoseconds.
    latest: AtomicU64,
    /// Whether any key has a resume schedule.
    is_paced: AtomicBool,
    keys: Mutex<Keys>,
    /// Keeps the listener for other instances' cooldowns, once they are received.
    pub(super) subscription: OnceLock<Arc<dyn Any + Send + Sync>>,
}

type Keys = HashMap<u128, Controller, RandomState>;

/// A slot that the resume schedules of its keys have put off.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Postponement {
    pub(in crate::limiter) at: Timestamp,
    /// When it was, or just after the last change of the schedule that it takes
    /// into account.
    pub(in crate::limiter) claimed: Timestamp,
}

/// What is known of a key. Boxed, since few keys have more than one of these.
#[derive(Debug, Default)]
struct Controller {
    /// The end of the cooldown.
    until: u64,
    schedule: Option<Box<ResumeSchedule>>,
    rate: Option<Box<KeyRate>>,
}

impl Controller {
    /// The end of the cooldown and of the pause.
    fn end(&self) -> u64 {
        self.schedule.as_ref().map_or(0, |schedule| schedule.next).max(self.until)
    }

    /// Zero without one, or once it is over.
    fn end_after(&self, now: Timestamp) -> u64 {
        Some(self.end()).filter(|end| *end > now.as_nanos()).unwrap_or(0)
    }

    fn is_needed(&self, now: Timestamp) -> bool {
        self.end_after(now) > 0 || self.rate.as_ref().is_some_and(|rate| rate.is_known(now))
    }
}

/// Makes room for another key. Drops those of no use any more, or else an eighth
/// of those that do not cool down, which have had no answer for longest; or else
/// the one whose cooldown ends first.
fn make_room(keys: &mut Keys, now: Timestamp) {
    keys.retain(|_, controller| controller.is_needed(now));
    if keys.len() < MOST_KEYS {
        return;
    }
    let rank = |controller: &Controller| {
        let last_feedback = controller.rate.as_ref().map_or(0, |rate| rate.last_feedback);
        (controller.end_after(now), last_feedback)
    };
    let mut ranked: Vec<_> = keys.iter().map(|(key, controller)| (rank(controller), *key)).collect();
    let without_cooldown = ranked.iter().filter(|((end, _), _)| *end == 0).count();
    let dropped = (without_cooldown / 8).max(1);
    ranked.select_nth_unstable(dropped - 1);
    for (_, key) in &ranked[..dropped] {
        keys.remove(key);
    }
}

impl UpstreamKeys {
    fn lock(&self) -> MutexGuard<'_, Keys> {
        lock(&self.keys)
    }

    /// Changes a key's controller, which may be new.
    fn change<R>(&self, key: u128, now: Timestamp, change: impl FnOnce(&mut Controller) -> R) -> R {
        let mut keys = self.lock();
        if keys.len() >= MOST_KEYS && !keys.contains_key(&key) {
            make_room(&mut keys, now);
        }
        let controller = keys.entry(key).or_default();
        let changed = change(controller);
        self.latest.fetch_max(controller.end(), Ordering::Release);
        changed
    }

    /// Starts a cooldown, or extends the one that there is.
    pub(super) fn start(&self, key: u128, until: u64, now: u64) {
        self.change(key, Timestamp::from_nanos(now), |controller| controller.until = controller.until.max(until));
    }

    /// Starts a cooldown that another instance reports. Changes nothing where
    /// the key cools down for as long already: an instance receives its own
    /// reports too.
    pub(super) fn start_reported(&self, key: u128, time: Duration, now: Timestamp) {
        let asked = now.saturating_add(time).as_nanos();
        if self.lock().get(&key).is_none_or(|controller| controller.until < asked) {
            self.start(key, end(now, time, MOST_JITTER), now.as_nanos());
        }
    }

    /// Whether any key is cooling down.
    pub(in crate::limiter) fn any(&self, now: Timestamp) -> bool {
        self.latest.load(Ordering::Acquire) > now.as_nanos()
    }

    /// When the last cooldown of the charges' keys ends, if it has not ended.
    pub(in crate::limiter) fn until<'a>(
        &self,
        charges: impl IntoIterator<Item: Borrow<Charge<'a>>>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.latest_of(charges.into_iter().map(|charge| charge.borrow().fingerprint()), now)
    }

    pub(super) fn latest_of(&self, keys: impl Iterator<Item = u128>, now: Timestamp) -> Option<Timestamp> {
        if !self.any(now) {
            return None;
        }
        let known = self.lock();
        let until = keys.filter_map(|key| known.get(&key).map(|controller| controller.until)).max();
        until.filter(|until| *until > now.as_nanos()).map(Timestamp::from_nanos)
    }

    /// Whether the cooldowns of all charges' keys end at `until`.
    pub(super) fn all_end_at(&self, charges: &[Charge<'_>], until: Timestamp) -> bool {
        let keys = self.lock();
        let ends = |key: u128| keys.get(&key).is_some_and(|controller| controller.until == until.as_nanos());
        charges.iter().all(|charge| ends(charge.fingerprint()))
    }

    /// Called when a request has slept until `until` by the timer, but the clock
    /// shows an earlier time, because it was set back. Ends the cooldowns of its
    /// keys that the request slept through, for every request.
    pub(in crate::limiter) fn slept_out<'a>(
        &self,
        charges: impl IntoIterator<Item: Borrow<Charge<'a>>>,
        until: Timestamp,
    ) {
        let mut keys = self.lock();
        let mut has_ended = false;
        for charge in charges {
            if let Some(controller) = keys.get_mut(&charge.borrow().fingerprint())
                && controller.until > 0
                && controller.until <= until.as_nanos()
            {
                (controller.until, controller.schedule) = (0, None);
                has_ended = true;
            }
        }
        if has_ended {
            let latest = keys.values().map(Controller::end).max();
            self.latest.store(latest.unwrap_or(0), Ordering::Release);
        }
    }

    /// Changes a key's schedule, which may be new, at the rate of `charge`. `None`
    /// where that has no rate.
    pub(super) fn change_schedule<R>(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        change: impl FnOnce(&mut ResumeSchedule) -> R,
    ) -> Option<R> {
        let rate = rate(charge)?;
        Some(self.change(charge.fingerprint(), now, |controller| {
            self.is_paced.store(true, Ordering::Relaxed);
            let schedule = controller.schedule.get_or_insert_default();
            schedule.set_rate(rate);
            change(schedule)
        }))
    }

    /// The upstream admitted a request of this charge, whose rate may have grown.
    pub(super) fn admitted(&self, charge: &Charge<'_>, sent: Timestamp) {
        if self.is_paced()
            && let Some(rate) = rate(charge)
            && let Some(Controller { schedule: Some(schedule), .. }) = self.lock().get_mut(&charge.fingerprint())
        {
            schedule.set_rate(rate);
            schedule.admitted(sent.as_nanos());
        }
    }

    /// When the schedules of the charges' keys permit the next request, if that
    /// is after `now`.
    pub(in crate::limiter) fn paced_until(&self, charges: &[Charge<'_>], now: Timestamp) -> Option<Timestamp> {
        if self.is_paced() { next_of(&self.lock(), charges, now) } else { None }
    }

    /// Whether any key has a schedule.
    pub(in crate::limiter) fn is_paced(&self) -> bool {
        self.is_paced.load(Ordering::Relaxed)
    }

    /// A request of these charges is sent as soon as its keys' schedules permit
    /// it. Returns that time, if it is after `now`. A request that has `claimed`
    /// its time before keeps it, unless a schedule has started again since.
    pub(in crate::limiter) fn claim(
        &self,
        charges: &[Charge<'_>],
        claimed: Option<&Postponement>,
        now: Timestamp,
    ) -> Option<Postponement> {
        if !self.is_paced() {
            return None;
        }
        let mut keys = self.lock();
        let restarted = schedules(&keys, charges).map(|schedule| schedule.rejected.max(schedule.restarted)).max()?;
        if let Some(postponement) = claimed.filter(|postponement| postponement.claimed.as_nanos() > restarted) {
            let mut restarts = false;
            for charge in charges {
                if let Some(Controller { schedule: Some(schedule), .. }) = keys.get_mut(&charge.fingerprint()) {
                    restarts |= schedule.restarts_if_late(postponement.at.as_nanos(), now.as_nanos());
                }
            }
            if !restarts {
                return None;
            }
        }
        let next = next_of(&keys, charges, now);
        for charge in charges {
            self.send(&mut keys, charge, (next.unwrap_or(now), now));
        }
        // A rejection or restart at this very moment was before the claim.
        next.map(|at| Postponement { at, claimed: Timestamp::from_nanos(now.as_nanos().max(restarted + 1)) })
    }

    /// A request of this charge is sent at `at`. Forgets a schedule that is over.
    fn send(&self, keys: &mut Keys, charge: &Charge<'_>, (at, now): (Timestamp, Timestamp)) {
        let key = charge.fingerprint();
        let Some(controller) = keys.get_mut(&key) else { return };
        match &mut controller.schedule {
            Some(schedule) if !schedule.is_over(now.as_nanos()) => {
                schedule.sends(at.as_nanos(), charge.cost);
                self.latest.fetch_max(schedule.next, Ordering::Release);
            }
            Some(_) => {
                controller.schedule = None;
                if controller.rate.is_none() && controller.until <= now.as_nanos() {
                    keys.remove(&key);
                }
                let is_paced =
                    |controller: &Controller| controller.schedule.is_some() || controller.until > now.as_nanos();
                if !keys.values().any(is_paced) {
                    self.is_paced.store(false, Ordering::Relaxed);
                }
            }
            None => {}
        }
    }

    /// A key's adaptive rate, within the bounds of the policy in force. One that is
    /// not known is at its start.
    pub(super) fn rate_of(&self, key: u128, bounds: &RateBounds, now: Timestamp) -> KeyRate {
        let keys = self.lock();
        let known = keys.get(&key).and_then(|controller| controller.rate.as_ref()).filter(|rate| rate.is_known(now));
        known.map_or_else(|| KeyRate::new(bounds), |rate| rate.within(bounds))
    }

    /// Changes a key's adaptive rate, because there is feedback. One that is not
    /// known is at its start.
    pub(super) fn adapt<R>(
        &self,
        key: u128,
        bounds: &RateBounds,
        now: Timestamp,
        change: impl FnOnce(&mut KeyRate) -> R,
    ) -> R {
        self.change(key, now, |controller| {
            controller.rate.take_if(|rate| !rate.is_known(now));
            let rate = controller.rate.get_or_insert_with(|| Box::new(KeyRate::new(bounds)));
            rate.last_feedback = now.as_nanos();
            change(rate)
        })
    }
}

fn schedules<'k>(keys: &'k Keys, charges: &'k [Charge<'_>]) -> impl Iterator<Item = &'k ResumeSchedule> {
    charges.iter().filter_map(|charge| keys.get(&charge.fingerprint())?.schedule.as_deref())
}

/// When the schedules of these charges' keys permit the next request, if that is
/// after `now`.
fn next_of(keys: &Keys, charges: &[Charge<'_>], now: Timestamp) -> Option<Timestamp> {
    let next = schedules(keys, charges).map(|schedule| schedule.next).max()?;
    (next > now.as_nanos()).then(|| Timestamp::from_nanos(next))
}

/// When a cooldown of that time ends: put off at random, by up to a quarter and
/// at most `most_jitter`, so that the instances of a fleet do not all resume at
/// once.
pub(super) fn end(now: Timestamp, time: Duration, most_jitter: u64) -> u64 {
    let time = nanos(time);
    now.as_nanos().saturating_add(time).saturating_add(draw((time / 4).min(most_jitter)))
}

#[cfg(test)]
mod tests;
