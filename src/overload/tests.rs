use super::*;

fn error(signal: impl LoadSignal, threshold: f64, load: f64) -> f64 {
    Overload::new().signal(signal, threshold).signals[0].error(load)
}

#[test]
fn an_error_is_a_part_of_the_threshold_or_of_what_is_above_it() {
    for (load, expected) in [(100.0, -0.5), (200.0, 0.0), (500.0, 1.5)] {
        assert!((error(|| 0.0, 200.0, load) - expected).abs() < 1e-9);
    }
    for (load, expected) in [(0.6, -1.0), (0.8, 0.0), (0.9, 0.5), (1.0, 1.0)] {
        assert!((error(cpu(), 0.8, load) - expected).abs() < 1e-9);
    }
    assert!((error(cpu(), 0.4, 0.8) - 1.0).abs() < 1e-9, "twice the threshold, as of any signal");
    assert!(error(cpu(), 1.0, 1.0).abs() < 1e-9);
    assert!(error(cpu(), 1.0, 1.001).abs() < 1e-9, "noise");
}
