use super::*;

#[test]
fn every_window_of_the_fleet_admits_exactly_the_limit() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        for limit in [1, 10, 95, 96, 97, 1_000] {
            let fleet = Fleet::new(96, Quota::per_second(limit).algorithm(algorithm));
            for window in 0..5 {
                let admitted = fleet.drained();
                // At its start, a sliding window still counts all of the previous one.
                let expected = if algorithm == Algorithm::FixedWindow || window % 2 == 0 { limit } else { 0 };
                assert_eq!(admitted, expected, "{limit} by {algorithm} in window {window}");
                fleet.pass(SECOND);
            }
        }
    }
}

#[test]
fn extra_units_rotate_among_the_instances() {
    let fleet = Fleet::new(7, fixed(3));
    let mut admitted = vec![0; 7];
    for _ in 0..7 {
        let window = fleet.drain();
        assert!(window.iter().all(|units| *units <= 1));
        admitted.iter_mut().zip(window).for_each(|(sum, units)| *sum += units);
        fleet.pass(SECOND);
    }
    assert_eq!(admitted, [3; 7]);
}

#[test]
fn shares_follow_their_weights() {
    let weights = [1.0, 2.0, 0.0, 4.0];
    let shares = (0..4).map(|index| Share::weighted(index, weights).unwrap());
    let fleet = Fleet::of(shares, fixed(10));
    let mut admitted = [0_u64; 4];
    for _ in 0..700 {
        let window = fleet.drain();
        assert_eq!(window.iter().sum::<u64>(), 10);
        admitted.iter_mut().zip(window).for_each(|(sum, units)| *sum += units);
        fleet.pass(SECOND);
    }
    for (admitted, exact) in admitted.iter().zip([1_000_u64, 2_000, 0, 4_000]) {
        assert!(admitted.abs_diff(exact) <= exact / 100, "{admitted} of {exact}");
    }
}

#[test]
fn retry_after_is_the_next_window_with_a_weighted_share() {
    let shares = (0..5).map(|index| Share::weighted(index, [1.0, 2.0, 3.0, 4.0, 5.0]).unwrap());
    let fleet = Fleet::of(shares, fixed(2));
    fleet.pass(SECOND / 3);
    for limiter in &fleet.limiters {
        for _ in 0..20 {
            drain(limiter, u64::MAX);
            let after = ask(limiter, 1).retry_after().unwrap();
            fleet.pass(after - Duration::from_nanos(1));
            assert!(!ask(limiter, 1).is_allowed(), "before its window");
            fleet.pass(Duration::from_nanos(1));
            assert!(ask(limiter, 1).is_allowed(), "in its window");
        }
    }
}

#[test]
fn retry_after_is_the_next_window_with_a_share() {
    for (algorithm, limit) in [(Algorithm::FixedWindow, 10), (Algorithm::SlidingWindow, 150)] {
        let fleet = Fleet::new(96, Quota::per_second(limit).algorithm(algorithm));
        fleet.pass(SECOND / 3);
        for limiter in &fleet.limiters {
            let tick = Duration::from_nanos(1);
            // Ask until the window with a share is over.
            let rejected = (0..4).map(|_| ask(limiter, 1)).find(|decision| !decision.is_allowed()).unwrap();
            let after = rejected.retry_after().unwrap();
            assert!(!after.is_zero() && after < 30 * SECOND, "{algorithm}: {after:?}");
            assert_eq!((rejected.limit(), rejected.remaining()), (Some(limit), Some(0)));
            fleet.pass(after - tick);
            assert!(!ask(limiter, 1).is_allowed(), "{algorithm}: before its window");
            fleet.pass(tick);
            assert!(ask(limiter, 1).is_allowed(), "{algorithm}: in its window");
        }
    }
}

#[test]
fn a_cost_above_the_share_never_fits() {
    let fleet = Fleet::new(4, fixed(10));
    for (index, limiter) in fleet.limiters.iter().enumerate() {
        assert_eq!(ask(limiter, 4).retry_after(), None);
        // The lowest indexes have the two units that are left over, and three fit.
        let rejections: Vec<_> = (0..4)
            .map(|_| {
                let decision = ask(limiter, 3);
                fleet.pass(SECOND);
                decision.is_allowed()
            })
            .collect();
        let fitting = if index < 2 { 4 } else { 0 };
        assert_eq!(rejections.iter().filter(|allowed| **allowed).count(), fitting, "{rejections:?}");
    }
}

#[test]
fn stable_shares_sum_to_the_limit() {
    for algorithm in [Algorithm::AnchoredWindow, Algorithm::SlidingLog] {
        for limit in [2, 10, 97] {
            let fleet = Fleet::new(10, Quota::per_second(limit).algorithm(algorithm));
            assert_eq!(fleet.drained(), limit, "{algorithm}");
            fleet.pass(SECOND);
            assert_eq!(fleet.drained(), limit, "{algorithm}, a second later");
        }
    }
}

#[test]
fn an_instance_without_a_share_admits_nothing() {
    for algorithm in Algorithm::WINDOWED {
        let fleet = Fleet::of([Share::none()], Quota::per_second(10).algorithm(algorithm));
        for _ in 0..3 {
            assert_eq!(fleet.drained(), 0, "{algorithm}");
            fleet.pass(SECOND);
        }
        fleet.resize(1);
        let at_once = fleet.drained();
        assert_eq!(at_once, 0, "{algorithm}: on top of what others may have spent");
        fleet.pass(2 * SECOND);
        let expected = if algorithm == Algorithm::LeakyBucket { 1 } else { 10 };
        assert_eq!(fleet.drained(), expected, "{algorithm}: once the quota is full again");
    }
}

/// In the window of the change, an instance may have nothing under either count.
#[test]
fn retry_after_a_change_is_the_next_window_with_a_share() {
    let tick = Duration::from_nanos(1);
    let cases = (0..5).flat_map(|window| (0..4).map(move |index| (window, index)));
    for (length, (window, index)) in
        [SECOND, 60 * SECOND].into_iter().flat_map(|length| cases.clone().map(move |case| (length, case)))
    {
        let fleet = Fleet::new(5, Quota::new(1, length).algorithm(Algorithm::FixedWindow));
        fleet.pass(length * window + length / 4);
        let limiter = &fleet.limiters[index];
        drain(limiter, u64::MAX);
        fleet.resize(4);
        let what = format!("instance {index} in window {window} of {length:?}");
        let after = ask(limiter, 1).retry_after().expect("the share counts from the next window on");
        fleet.pass(after - tick);
        assert!(!ask(limiter, 1).is_allowed(), "{what}: before its window");
        fleet.pass(tick);
        assert!(ask(limiter, 1).is_allowed(), "{what}: after {after:?}");
        let windows = (after - length * 3 / 4).as_nanos();
        assert_eq!(windows % length.as_nanos(), 0, "{what}: a window starts then, not after {after:?}");
    }
}
