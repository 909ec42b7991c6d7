//! Windows of the calendar: months, weeks, and days with an offset.

use std::time::Duration;

use http::HeaderMap;
use tower_ratelimit::{
    Algorithm, Headers, Policy, Quota, RateLimiter, Rule,
    backend::{Share, Split},
    testing::ManualClock,
    time::Timestamp,
};

use super::{Bench, Descriptor, admitted};

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// 2024-02-01, 2024-03-01 and 2024-04-01: February of a leap year, and March.
const FEBRUARY: u64 = 1_706_745_600;
const MARCH: u64 = 1_709_251_200;
const APRIL: u64 = 1_711_929_600;

/// Monday, 2024-01-08.
const MONDAY: u64 = 1_704_672_000;

fn fixed(limit: u64, days: u64) -> Quota {
    Quota::new(limit, Duration::from_secs(days * DAY)).algorithm(Algorithm::FixedWindow)
}

fn at(bench: &Bench, seconds: u64) {
    bench.clock.set(Timestamp::from_secs(seconds));
}

#[test]
fn a_month_ends_where_the_calendar_says() {
    let bench = Bench::new(Quota::per_month(5));
    for (start, end) in [(FEBRUARY, MARCH), (MARCH, APRIL)] {
        at(&bench, start);
        let first = bench.ask("acme", 5);
        assert_eq!((first.remaining(), first.reset().as_secs()), (Some(0), end - start));
        at(&bench, end - 1);
        let rejected = bench.ask("acme", 1);
        assert_eq!(rejected.retry_after(), Some(Duration::from_secs(1)));
    }
}

