use proptest::prelude::*;

use super::*;

fn after(steps: usize, error: f64, controller: &mut Controller) -> f64 {
    (0..steps).for_each(|_| controller.step(error, 0.1));
    controller.fraction()
}

#[test]
fn a_signal_above_its_threshold_sheds_more_and_more() {
    let mut controller = Controller::default();
    controller.step(0.1, 0.1);
    let first = controller.fraction();
    assert!((first - 0.025).abs() < 1e-9, "proportional 0.02 and integral 0.005: {first}");
    assert!(after(10, 0.1, &mut controller) > first);
    assert!((after(20, 5.0, &mut controller) - MOST).abs() < 1e-9, "twice the threshold for two seconds");
}

#[test]
fn at_its_threshold_a_signal_sheds_nothing() {
    assert!(after(100, 0.0, &mut Controller::default()).abs() < 1e-9);
}

/// However near to their thresholds the signals stay.
#[test]
fn ten_seconds_below_the_thresholds_end_all_shedding() {
    for error in [0.0, -0.001, -0.1, -1.0, f64::NEG_INFINITY] {
        let mut controller = Controller::default();
        after(100, 1.0, &mut controller);
        assert!(after(101, error, &mut controller).abs() < 1e-9, "{error}");
    }
}

proptest! {
    #[test]
    fn the_fraction_stays_in_its_range(errors in prop::collection::vec((-10.0..10.0_f64, 0.0..2.0_f64), 1..100)) {
        let mut controller = Controller::default();
        for (error, seconds) in errors {
            controller.step(error, seconds);
            prop_assert!((0.0..=MOST).contains(&controller.fraction()));
        }
    }
}
