use proptest::prelude::*;

use super::*;

/// 96, 80, 96 instances under load, in several orders of noticing and spending:
/// no window of the fleet exceeds the limit, and the next one is full.
#[test]
fn no_window_exceeds_the_limit_when_shares_change() {
    for limit in [10, 96, 1_000] {
        let fleet = Fleet::new(96, fixed(limit));
        let mut window = 0;
        for count in [80, 96, 1, 95, 96, 33, 96] {
            for changed_after in [0, 5, 50, 96] {
                let mut admitted: u64 =
                    fleet.limiters[..changed_after].iter().map(|limiter| drain(limiter, u64::MAX)).sum();
                fleet.pass(SECOND / 2);
                fleet.resize(count);
                admitted += fleet.drained();
                assert!(admitted <= limit, "{limit}, to {count} after {changed_after}: {admitted}");
                window += 1;
                fleet.pass(SECOND / 2);
                assert_eq!(fleet.drained(), limit, "one window later: {window}");
                fleet.pass(SECOND);
                assert_eq!(fleet.drained(), limit, "and then");
                fleet.pass(SECOND);
                fleet.resize(96);
                fleet.limiters.iter().for_each(|limiter| drop(ask(limiter, 1_000_000)));
                fleet.pass(SECOND);
            }
        }
    }
}

/// The limit and the count change in one window.
#[test]
fn no_window_exceeds_the_larger_of_two_limits() {
    for (one, other) in [(10, 11), (11, 10), (95, 97), (1_000, 1_500), (1_500, 1_000)] {
        for count in [96, 80] {
            let fleet = Fleet::new(96, fixed(one));
            let mut admitted = fleet.limiters.iter().step_by(2).map(|limiter| drain(limiter, u64::MAX)).sum::<u64>();
            for limiter in &fleet.limiters {
                limiter.set_policy(fixed(other)).unwrap();
            }
            fleet.resize(count);
            admitted += fleet.drained();
            assert!(admitted <= one.max(other), "{one} to {other}, 96 to {count}: {admitted}");
            fleet.pass(SECOND);
            assert_eq!(fleet.drained(), other);
        }
    }
}

/// The documented excess of instances that decide nothing between two changes.
#[test]
fn an_instance_that_misses_a_change_may_exceed_by_the_difference() {
    let fleet = Fleet::new(96, fixed(960));
    fleet.resize(80);
    fleet.limiters.iter().for_each(|limiter| drop(ask(limiter, 1_000)));
    fleet.pass(SECOND);
    fleet.resize(96);
    fleet.limiters[1..].iter().for_each(|limiter| drop(ask(limiter, 1_000)));
    fleet.pass(SECOND);
    let departed: u64 = fleet.limiters[80..].iter().map(|limiter| drain(limiter, u64::MAX)).sum();
    fleet.resize(80);
    assert_eq!(departed + fleet.drained(), 960 + 2, "12 of one, 10 of all others");
    fleet.pass(SECOND);
    assert_eq!(fleet.drained(), 960);
}

#[test]
fn used_units_are_kept_when_the_share_changes() {
    let fleet = Fleet::new(2, fixed(100));
    assert_eq!(drain(&fleet.limiters[0], 30), 30);
    fleet.resize(4);
    assert_eq!(drain(&fleet.limiters[0], u64::MAX), 0, "25 of 100, and 30 are used");
    fleet.resize(1);
    assert_eq!(drain(&fleet.limiters[0], u64::MAX), 20, "50 of 100, as at the window's start");
    fleet.pass(SECOND);
    assert_eq!(drain(&fleet.limiters[0], u64::MAX), 100);
}

#[test]
fn a_joining_instance_starts_with_the_next_window() {
    let clock = Hand::new();
    clock.advance(SECOND / 4);
    let share = || Split::new(Share::new(0, 2).unwrap());
    assert_eq!(drain(&limiter(share(), fixed(10), &clock), u64::MAX), 5);
    let joins = limiter(share().joining(), fixed(10), &clock);
    let rejected = ask(&joins, 1);
    assert_eq!(rejected.retry_after(), Some(SECOND * 3 / 4));
    clock.advance(SECOND * 3 / 4);
    assert_eq!(drain(&joins, u64::MAX), 5);
}

#[test]
fn a_share_stays_in_force_when_its_source_is_dropped() {
    let (sender, receiver) = watch::channel(Share::new(0, 2).unwrap());
    let clock = Hand::new();
    let limiter = limiter(Split::watch(receiver), fixed(10), &clock);
    assert_eq!(drain(&limiter, u64::MAX), 5);
    sender.send_replace(Share::new(0, 10).unwrap());
    drop(sender);
    clock.advance(SECOND);
    assert_eq!(drain(&limiter, u64::MAX), 1, "the last that was sent");
    clock.advance(SECOND);
    assert_eq!(drain(&limiter, u64::MAX), 1);
}

#[test]
fn all_threads_apply_a_change() {
    let fleet = Fleet::new(4, fixed(8_000));
    let limiter = &fleet.limiters[0];
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..10_000).filter(|_| ask(limiter, 1).is_allowed()).count())).collect();
        fleet.resize(8);
        let admitted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!((1_000..=2_000).contains(&admitted), "{admitted}");
    });
    fleet.pass(SECOND);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..1_000).filter(|_| ask(limiter, 1).is_allowed()).count())).collect();
        assert_eq!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>(), 1_000);
    });
}

