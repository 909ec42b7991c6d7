use super::*;

#[test]
fn delays_double_up_to_the_maximum_and_reset_after_a_success() {
    let mut retry = RetryDelay::new(Duration::from_millis(100), Duration::from_millis(500));
    for max in [100, 200, 400, 500, 500] {
        let (max, delay) = (Duration::from_millis(max), retry.next_delay());
        assert!(delay <= max && delay >= max / 2, "{delay:?} of {max:?}");
    }
    retry.reset();
    assert!(retry.next_delay() <= Duration::from_millis(100));
    retry.failures = u32::MAX;
    assert!(retry.next_delay() >= Duration::from_millis(250), "however often it failed");
}

#[test]
fn no_setting_overflows_a_timer_or_makes_it_spin() {
    assert!(RetryDelay::new(Duration::ZERO, Duration::ZERO).next_delay() > Duration::ZERO);
    assert!(RetryDelay::new(Duration::MAX, Duration::ZERO).next_delay() <= MAX_DELAY);
}

#[test]
fn delays_differ_between_instances() {
    let mut retry = RetryDelay::new(Duration::from_secs(100), Duration::from_secs(100));
    let delays: Vec<_> = (0..20).map(|_| retry.next_delay()).collect();
    assert!(delays.iter().any(|delay| delay.abs_diff(delays[0]) > Duration::from_secs(1)), "{delays:?}");
}
