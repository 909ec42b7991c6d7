//! A clock that is set back by an hour: active keys wait for their window (or the
//! time of their burst) and the longest wait, not for an hour.

use super::*;

const HOUR: u64 = 3_600 * SECOND;
const LIMIT: u64 = 10;

/// How long a state that is full can be ahead of the clock.
fn span(quota: &Quota) -> u64 {
    nanos(quota.window()) * if quota.counted_by() == Algorithm::SlidingWindow { 2 } else { 1 }
}

/// All algorithms, with windows that divide an hour and one that does not.
fn quotas() -> impl Iterator<Item = Quota> {
    let windows = [1, 7, 60, 600].map(Duration::from_secs);
    Algorithm::WINDOWED
        .into_iter()
        .flat_map(move |algorithm| windows.map(|window| Quota::new(LIMIT, window).algorithm(algorithm)))
}

fn use_up(bench: &Bench, now: u64) -> u64 {
    (0..3 * LIMIT).filter(|_| bench.take("acme", 1, now).is_some()).count() as u64
}

#[test]
fn a_key_is_rejected_for_its_span_at_most() {
    for quota in quotas() {
        for settle in [false, true] {
            let bench = Bench::new(tier(quota, settle));
            let used = use_up(&bench, NOW + 123);
            let back = NOW - HOUR;
            assert_eq!(use_up(&bench, back), 0, "{quota:?}: what was used stays used");
            let free = bench.earliest("acme", 1, back).unwrap();
            assert!(free > back && free - back <= span(&quota), "{quota:?}: rejected for {}", free - back);
            let whole = if quota.counted_by() == Algorithm::LeakyBucket { 1 } else { LIMIT };
            assert_eq!(used, whole, "{quota:?}");
            assert_eq!(use_up(&bench, back + 2 * span(&quota)), whole, "{quota:?}: the whole quota is back");
        }
    }
}

#[test]
fn reservations_of_the_longest_wait_stay() {
    for quota in quotas() {
        let bench = Bench::new(tier(quota, false));
        let request = Descriptor::new("/").tenant("acme");
        let longest = (0..3 * LIMIT).map(|_| match bench.ask(&request, NOW, u64::MAX).0.answer {
            OutcomeKind::Admitted { wait } => wait,
            _ => 0,
        });
        let longest = longest.max().unwrap();
        let back = NOW - 2 * HOUR;
        let free = bench.earliest("acme", 1, back).unwrap();
        assert!(free - back <= longest + span(&quota), "{quota:?}: {} after {longest}", free - back);
        // Windows of the wall clock move by whole windows.
        let least = longest.saturating_sub(nanos(quota.window()));
        assert!(free - back >= least, "{quota:?}: reservations of {longest} were lost, free after {}", free - back);
    }
}

/// Threads with an old reading of the clock move nothing.
#[test]
fn a_clock_that_is_a_few_seconds_behind_is_waited_for() {
    for quota in quotas() {
        let bench = Bench::new(tier(quota, false));
        use_up(&bench, NOW);
        let free = bench.earliest("acme", 1, NOW).unwrap();
        for behind in [1, SECOND, 9 * SECOND] {
            assert_eq!(bench.earliest("acme", 1, NOW - behind), Some(free), "{quota:?}, {behind} behind");
        }
        assert_eq!(bench.earliest("acme", 1, NOW), Some(free), "{quota:?}");
    }
}

/// As in a store: of a debt, what exceeds the bound is forgiven.
#[test]
fn a_debt_is_paid_off_within_the_span() {
    for algorithm in Algorithm::WINDOWED {
        let quota = Quota::per_second(LIMIT).algorithm(algorithm);
        let bench = Bench::new(tier(quota, true));
        let receipt = bench.take("acme", 1, NOW).unwrap();
        bench.add_debt(&receipt, 600 * LIMIT, NOW);
        let free = bench.earliest("acme", 1, NOW).unwrap() - NOW;
        assert!(free >= 599 * SECOND, "{algorithm}: {free}");
        let back = NOW - HOUR;
        let free = bench.earliest("acme", 1, back).unwrap() - back;
        assert!(free <= span(&quota), "{algorithm}: {free}");
    }
}

/// The clock has not moved: counters may be far ahead after a reload.
#[test]
fn a_smaller_burst_moves_nothing_back() {
    let day = |burst| tier(Quota::per_day(10).burst(burst), false);
    let mut bench = Bench::new(day(100));
    assert_eq!(use_up(&bench, NOW), 30);
    bench.reload(day(10));
    let free = bench.earliest("acme", 1, NOW).unwrap();
    assert!(free - NOW > 86_400 * SECOND, "{}", free - NOW);
}

/// Claims from before the jump refund what they charged, and no more.
#[test]
fn receipts_outlive_the_jump() {
    for algorithm in Algorithm::WINDOWED {
        for settle in [false, true] {
            let bench = Bench::new(tier(Quota::per_minute(LIMIT).algorithm(algorithm), settle));
            let receipts: Vec<_> = (0..LIMIT).filter_map(|_| bench.take("acme", 1, NOW)).collect();
            let back = NOW - HOUR;
            let whole = if algorithm == Algorithm::LeakyBucket { 1 } else { LIMIT };
            assert_eq!(bench.remaining("acme", back), 0, "{algorithm}");
            receipts.iter().for_each(|receipt| bench.refund(receipt, back));
            receipts.iter().for_each(|receipt| bench.refund(receipt, back));
            assert!(bench.remaining("acme", back) <= whole, "{algorithm}");
            assert!(use_up(&bench, back) <= whole, "{algorithm}");
        }
    }
}

/// Its end is the end of time, and so is the bound.
#[test]
fn a_window_of_any_length_stays_as_it_is() {
    for algorithm in Algorithm::WINDOWED {
        for window in [Duration::MAX, Duration::from_nanos(u64::MAX - NOW), Duration::from_nanos(u64::MAX / 3)] {
            let bench = Bench::new(tier(Quota::new(1, window).algorithm(algorithm), false));
            assert!(bench.take("acme", 1, NOW).is_some());
            assert!(bench.take("acme", 1, NOW - HOUR).is_none(), "{algorithm}, {window:?}");
        }
    }
}