/// A clock is corrected after a share changed at a wrong, later time. Neither a
/// joining instance nor an unused key waits until that time.
#[test]
fn a_clock_that_steps_back_over_a_change_blocks_no_key() {
    for quota in [fixed(1_000), Quota::per_second(1_000).burst(100)] {
        for first in [Share::none(), Share::new(0, 2).unwrap()] {
            let fleet = Fleet::of([first], quota);
            let limiter = &fleet.limiters[0];
            ask(limiter, 1_000);
            fleet.pass(3_600 * SECOND);
            fleet.shares[0].send_replace(Share::new(0, 4).unwrap());
            ask(limiter, 1_000);
            fleet.clock.0.fetch_sub(3_600_000_000_000, std::sync::atomic::Ordering::Relaxed);
            ask(limiter, 1_000);
            fleet.pass(SECOND);
            assert!(ask(limiter, 1).is_allowed(), "{quota:?}");
            assert!(drain(limiter, u64::MAX) < 250, "at most its share");
        }
    }
}

/// A thread with an old reading of the clock does not move the time of a change
/// for others.
#[test]
fn a_late_thread_changes_nothing_for_others() {
    let fleet = Fleet::new(4, fixed(1_000));
    let limiter = &fleet.limiters[0];
    assert_eq!(drain(limiter, u64::MAX), 250);
    fleet.pass(10 * SECOND + SECOND / 2);
    fleet.shares[0].send_replace(Share::new(0, 2).unwrap());
    ask(limiter, 1_000);
    let late = 5_000_000_000;
    fleet.clock.0.fetch_sub(late, std::sync::atomic::Ordering::Relaxed);
    ask(limiter, 1_000);
    fleet.clock.0.fetch_add(late, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(drain(limiter, u64::MAX), 250, "in the window of the change");
    fleet.pass(SECOND);
    assert_eq!(drain(limiter, u64::MAX), 500);
}

/// Units that departed instances spent in the last window still have weight in
/// this one, but only the remaining instances can count it.
#[test]
fn a_sliding_window_is_raised_once_old_units_have_no_weight() {
    let fleet = Fleet::new(4, Quota::per_second(100).algorithm(Algorithm::SlidingWindow));
    fleet.pass(SECOND / 2);
    assert_eq!(fleet.drained(), 100);
    fleet.resize(2);
    fleet.limiters.iter().for_each(|limiter| drop(ask(limiter, 1_000)));
    fleet.pass(SECOND);
    let weighted = 100 / 2;
    assert!(fleet.drained() + weighted <= 100);
    fleet.pass(3 * SECOND);
    assert_eq!(fleet.drained(), 100);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Resize(u64),
    Limit(u64),
    Spend(usize, u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (1u64..10).prop_map(Step::Resize),
        1 => (1u64..40).prop_map(Step::Limit),
        6 => (0usize..9, 1u64..12).prop_map(|(instance, units)| Step::Spend(instance, units)),
        2 => (1u64..700).prop_map(Step::Pass),
    ]
}

proptest! {
    /// In any order of changes and spending, if all instances notice each change.
    #[test]
    fn no_window_holds_more_than_the_largest_limit_in_it(steps in prop::collection::vec(step(), 1..120)) {
        let fleet = Fleet::new(9, fixed(20));
        let (mut limit, mut largest, mut admitted, mut window) = (20, 20, 0, 0);
        for step in steps {
            match step {
                Step::Resize(count) => {
                    fleet.resize(count);
                    fleet.limiters.iter().for_each(|limiter| drop(ask(limiter, 1_000)));
                }
                Step::Limit(other) => {
                    limit = other;
                    largest = largest.max(limit);
                    for limiter in &fleet.limiters {
                        limiter.set_policy(fixed(limit)).unwrap();
                    }
                }
                Step::Spend(instance, units) => admitted += drain(&fleet.limiters[instance], units),
                Step::Pass(millis) => {
                    fleet.pass(Duration::from_millis(millis));
                    let now = fleet.clock.now().as_secs();
                    if now > window {
                        (window, largest, admitted) = (now, limit, 0);
                    }
                }
            }
            prop_assert!(admitted <= largest, "{admitted} of {largest}");
        }
    }
}

/// More changes than are remembered, each of which moves units to the first instance.
#[test]
fn a_window_of_many_changes_holds_the_limit() {
    let shares = |first: f64| [0, 1].map(|index| Share::weighted(index, [first, 100.0 - first]).unwrap());
    let change = |fleet: &Fleet, first| {
        for (sender, share) in fleet.shares.iter().zip(shares(first)) {
            sender.send_replace(share);
        }
        // Notices it.
        fleet.limiters.iter().for_each(|limiter| drop(ask(limiter, 1_000)));
    };
    let fleet = Fleet::of(shares(10.0), Quota::per_minute(100).algorithm(Algorithm::FixedWindow));
    for minute in 0..3 {
        let mut admitted = fleet.drained();
        assert_eq!(admitted, 100, "{minute}");
        for second in 1..60 {
            fleet.pass(SECOND);
            change(&fleet, if second < 5 { 10.0 } else { 50.0 + f64::from(second % 7) });
            admitted += fleet.drained();
            assert!(admitted <= 100, "{minute}:{second}: {admitted}");
        }
        change(&fleet, 10.0);
        fleet.pass(SECOND);
    }
}