#[test]
fn headers_have_the_real_end_and_no_length() {
    let bench = Bench::new(Policy::new().rule(Rule::new("plan").tier(Quota::per_month(1)).tier(Quota::per_day(9))));
    at(&bench, MARCH - 3 * DAY);
    bench.ask("acme", 1);
    let mut map = HeaderMap::new();
    Headers::ALL.stamp(&mut map, &bench.ask("acme", 1));
    assert_eq!(map["x-ratelimit-reset"], (3 * DAY).to_string());
    assert_eq!(map["retry-after"], (3 * DAY).to_string());
    assert_eq!(map["ratelimit-policy"], format!(r#""plan-month";q=1, "plan-1d";q=9;w={DAY}"#));
}

/// A month is another counter than 31 days, and than a month of another tier.
#[test]
fn a_month_and_its_longest_length_are_two_windows() {
    let rule = Rule::new("api").tier(Quota::per_month(3)).tier(fixed(9, 31)).tier(fixed(9, 31).offset(secs(HOUR)));
    let bench = Bench::new(Policy::new().rule(rule));
    let names: Vec<_> = bench.ask("acme", 1).tiers().iter().map(|tier| tier.name().into_owned()).collect();
    assert_eq!(names, ["api-month", "api-31d-1", "api-31d-2"]);
    let left: Vec<_> = bench.ask("acme", 1).tiers().iter().map(|tier| tier.remaining()).collect();
    assert_eq!(left, [1, 7, 7]);
}

#[test]
fn a_reload_keeps_what_was_used_in_the_month() {
    let bench = Bench::new(Policy::new().rule(Rule::new("plan").tier(Quota::per_month(10))));
    at(&bench, FEBRUARY + DAY);
    assert_eq!(bench.admitted("acme", 8), 8);
    for (limit, left) in [(20, 12), (8, 0), (9, 0)] {
        bench.limiter.set_policy(Policy::new().rule(Rule::new("plan").tier(Quota::per_month(limit)))).unwrap();
        assert_eq!(bench.admitted("acme", 50), left, "{limit}");
    }
    at(&bench, MARCH);
    assert_eq!(bench.admitted("acme", 50), 9);
}

#[test]
fn weeks_begin_on_monday_and_days_at_their_offset() {
    for (quota, border) in [
        (fixed(2, 7), MONDAY),
        (fixed(2, 14), MONDAY),
        (fixed(2, 7).offset(secs(9 * HOUR)), MONDAY + 9 * HOUR),
        (fixed(2, 1), MONDAY),
        (fixed(2, 1).offset(secs(9 * HOUR)), MONDAY + 9 * HOUR),
        (fixed(2, 1).offset(secs(15 * HOUR)), MONDAY - 9 * HOUR),
    ] {
        let bench = Bench::new(quota);
        at(&bench, border - 1);
        assert_eq!(bench.admitted("acme", 9), 2, "{quota:?}");
        assert_eq!(bench.ask("acme", 1).retry_after(), Some(secs(1)), "{quota:?}");
        at(&bench, border);
        assert_eq!(bench.admitted("acme", 9), 2, "{quota:?}");
        assert_eq!(bench.ask("acme", 1).reset(), quota.window(), "{quota:?}");
    }
}

/// The shares of instances sum to the limit in each month, also below their number.
#[test]
fn shares_of_a_month_sum_to_its_limit() {
    for limit in [10, 3, 2] {
        let instance = |index: u64| {
            let (clock, split) = (ManualClock::new(), Split::new(Share::new(index, 3).unwrap()));
            let limiter = RateLimiter::builder().policy(Quota::per_month(limit)).backend(split).clock(clock.clone());
            (limiter.build().unwrap(), clock)
        };
        let instances: Vec<_> = (0..3).map(instance).collect();
        let mut has_had = [0; 3];
        for time in [FEBRUARY, FEBRUARY + 20 * DAY, MARCH, MARCH + 20 * DAY, APRIL, APRIL + 29 * DAY] {
            let of_instance = |(limiter, clock): &(RateLimiter, ManualClock)| {
                clock.set(Timestamp::from_secs(time));
                admitted(limiter, &Descriptor::new("/").tenant("acme"), 20)
            };
            let shares: Vec<_> = instances.iter().map(of_instance).collect();
            let is_first = [FEBRUARY, MARCH, APRIL].contains(&time);
            assert_eq!(shares.iter().sum::<usize>(), if is_first { limit as usize } else { 0 }, "{limit} at {time}");
            has_had.iter_mut().zip(shares).for_each(|(all, share)| *all += share);
        }
        assert!(has_had.into_iter().all(|all| all >= limit as usize - 1), "{limit}: {has_had:?}");
    }
}

/// A request that may wait is admitted when the next month begins.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_the_month() {
    let bench = Bench::new(Policy::new().rule(Rule::new("plan").tier(Quota::per_month(1))));
    at(&bench, MARCH - 2);
    assert_eq!(bench.admitted("acme", 9), 1);
    let request = Descriptor::new("/").tenant("acme");
    let permit = bench.limiter.acquire(&request, secs(3)).await.unwrap();
    assert_eq!(permit.decision().wait(), secs(2));
    // The unit of March is reserved.
    at(&bench, MARCH);
    assert_eq!(bench.admitted("acme", 9), 0);
}

/// The pace of a smooth rule is that of the month's own length: February has 29 days.
#[tokio::test(start_paused = true)]
async fn a_pace_is_that_of_the_month() {
    // One unit a millisecond.
    let rule = Rule::new("plan").tier(Quota::per_month(29 * DAY * 1_000)).smooth(true).max_wait(secs(1));
    let bench = Bench::new(Policy::new().rule(rule));
    at(&bench, FEBRUARY);
    assert!(bench.ask("acme", 12 * DAY * 1_000 + 20).is_allowed());
    at(&bench, FEBRUARY + 12 * DAY);
    let request = Descriptor::new("/").tenant("acme");
    let permit = bench.limiter.acquire(&request, secs(1)).await.unwrap();
    assert_eq!(permit.decision().wait(), Duration::from_millis(20));
}

/// Units that are given back, and a debt that fills several months.
#[test]
fn a_debt_is_paid_back_by_months() {
    let rule = Rule::new("plan").tier(Quota::per_month(10)).settle(true);
    let bench = Bench::new(Policy::new().rule(rule));
    at(&bench, FEBRUARY + 5 * DAY);
    let request = Descriptor::new("/").tenant("acme");
    let take = || futures_util::FutureExt::now_or_never(bench.limiter.acquire(&request, Duration::ZERO)).unwrap();
    let permit = take().unwrap();
    // 1 and 24: all of February and March, and half of April.
    permit.add(24);
    let retry_after = bench.ask("acme", 1).retry_after().unwrap();
    assert_eq!(retry_after, secs(APRIL - FEBRUARY - 5 * DAY));
    at(&bench, APRIL);
    assert_eq!(bench.admitted("acme", 20), 5);
    // What is given back in time counts again.
    at(&bench, APRIL + 40 * DAY);
    let permit = take().unwrap();
    permit.add(9);
    assert_eq!(bench.admitted("acme", 20), 0);
    permit.give_back(4);
    assert_eq!(bench.admitted("acme", 20), 4);
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
