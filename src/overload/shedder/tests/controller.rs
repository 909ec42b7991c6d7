use proptest::prelude::*;

use super::super::*;

fn after(steps: usize, error: f64, controller: &mut Controller) -> f64 {
    (0..steps).for_each(|_| controller.step(error, 0.1));
    controller.fraction
}

#[test]
fn a_signal_above_its_threshold_sheds_more_and_more() {
    let mut controller = Controller::default();
    controller.step(0.1, 0.1);
    let first = controller.fraction;
    let admitted = (-0.03 - 0.005_f64).exp();
    assert!((first - (1.0 - admitted)).abs() < 1e-9, "proportional 0.03 and integral 0.005: {first}");
    controller.step(0.1, 0.2);
    let admitted = (-0.03 - 0.015_f64).exp();
    assert!((controller.fraction - (1.0 - admitted)).abs() < 1e-9, "0.01 more in twice the time");
    assert!(after(10, 0.1, &mut controller) > first);
    assert!((after(20, 5.0, &mut controller) - MOST).abs() < 1e-9, "twice the threshold for two seconds");
}

#[test]
fn at_its_threshold_a_signal_sheds_nothing() {
    assert!(after(100, 0.0, &mut Controller::default()).abs() < 1e-9);
}

/// What is admitted, not what is shed, changes by the same ratio at each load.
#[test]
fn a_change_is_a_ratio_of_what_is_admitted() {
    let mut controller = Controller::default();
    let mut change = |steps| {
        let admitted = 1.0 - after(steps, 0.5, &mut controller);
        (1.0 - after(1, 0.9, &mut controller)) / admitted
    };
    let (low, high) = (change(5), change(40));
    assert!((low - high).abs() < 1e-9 && low < 0.9, "{low} {high}");
}

/// Whatever a backlog needed for a moment.
#[test]
fn a_backlog_leaves_behind_no_integral() {
    // Of 9 the proportional part is not quite the most, so the integral may have the rest.
    for (error, most) in [(10.0, 0.05), (9.0, 0.25)] {
        let mut controller = Controller::default();
        controller.step(0.5, 0.1);
        assert!(after(50, error, &mut controller) >= MOST - 1e-9);
        let left = after(1, 0.0, &mut controller);
        assert!(left < most, "{error}: {left}");
    }
}

/// However near to their thresholds the signals stay.
#[test]
fn ten_seconds_below_the_thresholds_end_all_shedding() {
    for error in [0.0, -0.001, -0.1, -1.0, f64::NEG_INFINITY] {
        let mut controller = Controller::default();
        // The integral is at its most, and the proportional part does not matter.
        controller.step(0.001, 10_000.0);
        assert!(after(101, error, &mut controller).abs() < 1e-9, "{error}");
    }
}

/// A signal that stays near its threshold is likely to be above it again.
#[test]
fn at_the_threshold_it_takes_nearly_ten_seconds() {
    let mut controller = Controller::default();
    controller.step(0.001, 10_000.0);
    assert!(after(95, 0.0, &mut controller) > 0.0);
}

fn error() -> impl Strategy<Value = f64> {
    prop_oneof![-10.0..100.0_f64, Just(f64::INFINITY), Just(f64::NEG_INFINITY)]
}

#[test]
fn far_below_the_thresholds_it_takes_three_seconds() {
    for error in [-1.0, -100.0] {
        let mut controller = Controller::default();
        assert!(after(100, 1.0, &mut controller) >= MOST);
        assert!(after(15, error, &mut controller) > 0.1);
        assert!(after(15, error, &mut controller).abs() < 1e-9);
    }
}

#[test]
fn a_time_without_load_is_no_credit() {
    let (mut idle, mut new) = (Controller::default(), Controller::default());
    after(1_000, -1.0, &mut idle);
    assert!((after(1, 0.5, &mut idle) - after(1, 0.5, &mut new)).abs() < 1e-9);
}

proptest! {
    #[test]
    fn the_fraction_stays_in_its_range(errors in prop::collection::vec((error(), 0.0..2.0_f64), 1..100)) {
        let mut controller = Controller::default();
        for (error, seconds) in errors {
            controller.step(error, seconds);
            prop_assert!((0.0..=MOST).contains(&controller.fraction));
        }
    }
}
