//! Counting what another backend admitted.

use super::*;

/// One engine decides, the other counts what it admitted.
struct Pair {
    decides: Bench,
    mirrors: Bench,
}

impl Pair {
    fn new(quota: Quota) -> Self {
        Self { decides: Bench::new(tier(quota, false)), mirrors: Bench::new(tier(quota, false)) }
    }

    fn ask(&self, cost: u64, now: u64) {
        if self.decides.take("acme", cost, now).is_some() {
            self.mirrors.count("acme", cost, now);
        }
    }
}

impl Bench {
    /// Counts a request that another backend admitted.
    fn count(&self, tenant: &str, cost: u64, now: u64) -> Receipt {
        let (request, now) = (Descriptor::new("/").tenant(tenant).cost(cost), Timestamp::from_nanos(now));
        self.with_charges(&request, |charges| {
            let claims = self.engine.count(charges, now);
            Receipt::counted(&self.policy, charges, now, claims)
        })
    }
}

#[test]
fn it_has_the_status_of_the_deciding_engine() {
    let mut random = Random(7);
    for algorithm in Algorithm::WINDOWED {
        for _ in 0..50 {
            let limit = 1 + random.below(20);
            let pair =
                Pair::new(Quota::new(limit, Duration::from_millis(1 + random.below(5_000))).algorithm(algorithm));
            let mut now = NOW;
            for step in 0..100 {
                now += random.below(SECOND);
                pair.ask(1 + random.below(3), now);
                let status = |bench: &Bench| {
                    let outcome = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), now, 0).0;
                    (outcome.tiers[0].remaining, outcome.tiers[0].reset, bench.earliest("acme", limit, now))
                };
                assert_eq!(status(&pair.mirrors), status(&pair.decides), "{algorithm}, step {step}, {limit}");
            }
        }
    }
}

#[test]
fn no_count_exceeds_the_capacity() {
    let mut random = Random(8);
    for algorithm in Algorithm::WINDOWED {
        for _ in 0..50 {
            let window = 1_000_000 * (1 + random.below(5_000));
            let limit = 1 + random.below(20);
            let bench = Bench::new(tier(Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm), false));
            let mut now = NOW;
            for step in 0..200 {
                now += random.below(window / 10 + 1);
                bench.count("acme", [1, 3, limit, 1_000_000, u64::MAX][random.below(5) as usize], now);
                let at = bench.earliest("acme", 1, now).unwrap();
                // A sliding window counts the previous window as well.
                let longest = if algorithm == Algorithm::SlidingWindow { 2 * window } else { window };
                assert!(at - now <= longest + OVERTAKEN, "{algorithm}, step {step}: {} of {window}", at - now);
            }
            now += 2 * window + OVERTAKEN;
            let whole = if algorithm == Algorithm::LeakyBucket { 1 } else { limit };
            assert_eq!(bench.remaining("acme", now), whole, "{algorithm}");
        }
    }
}

/// How far a thread may have been overtaken.
const OVERTAKEN: u64 = 1_000_000;

#[test]
fn a_partial_count_is_refunded_in_part() {
    for algorithm in Algorithm::WINDOWED {
        let bench = Bench::new(tier(Quota::per_hour(10).algorithm(algorithm), false));
        let whole = bench.remaining("acme", NOW);
        bench.take("acme", 1, NOW).unwrap();
        let left = bench.remaining("acme", NOW);
        let receipt = bench.count("acme", 1_000, NOW);
        assert_eq!(bench.remaining("acme", NOW), 0, "{algorithm}");
        bench.refund(&receipt, NOW);
        bench.refund(&receipt, NOW);
        assert_eq!(bench.remaining("acme", NOW), left, "{algorithm}: only the counted part of {whole} is refunded");
    }
}

#[test]
fn more_than_the_capacity_fills_it() {
    const HOUR: u64 = 3_600 * SECOND;
    let bench = Bench::new(tier(Quota::per_hour(10).algorithm(Algorithm::LeakyBucket), false));
    bench.count("acme", 1_000, NOW);
    assert_eq!(bench.earliest("acme", 1, NOW), Some(NOW + HOUR), "its whole queue");
    bench.count("acme", 1_000, NOW);
    assert_eq!(bench.earliest("acme", 1, NOW), Some(NOW + HOUR));
}

#[test]
fn in_flight_units_are_counted_up_to_the_limit() {
    let bench = Bench::new(tier(Quota::concurrent(3), false));
    let two = bench.count("acme", 2, NOW);
    let more = bench.count("acme", 2, NOW);
    assert_eq!(bench.remaining("acme", NOW), 0);
    bench.release(&more, NOW);
    assert_eq!(bench.remaining("acme", NOW), 1);
    bench.release(&two, NOW);
    bench.release(&two, NOW);
    assert_eq!(bench.remaining("acme", NOW), 3);
}

#[test]
fn at_the_cap_no_key_is_counted_on_the_overflow_counter() {
    let bench = Bench::with(Engine::full(4), tier(Quota::per_hour(2), true));
    for tenant in 0..100 {
        let receipt = bench.count(&format!("tenant-{tenant}"), 2, NOW);
        bench.engine.count_more(&receipt, 0, Timestamp::from_nanos(NOW));
    }
    let usage = bench.engine.usage();
    assert_eq!((usage.keys, usage.overflowed), (4, 0));
    assert!(bench.take("newcomer", 1, NOW).is_some(), "the overflow counter is unchanged");
}

/// Units are added to what was counted, as far as there is capacity.
#[test]
fn what_is_charged_later_is_counted_as_well() {
    let day = Rule::new("work").settle(true).cost(2).tier(Quota::per_day(10)).tier(Quota::concurrent(8));
    let bench = Bench::new(Policy::new().rule(day));
    let receipt = bench.count("acme", 1, NOW);
    let more = |units| bench.engine.count_more(&receipt, units, Timestamp::from_nanos(NOW));
    let left = || {
        let outcome = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0).0;
        [outcome.tiers[0].remaining, outcome.tiers[1].remaining]
    };
    assert_eq!(left(), [8, 6]);
    more(3);
    assert_eq!(left(), [2, 6], "in flight, it stays one request");
    more(3);
    assert_eq!(left(), [0, 6]);
    bench.refund_units(&receipt, 2, NOW);
    assert_eq!(left(), [4, 6], "it is not in debt");
}

#[test]
fn what_has_no_capacity_takes_no_entry() {
    let bench = Bench::new(tier(Quota::per_hour(0), true));
    bench.count("acme", 1, NOW);
    assert_eq!(bench.engine.usage().keys, 0);
}
