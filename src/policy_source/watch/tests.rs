use super::*;

#[test]
fn delays_double_up_to_the_maximum_and_reset_after_a_success() {
    let retry = backoff(Duration::from_millis(100), Duration::from_millis(500));
    for max in [100, 200, 400, 500, 500] {
        let (max, delay) = (Duration::from_millis(max), retry.failed(&()));
        assert!(delay <= max && delay >= max / 2, "{delay:?} of {max:?}");
    }
    retry.succeeded(&());
    assert!(retry.failed(&()) <= Duration::from_millis(100));
    (0..100).for_each(|_| _ = retry.failed(&()));
    assert!(retry.failed(&()) >= Duration::from_millis(250), "however often it failed");
}

#[test]
fn no_setting_overflows_a_timer_or_makes_it_spin() {
    assert!(backoff(Duration::ZERO, Duration::ZERO).failed(&()) > Duration::ZERO);
    assert!(backoff(Duration::MAX, Duration::ZERO).failed(&()) <= MAX_DELAY);
}

#[test]
fn delays_differ_between_instances() {
    let retry = backoff(Duration::from_secs(100), Duration::from_secs(100));
    let delays: Vec<_> = (0..20).map(|_| retry.failed(&())).collect();
    assert!(delays.iter().any(|delay| delay.abs_diff(delays[0]) > Duration::from_secs(1)), "{delays:?}");
}
