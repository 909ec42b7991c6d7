mod rates;

use super::*;
use crate::{descriptor::Descriptor, limiter::RateLimiter, quota::Quota};

#[test]
fn a_cooldown_never_ends_early() {
    let cooldowns = UpstreamKeys::default();
    let until = |key, now| cooldowns.latest_of([key].into_iter(), Timestamp::from_nanos(now));
    cooldowns.start(1, 100, 0);
    cooldowns.start(1, 50, 0);
    assert_eq!(until(1, 99), Some(Timestamp::from_nanos(100)));
    assert_eq!((until(1, 100), until(2, 0)), (None, None));
    assert!(cooldowns.any(Timestamp::from_nanos(99)) && !cooldowns.any(Timestamp::from_nanos(100)));
}

#[test]
fn a_cooldown_that_one_request_slept_through_is_over_for_all() {
    let limiter = RateLimiter::new(Quota::per_second(1)).unwrap();
    let call = Descriptor::new("/");
    let cooldowns = &limiter.inner.cooldowns;
    limiter.cool_down(&call, Duration::from_secs(100));
    let until = limiter.with_charges(&call, |charges| cooldowns.until(charges, limiter.now())).unwrap();
    cooldowns.start(1, 50, 0);
    let ends = |until| limiter.with_charges(&call, |charges| cooldowns.slept_out(charges, until));
    // It lasts longer than the request slept.
    ends(Timestamp::from_nanos(until.as_nanos() - 1));
    assert!(limiter.cooldown(&call).is_some());
    ends(until);
    assert!(limiter.cooldown(&call).is_none());
    assert!(cooldowns.any(Timestamp::from_nanos(49)) && !cooldowns.any(Timestamp::from_nanos(50)));
}

#[test]
fn a_reported_cooldown_never_changes_one_that_lasts_as_long() {
    let cooldowns = UpstreamKeys::default();
    let now = Timestamp::from_secs(1);
    let until = || cooldowns.latest_of([1].into_iter(), now).unwrap();
    let asked = |seconds| now.saturating_add(Duration::from_secs(seconds));
    cooldowns.start(1, asked(3).as_nanos(), now.as_nanos());
    cooldowns.start_reported(1, Duration::from_secs(3), now);
    cooldowns.start_reported(1, Duration::from_secs(2), now);
    assert_eq!(until(), asked(3));
    cooldowns.start_reported(1, Duration::from_secs(8), now);
    assert!(until() >= asked(8) && until() <= asked(10));
}

#[test]
fn the_keys_are_bounded_and_the_first_cooldown_to_end_is_dropped() {
    let cooldowns = UpstreamKeys::default();
    for key in 0..MOST_KEYS as u64 + 10 {
        cooldowns.start(key.into(), 1_000 + key, 0);
    }
    let keys = cooldowns.lock();
    assert_eq!(keys.len(), MOST_KEYS);
    assert!(!keys.contains_key(&9) && keys.contains_key(&10));
    drop(keys);
    cooldowns.start(u128::MAX, 1_000_000, 999_999);
    assert_eq!(cooldowns.lock().len(), 1, "cooldowns that are over are dropped first");
}

#[test]
fn the_end_is_put_off_at_random_by_at_most_a_quarter() {
    let (now, time) = (Timestamp::from_secs(5), Duration::from_secs(2));
    let ends: Vec<u64> = (0..1_000).map(|_| end(now, time, MOST_JITTER) - now.as_nanos()).collect();
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!((2_000_000_000..2_050_000_000).contains(first), "{first}");
    assert!((2_450_000_000..=2_500_000_000).contains(last), "{last}");
    let longest = end(now, Duration::from_secs(600), MOST_JITTER) - now.as_nanos();
    assert!((600_000_000_000..=610_000_000_000).contains(&longest), "{longest}");
    assert_eq!(end(now, Duration::MAX, MOST_JITTER), u64::MAX);
}

/// Changes the pace of the only key of a limiter, and looks at it.
struct Paced {
    limiter: RateLimiter,
    start: u64,
}

impl Paced {
    fn new() -> Self {
        let limiter = RateLimiter::new(Quota::per_second(10).burst(1)).unwrap();
        Self { start: limiter.now().as_nanos(), limiter }
    }

    fn at(&self, millis: u64) -> Timestamp {
        Timestamp::from_nanos(self.start + millis * 1_000_000)
    }

    fn with<R>(&self, run: impl FnOnce(&UpstreamKeys, &[Charge<'_>]) -> R) -> R {
        let cooldowns = &self.limiter.inner.cooldowns;
        self.limiter.with_charges(&Descriptor::new("/"), |charges| run(cooldowns, charges))
    }

    fn change(&self, millis: u64, change: impl FnOnce(&mut ResumeSchedule)) {
        self.with(|cooldowns, charges| cooldowns.change_schedule(&charges[0], self.at(millis), change));
    }

    /// When a request is sent; `None` for at once.
    fn claim(&self, claimed: Option<&Postponement>, millis: u64) -> Option<Postponement> {
        self.with(|cooldowns, charges| cooldowns.claim(charges, claimed, self.at(millis)))
    }

    fn keys(&self) -> usize {
        self.limiter.inner.cooldowns.lock().len()
    }
}

#[test]
fn a_request_at_the_time_of_its_pace_is_not_put_off() {
    let paced = Paced::new();
    paced.change(0, |pace| pace.pause_until(paced.at(500).as_nanos()));
    let until = |millis| paced.with(|cooldowns, charges| cooldowns.paced_until(charges, paced.at(millis)));
    assert_eq!((until(499), until(500)), (Some(paced.at(500)), None));
    assert!(paced.claim(None, 500).is_none());
    assert_eq!(paced.claim(None, 500).map(|put_off| put_off.at), Some(paced.at(600)), "one after the other");
}

#[test]
fn a_pace_that_is_over_is_forgotten_and_a_cooldown_is_not() {
    for cools_down in [false, true] {
        let paced = Paced::new();
        paced.change(0, |pace| pace.pause_until(paced.at(500).as_nanos()));
        if cools_down {
            let until = paced.at(200_000).as_nanos();
            let key = paced.with(|_, charges| charges[0].fingerprint());
            paced.limiter.inner.cooldowns.start(key, until, paced.start);
        }
        paced.claim(None, 30_000);
        assert_eq!(paced.keys(), 1, "it is remembered for a minute");
        paced.claim(None, 100_000);
        assert_eq!(
            (paced.keys(), paced.limiter.inner.cooldowns.is_paced()),
            match cools_down {
                true => (1, true),
                false => (0, false),
            }
        );
    }
}

/// Requests that were put off claim their times again then, and keep them otherwise.
#[test]
fn a_request_that_is_late_after_a_rejection_restarts_the_schedule() {
    let paced = Paced::new();
    paced.change(0, |pace| {
        let _ = pace.rejected_without_time(paced.start, paced.start);
    });
    let first = paced.claim(None, 1).unwrap();
    let second = paced.claim(None, 1).unwrap();
    assert_eq!((first.at, second.at), (paced.at(100), paced.at(200)));
    assert!(paced.claim(Some(&first), 101).is_none(), "it is on time");
    assert!(paced.claim(Some(&second), 260).is_none(), "it is late, and sent at once");
    let third = paced.claim(None, 261).unwrap();
    assert_eq!(third.at, paced.at(360), "one interval after it, and not after its time");
}
