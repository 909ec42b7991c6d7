//! What a quota admits, alone and beside others, and after it was changed. Several tests
//! are mistakes that other rate limiters make.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use tower_ratelimit::{Algorithm, Decision, Policy, Quota, RateLimitedKind, Rule};

use super::Bench;

/// Of a hundred rapid calls, one is admitted per second. The hourly limit is
/// charged for those, not for the 99 rejected ones.
#[test]
fn a_rejection_by_one_tier_charges_no_other() {
    let rule = Rule::new("both").tier(Quota::per_hour(100)).tier(Quota::per_second(1));
    let bench = Bench::new(Policy::new().rule(rule));
    for second in 0..50 {
        assert_eq!(bench.admitted("acme", 100), 1, "second {second}");
        bench.pass(1);
    }
    let hour = |decision: &Decision| decision.tiers().iter().find(|tier| tier.limit() == 100).unwrap().remaining();
    // 50 were charged, and in 50 seconds one is refilled.
    assert_eq!(hour(&bench.ask("acme", 0)), 51);
}

/// The same with windows, which do not refill meanwhile.
#[test]
fn a_rejection_by_one_window_charges_no_other() {
    let hour = Quota::per_hour(100).algorithm(Algorithm::FixedWindow);
    let second = Quota::per_second(1).algorithm(Algorithm::FixedWindow);
    let bench = Bench::new(Policy::new().rule(Rule::new("both").tier(hour).tier(second)));
    assert_eq!(bench.admitted("acme", 100), 1);
    assert_eq!(bench.ask("acme", 1).tiers()[0].remaining(), 99);
}

/// Four threads, a limit of 20, thousands of keys: 20 each.
#[test]
fn racing_threads_are_admitted_exactly_the_limit() {
    const KEYS: usize = 4_000;
    let bench = Bench::new(Quota::per_hour(20));
    let admitted: Vec<_> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (key, admitted) in admitted.iter().enumerate() {
                    admitted.fetch_add(bench.admitted(&key.to_string(), 7), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.iter().filter(|admitted| admitted.load(Ordering::Relaxed) != 20).count(), 0);
}

/// `per_second(100)` is a hundred a second, not one every hundred seconds.
#[test]
fn per_second_means_per_second() {
    for (quota, window) in [
        (Quota::per_second(100), 1),
        (Quota::per_minute(100), 60),
        (Quota::per_hour(100), 60 * 60),
        (Quota::per_day(100), 24 * 60 * 60),
    ] {
        let bench = Bench::new(quota);
        assert_eq!(bench.admitted("acme", 1_000), 100, "at once, in {window} s");
        bench.pass(window);
        assert_eq!(bench.admitted("acme", 1_000), 100, "after {window} s");
        bench.clock.advance(Duration::from_secs(window) / 100);
        assert_eq!(bench.admitted("acme", 1_000), 1, "after a hundredth of {window} s");
    }
}

/// Raised from 60 to 600 a minute after 1,000 s: no debt of 1,000 s, and the
/// reported limit is the one in force.
#[test]
fn a_changed_quota_takes_effect_at_once() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let minute = |limit| Quota::per_minute(limit).algorithm(algorithm);
        let bench = Bench::new(minute(60));
        bench.pass(1_020);
        assert_eq!(bench.admitted("acme", 40), 40);

        bench.limiter.set_policy(minute(600)).unwrap();
        assert_eq!(
            (bench.ask("acme", 0).limit(), bench.ask("acme", 0).remaining()),
            (Some(600), Some(560)),
            "{algorithm}"
        );
        assert_eq!(bench.admitted("acme", 1_000), 560, "{algorithm}");

        bench.limiter.set_policy(minute(60)).unwrap();
        let rejected = bench.ask("acme", 1);
        assert_eq!((rejected.limit(), rejected.remaining()), (Some(60), Some(0)), "{algorithm}");
        assert!(!rejected.is_allowed(), "{algorithm}");
    }
}

/// One request, an idle time just too short to be forgotten, a burst: a hundred
/// plus the refill, not 197.
#[test]
fn an_idle_key_gets_no_second_burst() {
    let quota = Quota::per_minute(60).burst(100);
    for idle in [1, 98, 99, 100, 101, 102, 119, 120, 200, 3_600] {
        let bench = Bench::new(quota);
        assert_eq!(bench.admitted("acme", 1), 1);
        bench.pass(idle);
        // Other tenants' requests evict idle keys.
        for other in 0..200 {
            bench.admitted(&format!("other-{other}"), 1);
        }
        assert_eq!(bench.admitted("acme", 500), 100, "after {idle} s");
        bench.pass(1);
        assert_eq!(bench.admitted("acme", 500), 1, "after {idle} s and one more");
    }
}

#[test]
fn no_limit_and_no_window_overflows() {
    let burst = u64::from(u32::MAX);
    let bench = Bench::new(Quota::per_day(1).burst(burst));
    assert!(bench.ask("acme", burst).is_allowed());
    assert_eq!(bench.ask("acme", 1).retry_after(), Some(Duration::from_secs(86_400)));

    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let bench = Bench::new(Quota::new(5, Duration::from_secs(u64::MAX)).algorithm(algorithm));
        assert_eq!(bench.admitted("acme", 10), 5, "{algorithm}: a window of u64::MAX seconds");
    }

    let bench = Bench::new(Quota::per_second(600_000_000));
    assert!(bench.ask("acme", 600_000_000).is_allowed());
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(bench.ask("acme", 0).remaining(), Some(600_000), "a millisecond of 600 million a second");
}

/// A limit below usage rejects until usage has dropped. A limit of zero always
/// rejects.
#[test]
fn a_limit_below_usage_or_of_zero_rejects() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ] {
        let minute = |limit| Quota::per_minute(limit).algorithm(algorithm);
        let bench = Bench::new(minute(100));
        assert_eq!(bench.admitted("acme", 200), 100, "{algorithm}");

        bench.limiter.set_policy(minute(10)).unwrap();
        let rejected = bench.ask("acme", 1);
        assert!(!rejected.is_allowed(), "{algorithm}");
        assert_eq!(rejected.remaining(), Some(0), "{algorithm}");
        bench.clock.advance(rejected.retry_after().unwrap() - Duration::from_nanos(1));
        assert!(!bench.ask("acme", 1).is_allowed(), "{algorithm}: before retry_after");
        bench.clock.advance(Duration::from_nanos(1));
        assert!(bench.ask("acme", 1).is_allowed(), "{algorithm}: at retry_after");

        bench.limiter.set_policy(minute(0)).unwrap();
        bench.pass(86_400);
        let rejected = bench.ask("acme", 1);
        assert_eq!(rejected.rejection(), Some(RateLimitedKind::NeverFits), "{algorithm}");
        assert_eq!(rejected.retry_after(), None, "{algorithm}");

        bench.limiter.set_policy(minute(10)).unwrap();
        assert_eq!(bench.admitted("acme", 20), 10, "{algorithm}: in force again");
    }
}
