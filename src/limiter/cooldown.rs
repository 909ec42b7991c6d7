//! Keys that are left alone for a while, because who provides what they limit
//! has asked for it.

use std::{
    borrow::Borrow,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Backing, RateLimiter,
    conclude::rules,
    current::PolicySnapshot,
    decide::{Charges, Terms},
    later::{DONE, Decided, pending},
    report,
    room::Seat,
    timer::sleep_until,
};
use crate::{
    backend::{Charge, OwnedCharge, Receipt},
    decision::{Decision, RateLimitedKind},
    descriptor::Descriptor,
    headers::draw,
    observe::Event,
    policy::{CompiledPolicy, CompiledRule, Endpoints, RuleMatch},
    time::{Timestamp, nanos},
};

/// So many keys are held back at once; of more, those that are free first are
/// let go.
const MOST_KEYS: usize = 65_536;

/// The end is put off by up to a quarter, and by no more than this.
const MOST_JITTER: u64 = 10_000_000_000;

/// What is held back, and until when. Nearly always nothing is, which is one
/// load to see.
#[derive(Debug, Default)]
pub(super) struct Cooldowns {
    /// When the last of them ends, in nanoseconds.
    latest: AtomicU64,
    keys: Mutex<HashMap<u128, u64, foldhash::fast::RandomState>>,
    /// Whether other instances are heard.
    hears: AtomicBool,
}

impl Cooldowns {
    fn lock(&self) -> MutexGuard<'_, HashMap<u128, u64, foldhash::fast::RandomState>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a key back until then, or for longer, where it is already.
    fn hold(&self, key: u128, until: u64, now: u64) {
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

    /// The same for what another instance tells of: nothing changes where the
    /// key is held back for as long as is asked, as who told hears itself.
    pub(super) fn hold_for(&self, key: u128, time: Duration, now: Timestamp) {
        let asked = now.saturating_add(time).as_nanos();
        if self.lock().get(&key).is_none_or(|end| *end < asked) {
            self.hold(key, end(now, time), now.as_nanos());
        }
    }

    /// Whether other instances are heard.
    #[inline]
    pub(super) fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }

    /// Whether they were before; from now on they are.
    pub(super) fn begins_to_hear(&self) -> bool {
        self.hears.swap(true, Ordering::Relaxed)
    }

    /// Whether anything is.
    #[inline]
    pub(super) fn any(&self, now: Timestamp) -> bool {
        self.latest.load(Ordering::Acquire) > now.as_nanos()
    }

