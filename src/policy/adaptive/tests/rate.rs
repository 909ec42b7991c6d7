use super::*;

fn steps(floor: Quota, ceiling: Quota) -> RateSteps {
    let adapt = AdaptiveRate::between(floor, ceiling);
    adapt.check().unwrap();
    RateSteps::new(&adapt)
}

/// The rate of a step, in units per second.
fn rate_of(steps: &RateSteps, step: usize) -> f64 {
    steps.limits[step] as f64 / steps.window
}

#[test]
fn its_steps_are_even_and_end_at_the_ceiling() {
    let days = |limit, days: u64| Quota::new(limit, Duration::from_secs(86_400 * days));
    for (floor, ceiling) in [
        (Quota::per_second(1), Quota::per_second(1_000)),
        (Quota::per_second(1_000), Quota::per_second(1_000_000_000)),
        (Quota::per_minute(1), Quota::per_second(1_000)),
        (Quota::per_hour(1), Quota::per_second(100)),
        (days(1, 2), Quota::per_second(5)),
        (days(3, 2), days(3, 2)),
        (Quota::new(7, Duration::from_millis(300)), Quota::new(7, Duration::from_millis(3))),
    ] {
        let steps = steps(floor, ceiling);
        let quotas: Vec<Quota> = steps.quotas(1).collect();
        assert!(quotas.len() <= 1_200, "{}", quotas.len());
        assert!(quotas[0].limit() >= 50 && u32::try_from(quotas[quotas.len() - 1].limit()).is_ok(), "{floor:?}");
        assert!(quotas.windows(2).all(|two| {
            let rise = two[1].limit() as f64 / two[0].limit() as f64;
            two[0].window() == two[1].window() && rise > 1.0 && rise <= 1.0201
        }));
        for (step, quota) in quotas.iter().enumerate() {
            let rate = per_second(quota);
            assert!((steps.bounds.floor * 0.999_999..=steps.bounds.ceiling * 1.000_001).contains(&rate), "{rate}");
            assert_eq!(steps.step(rate), step);
            assert_eq!(steps.step(rate * 0.999_99), step.saturating_sub(1));
            assert!((rate_of(&steps, step) - rate).abs() <= rate * 1e-9);
            let burst = quota.burst_size();
            assert!(burst == 1 || burst as f64 <= rate * 0.005, "{burst} at {rate}");
        }
        assert_eq!(steps.step(f64::MAX), quotas.len() - 1);
        assert_eq!(steps.step(0.0), 0);
    }
}
