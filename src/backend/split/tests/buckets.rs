use super::*;

const TICK: Duration = Duration::from_nanos(1);

#[test]
fn shared_rates_are_exact() {
    // 10 a second over 96: one in 9.6 seconds each.
    let fleet = Fleet::new(96, Quota::per_second(10));
    for limiter in &fleet.limiters {
        assert!(ask(limiter, 1).is_allowed());
        let rejected = ask(limiter, 1);
        assert_eq!(rejected.retry_after(), Some(Duration::from_millis(9_600)));
    }
    // 7 a second over 3, in a whole number of periods.
    let fleet = Fleet::new(3, Quota::per_second(7).burst(30));
    fleet.drained();
    let mut admitted = 0;
    for _ in 0..10 {
        fleet.pass(3 * SECOND);
        admitted += fleet.drained();
    }
    assert_eq!(admitted, 7 * 30);
}

#[test]
fn bursts_sum_to_the_whole_burst_or_one_per_instance() {
    for (burst, expected) in [(1, 96), (95, 96), (96, 96), (100, 100), (1_000, 1_000)] {
        let fleet = Fleet::new(96, Quota::per_second(10).burst(burst));
        assert_eq!(fleet.drained(), expected, "a burst of {burst}");
    }
    let weights = [5.0, 3.0, 0.0, 2.0];
    let shares = (0..4).map(|index| Share::weighted(index, weights).unwrap());
    assert_eq!(Fleet::of(shares, Quota::per_second(33)).drain(), [17, 10, 0, 6]);
}

#[test]
fn a_shared_leaky_bucket_spaces_the_requests_of_its_instance() {
    let fleet = Fleet::new(4, Quota::per_second(2).algorithm(Algorithm::LeakyBucket));
    for limiter in &fleet.limiters {
        assert!(ask(limiter, 1).is_allowed());
        assert_eq!(ask(limiter, 1).retry_after(), Some(2 * SECOND));
    }
    fleet.pass(2 * SECOND - TICK);
    assert_eq!(fleet.drained(), 0);
    fleet.pass(TICK);
    assert_eq!(fleet.drained(), 4);
}

/// Whatever was spent and whenever shares change, all instances together never
/// admit more than one bucket with the whole quota.
#[test]
fn tokens_never_grow_by_a_change() {
    for settle in [false, true] {
        let rule = crate::policy::Rule::new("rule").tier(Quota::per_second(960)).settle(settle);
        let mut fleet = Fleet::new(96, Policy::new().rule(rule));
        let mut tokens = 960;
        let mut random = 88_172_645_463_325_252_u64;
        for round in 0..60 {
            for limiter in &fleet.limiters {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                tokens -= drain(limiter, random % 12) as i64;
            }
            assert!(tokens >= 0, "settled late: {settle}, round {round}: {tokens}");
            let count = [96, 80, 96, 33, 96, 1, 2, 96][round % 8];
            fleet.resize(count);
            // Every instance notices the change before time passes.
            fleet.limiters.iter().for_each(|limiter| drop(ask(limiter, 1_000)));
            fleet.pass(SECOND / 10);
            tokens = (tokens + 96).min(960);
        }
        fleet.resize(96);
        fleet.limiters.iter().for_each(|limiter| drop(ask(limiter, 1_000)));
        fleet.pass(10 * SECOND);
        assert_eq!(fleet.drained(), 960, "all has come back");
        // A new instance joins.
        fleet.resize(97);
        fleet.limiters.iter().for_each(|limiter| drop(ask(limiter, 1_000)));
        let policy = (*fleet.limiters[0].policy()).clone();
        fleet.join(Share::none(), &policy);
        fleet.limiters.iter().for_each(|limiter| drop(ask(limiter, 1_000)));
        fleet.resize(97);
        assert_eq!(fleet.drained(), 0, "a new instance adds nothing");
        fleet.pass(SECOND);
        let parts = fleet.drain();
        assert!(parts.iter().all(|part| (9..=10).contains(part)), "and has its share: {parts:?}");
    }
}

#[test]
fn a_limit_that_changes_with_a_share_keeps_what_was_used() {
    let fleet = Fleet::new(2, Quota::per_minute(120));
    let limiter = &fleet.limiters[0];
    assert_eq!(drain(limiter, 40), 40);
    limiter.set_policy(Quota::per_minute(240)).unwrap();
    assert_eq!(drain(limiter, u64::MAX), 80);
    limiter.set_policy(Quota::per_minute(60)).unwrap();
    let rejected = ask(limiter, 1);
    let after = rejected.retry_after().unwrap();
    fleet.pass(after - TICK);
    assert!(!ask(limiter, 1).is_allowed());
    fleet.pass(TICK);
    assert!(ask(limiter, 1).is_allowed(), "at its retry_after");
}

#[test]
fn rates_that_need_six_words_are_shared_exactly() {
    let odd = Quota::per_second(6_000_000_007).burst(1_000);
    let fleet = Fleet::new(3, odd);
    assert_eq!(fleet.drained(), 1_000);
    // A weight with 48 bits.
    let shares = (0..2).map(|index| Share::weighted(index, [0.1, 0.9]).unwrap());
    let fleet = Fleet::of(shares, Quota::per_second(10));
    assert_eq!(fleet.drain(), [1, 9]);
    fleet.pass(10 * SECOND);
    assert_eq!(fleet.drain(), [1, 9]);
}