    /// Until when one of the charges' keys is, if that is not over.
    #[inline]
    pub(super) fn until<'a>(
        &self,
        charges: impl IntoIterator<Item: Borrow<Charge<'a>>>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let fingerprints = charges.into_iter().map(|charge| charge.borrow().fingerprint());
        if self.any(now) { self.latest_of(fingerprints, now) } else { None }
    }

    /// Somebody has slept until then, by the timer. The clock does not show it
    /// yet: it was set back, and what was told of these keys before is over all
    /// the same.
    #[cold]
    pub(super) fn slept_out<'a>(&self, charges: impl IntoIterator<Item: Borrow<Charge<'a>>>, until: Timestamp) {
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

    /// Whether each of the charges' keys is held back until then, and none for
    /// less.
    #[cold]
    fn holds_all(&self, charges: &[Charge<'_>], until: Timestamp) -> bool {
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

/// When what is held back for so long is free again: a little later, by
/// another time for each, so that not all come back at one instant.
fn end(now: Timestamp, time: Duration) -> u64 {
    let time = nanos(time);
    let most = (time / 4).min(MOST_JITTER);
    now.as_nanos().saturating_add(time).saturating_add(draw(most))
}

impl RateLimiter {
    /// Leaves the keys of a request alone for a while: all that apply to it,
    /// but those of rules that say [`hold_back(false)`](crate::Rule::upstream_feedback).
    ///
    /// That is what a client does when its provider asks it to slow down, and
    /// [`RateLimitLayer::client`](crate::RateLimitLayer::client) does it by
    /// itself. Whoever asks for such a key until then waits, in order, if it
    /// may wait for so long, and is rejected with the exact
    /// [`retry_after`](crate::RateLimited::retry_after) else. Who waits
    /// already and would have its turn before takes another one afterwards.
    /// What is under way goes on.
    ///
    /// The end is put off at random by up to a quarter of `time`, and by no
    /// more than ten seconds, so that the instances of a fleet do not all come
    /// back in one instant. What is held back longer already stays so: a hold
    /// never ends early.
    ///
    /// At most 65,536 keys are held back at once; of more, those are let go
    /// first that would be free first.
    ///
    /// Where instances share a backend that can tell
    /// ([`Backend::share_cooldown`](crate::backend::Backend::share_cooldown), such as
    /// `backend::Redis`), it is told all of them, for up to an hour.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::new(Quota::per_second(100)).unwrap();
    /// let call = Descriptor::new("/v1/charges").tenant("api.example.com");
    /// limiter.cool_down(&call, Duration::from_secs(2));
    ///
    /// let decision = limiter.check(&call).await;
    /// let after = decision.retry_after().unwrap();
    /// assert!(after > Duration::from_millis(1_900) && after <= Duration::from_millis(2_500));
    /// assert!(limiter.check(&call.clone().tenant("api.example.net")).await.is_allowed());
    /// # }
    /// ```
    pub fn cool_down(&self, descriptor: &Descriptor<'_>, time: Duration) {
        self.with_charges(descriptor, |rule| rule.upstream_feedback, |charges| self.cool_down_all(charges, time));
    }

    /// For how long a request like this is held back still.
    #[must_use]
    pub fn cooldown(&self, descriptor: &Descriptor<'_>) -> Option<Duration> {
        self.subscribe_cooldowns();
        let now = self.now();
        self.with_charges(descriptor, |rule| rule.upstream_feedback, |charges| self.inner.cooldowns.until(charges, now))
            .map(|until| until.saturating_since(now))
    }

    /// What such rules charge a request that are enforced.
    pub(super) fn with_charges<R>(
        &self,
        descriptor: &Descriptor<'_>,
        which: impl Fn(&CompiledRule) -> bool,
        act: impl FnOnce(&[Charge<'_>]) -> R,
    ) -> R {
        self.inner.current.with(|view| {
            let policy = &**view.snapshot().policy;
            if descriptor.exempt {
                return act(&[]);
            }
            let path = policy.spell(descriptor);
            let mut endpoints = Endpoints::new();
            policy.matching(descriptor, &path, &mut endpoints);
            let applies = |endpoint| match policy.apply(endpoint, descriptor, &path) {
                RuleMatch::Applies(applied) if !applied.rule.shadow && which(applied.rule) => {
                    Some(Charge::new(applied, descriptor.cost))
                }
                _ => None,
            };
            let charges: Charges<'_> = endpoints.into_iter().filter_map(applies).collect();
            act(&charges)
        })
    }

    /// The provider asks to be left alone.
    pub(super) fn cool_down_all(&self, charges: &[Charge<'_>], time: Duration) {
        if time.is_zero() {
            return;
        }
        self.subscribe_cooldowns();
        let now = self.now();
        let until = end(now, time);
        for charge in charges.iter().filter(|charge| charge.applied.rule.upstream_feedback) {
            self.inner.cooldowns.hold(charge.fingerprint(), until, now.as_nanos());
            report::cooldown_started(charge.applied.rule, time, now);
            self.share_cooldown(charge, time);
        }
    }

    /// Until when the backend is not to be asked for such a request. It may be
    /// one that knows nothing of what is held back. The one in this process
    /// does, and reserves a turn behind it; but not where another key of the
    /// request is free before: a reservation puts off whoever comes later, and
    /// others, who share that key, are not held back.
    #[inline]
    pub(super) fn held_off(&self, charges: &[Charge<'_>], now: Timestamp) -> Option<Timestamp> {
        let until = self.inner.cooldowns.until(charges, now)?;
        let reserves =
            matches!(self.inner.backend, Backing::Local(_)) && self.inner.cooldowns.holds_all(charges, until);
        (!reserves).then_some(until)
    }

    /// Lets a request wait, or rejects it, whose key is held back, before the
    /// backend is asked.
    #[cold]
    pub(super) fn hold_off(
        &self,
        snapshot: PolicySnapshot<'_>,
        (enforced, shadows): (&[Charge<'_>], &[Charge<'_>]),
        (now, until): (Timestamp, Timestamp),
        terms: Terms,
        decision: &mut Decision,
    ) -> Decided {
        let wait = nanos(until.saturating_since(now));
        let longest = enforced.iter().map(|charge| charge.max_wait).min().unwrap_or(0).min(nanos(terms.max_wait));
        let seat = if wait <= longest { self.seat(enforced) } else { Seat::NotAsked };
        let Seat::Taken(waiter) = seat else {
            let kind = if let Seat::Full = seat { RateLimitedKind::QueueFull } else { RateLimitedKind::QuotaExceeded };
            decision.reject(kind, now, Some(wait));
            snapshot.counters.count(Event::Rejected);
            report::decided(rules(enforced), Event::Rejected, decision, now);
            return DONE;
        };
        let keep = |charges| OwnedCharge::all(charges, snapshot.policy);
        let (limiter, enforced, shadows) = (self.clone(), keep(enforced), keep(shadows));
        let came = Instant::now();
        pending(Box::pin(async move {
            sleep_until(until, || limiter.now()).await;
            drop(waiter);
            if limiter.now() < until {
                limiter.inner.cooldowns.slept_out(enforced.iter().map(OwnedCharge::charge), until);
            }
            limiter.ask_anew((&enforced, &shadows), came, terms)
        }))
    }

    /// A request that was to go by now is held back: it takes another turn.
    #[cold]
    pub(super) fn another_turn(&self, receipt: &Receipt, came: Instant, terms: Terms) -> (Decision, Decided) {
        let charges: Vec<OwnedCharge> = receipt.kept().cloned().collect();
        self.ask_anew((&charges, &[]), came, Terms { counted: true, ..terms })
    }

    /// With what is left of the wait; by the policy in force, where that has
    /// room for all that it is charged, and at the rates that have been found
    /// by now. What it was to wait for may have gone on for hours.
    pub(super) fn ask_anew(
        &self,
        (enforced, shadows): (&[OwnedCharge], &[OwnedCharge]),
        came: Instant,
        terms: Terms,
    ) -> (Decision, Decided) {
        let (now, waited) = (self.now(), nanos(came.elapsed()));
        let max_wait = terms.max_wait.saturating_sub(Duration::from_nanos(waited));
        let terms = Terms { max_wait, waited: terms.waited.saturating_add(waited), ..terms };
        let mut decision = Decision::unlimited();
        let decided = self.inner.current.with(|view| {
            let in_force = view.snapshot();
            let outdated = enforced.first().filter(|first| !Arc::ptr_eq(first.policy(), in_force.policy));
            let moved = outdated.and_then(|_| charged_under(in_force.policy, (enforced, shadows)));
            let (policy, enforced, shadows) = match (&moved, enforced.first()) {
                (Some((enforced, shadows)), _) => (in_force.policy, &**enforced, &**shadows),
                (None, Some(first)) => (first.policy(), enforced, shadows),
                // Nothing is held back that nothing is charged for.
                (None, None) => return DONE,
            };
            let enforced = enforced.iter().map(|kept| kept.charge().having_waited(waited));
            let enforced: Charges<'_> = enforced.map(|charge| self.at_todays_rate(charge, now)).collect();
            let shadows = shadows.iter().map(OwnedCharge::charge);
            let shadows: Charges<'_> = shadows.map(|charge| self.at_todays_rate(charge, now)).collect();
            self.enforce(PolicySnapshot { policy, ..in_force }, &enforced, &shadows, now, terms, &mut decision)
        });
        (decision, decided)
    }
}

/// What is enforced by the tiers of another policy, and what of that which is
/// on trial is so there as well. A receipt is by one policy, so that it is all
/// or nothing.
fn charged_under(
    policy: &Arc<CompiledPolicy>,
    (enforced, shadows): (&[OwnedCharge], &[OwnedCharge]),
) -> Option<(Vec<OwnedCharge>, Vec<OwnedCharge>)> {
    let enforced: Option<Vec<_>> = enforced.iter().map(|kept| kept.under(policy)).collect();
    Some((enforced?, shadows.iter().filter_map(|kept| kept.under(policy)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;

    #[test]
    fn a_hold_never_ends_early() {
        let cooldown = Cooldowns::default();
        let until = |key, now| cooldown.latest_of([key].into_iter(), Timestamp::from_nanos(now));
        cooldown.hold(1, 100, 0);
        cooldown.hold(1, 50, 0);
        assert_eq!(until(1, 99), Some(Timestamp::from_nanos(100)));
        assert_eq!((until(1, 100), until(2, 0)), (None, None));
        assert!(cooldown.any(Timestamp::from_nanos(99)) && !cooldown.any(Timestamp::from_nanos(100)));
    }

    #[test]
    fn what_somebody_has_slept_out_is_over_for_everybody() {
        let limiter = RateLimiter::new(Quota::per_second(1)).unwrap();
        let call = Descriptor::new("/");
        let cooldown = &limiter.inner.cooldowns;
        limiter.cool_down(&call, Duration::from_secs(100));
        let until = limiter.with_charges(&call, |_| true, |charges| cooldown.until(charges, limiter.now())).unwrap();
        cooldown.hold(1, 50, 0);
        let ends = |until| limiter.with_charges(&call, |_| true, |charges| cooldown.slept_out(charges, until));
        // It lasts longer by now.
        ends(Timestamp::from_nanos(until.as_nanos() - 1));
        assert!(limiter.cooldown(&call).is_some());
        ends(until);
        assert!(limiter.cooldown(&call).is_none());
        assert!(cooldown.any(Timestamp::from_nanos(49)) && !cooldown.any(Timestamp::from_nanos(50)));
    }

    #[test]
    fn what_is_told_of_changes_nothing_that_lasts_as_long() {
        let cooldown = Cooldowns::default();
        let now = Timestamp::from_secs(1);
        let until = || cooldown.latest_of([1].into_iter(), now).unwrap();
        let asked = |seconds| now.saturating_add(Duration::from_secs(seconds));
        cooldown.hold(1, asked(3).as_nanos(), now.as_nanos());
        cooldown.hold_for(1, Duration::from_secs(3), now);
        cooldown.hold_for(1, Duration::from_secs(2), now);
        assert_eq!(until(), asked(3));
        cooldown.hold_for(1, Duration::from_secs(8), now);
        assert!(until() >= asked(8) && until() <= asked(10));
    }

    #[test]
    fn the_number_of_keys_is_bounded_and_the_first_to_be_free_leaves() {
        let cooldown = Cooldowns::default();
        for key in 0..MOST_KEYS as u64 + 10 {
            cooldown.hold(key.into(), 1_000 + key, 0);
        }
        let keys = cooldown.lock();
        assert_eq!(keys.len(), MOST_KEYS);
        assert!(!keys.contains_key(&9) && keys.contains_key(&10));
        drop(keys);
        cooldown.hold(u128::MAX, 1_000_000, 999_999);
        assert_eq!(cooldown.lock().len(), 1, "what is over makes room");
    }

    #[test]
    fn the_end_is_put_off_at_random_by_a_quarter_at_most() {
        let (now, time) = (Timestamp::from_secs(5), Duration::from_secs(2));
        let ends: Vec<u64> = (0..1_000).map(|_| end(now, time) - now.as_nanos()).collect();
        let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
        assert!((2_000_000_000..2_050_000_000).contains(first), "{first}");
        assert!((2_450_000_000..=2_500_000_000).contains(last), "{last}");
        let longest = end(now, Duration::from_secs(600)) - now.as_nanos();
        assert!((600_000_000_000..=610_000_000_000).contains(&longest), "{longest}");
        assert_eq!(end(now, Duration::MAX), u64::MAX);
    }
}
