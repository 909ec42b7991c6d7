use super::*;

/// Asks one, and tells the other what it has admitted.
struct Pair {
    decides: Desk,
    mirrors: Desk,
}

impl Pair {
    fn new(quota: Quota) -> Self {
        Self { decides: Desk::new(tier(quota, false)), mirrors: Desk::new(tier(quota, false)) }
    }

    fn ask(&self, cost: u64, now: u64) {
        if self.decides.take("acme", cost, now).is_some() {
            self.mirrors.count("acme", cost, now);
        }
    }
}

impl Desk {
    /// As admitted by another; what gives it back.
    fn count(&self, tenant: &str, cost: u64, now: u64) -> Receipt {
        let (request, now) = (Descriptor::new("/").tenant(tenant).cost(cost), Timestamp::from_nanos(now));
        let path = self.policy.spell(&request);
        let mut resolved = Resolved::default();
        self.policy.resolve(&request, &path, &mut resolved);
        let charges = resolved.enforced;
        let claims = self.engine.count(&charges, now);
        Receipt::counted(&self.policy, &charges, now, claims)
    }
}

#[test]
fn it_stands_where_the_one_stands_that_decides() {
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
                let stand = |desk: &Desk| {
                    let outcome = desk.ask(&Descriptor::new("/").tenant("acme").cost(0), now, 0).0;
                    (outcome.tiers[0].remaining, outcome.tiers[0].reset, desk.earliest("acme", limit, now))
                };
                assert_eq!(stand(&pair.mirrors), stand(&pair.decides), "{algorithm}, step {step}, {limit}");
            }
        }
    }
}

#[test]
fn whatever_is_counted_it_is_never_beyond_full() {
    let mut random = Random(8);
    for algorithm in Algorithm::WINDOWED {
        for _ in 0..50 {
            let window = 1_000_000 * (1 + random.below(5_000));
            let limit = 1 + random.below(20);
            let desk = Desk::new(tier(Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm), false));
            let mut now = NOW;
            for step in 0..200 {
                now += random.below(window / 10 + 1);
                desk.count("acme", [1, 3, limit, 1_000_000, u64::MAX][random.below(5) as usize], now);
                let at = desk.earliest("acme", 1, now).unwrap();
                // A sliding window weighs the last one as well.
                let longest = if algorithm == Algorithm::SlidingWindow { 2 * window } else { window };
                assert!(at - now <= longest + OVERTAKEN, "{algorithm}, step {step}: {} of {window}", at - now);
            }
            now += 2 * window + OVERTAKEN;
            let whole = if algorithm == Algorithm::LeakyBucket { 1 } else { limit };
            assert_eq!(desk.remaining("acme", now), whole, "{algorithm}");
        }
    }
}

/// By how much a thread may have been overtaken.
const OVERTAKEN: u64 = 1_000_000;

#[test]
fn what_was_counted_in_part_is_given_back_in_part() {
    for algorithm in Algorithm::WINDOWED {
        let desk = Desk::new(tier(Quota::per_hour(10).algorithm(algorithm), false));
        let whole = desk.remaining("acme", NOW);
        desk.take("acme", 1, NOW).unwrap();
        let left = desk.remaining("acme", NOW);
        let receipt = desk.count("acme", 1_000, NOW);
        assert_eq!(desk.remaining("acme", NOW), 0, "{algorithm}");
        desk.refund(&receipt, NOW);
        desk.refund(&receipt, NOW);
        assert_eq!(desk.remaining("acme", NOW), left, "{algorithm}: not what others took of {whole}");
    }
}

#[test]
fn what_is_more_than_it_holds_fills_it() {
    const HOUR: u64 = 3_600 * SECOND;
    let desk = Desk::new(tier(Quota::per_hour(10).algorithm(Algorithm::LeakyBucket), false));
    desk.count("acme", 1_000, NOW);
    assert_eq!(desk.earliest("acme", 1, NOW), Some(NOW + HOUR), "its whole queue");
    desk.count("acme", 1_000, NOW);
    assert_eq!(desk.earliest("acme", 1, NOW), Some(NOW + HOUR));
}

#[test]
fn of_what_is_in_flight_as_much_is_counted_as_there_is_room_for() {
    let desk = Desk::new(tier(Quota::concurrent(3), false));
    let two = desk.count("acme", 2, NOW);
    let more = desk.count("acme", 2, NOW);
    assert_eq!(desk.remaining("acme", NOW), 0);
    desk.release(&more, NOW);
    assert_eq!(desk.remaining("acme", NOW), 1);
    desk.release(&two, NOW);
    desk.release(&two, NOW);
    assert_eq!(desk.remaining("acme", NOW), 3);
}

#[test]
fn at_the_cap_nobody_is_counted_with_others() {
    let desk = Desk::with(Engine::full(4), tier(Quota::per_hour(2), true));
    for tenant in 0..100 {
        let receipt = desk.count(&format!("tenant-{tenant}"), 2, NOW);
        desk.engine.count_more(&receipt, 0, Timestamp::from_nanos(NOW));
    }
    let usage = desk.engine.usage();
    assert_eq!((usage.keys, usage.overflowed), (4, 0));
    assert!(desk.take("newcomer", 1, NOW).is_some(), "the counter that all share is as it was");
}
