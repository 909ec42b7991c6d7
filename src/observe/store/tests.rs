use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;

#[test]
fn every_event_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let lines = || recorder.handle().render();
    metrics::with_local_recorder(&recorder, || {
        let report = StoreReport::default();
        report.starts(false);
        assert!(lines().contains("rate_limiting_backend_open 0"));
        report.opened(&BackendError::unavailable("gone"), 1);
        assert!(lines().contains("rate_limiting_backend_open 1"));
        report.half_opened();
        report.opened(&BackendError::unavailable("gone"), 1);
        report.half_opened();
        report.closed(Duration::from_secs(1));
        assert!(lines().contains("rate_limiting_backend_open 0"));
        for (to, count) in [("open", 2), ("half_open", 2), ("closed", 1)] {
            let line = format!("rate_limiting_backend_transitions{{to=\"{to}\"}} {count}");
            assert!(lines().contains(&line), "{line} in {}", lines());
        }
        report.memory_lost("emptied");
        assert!(lines().contains("rate_limiting_backend_memory_lost 1"));
        report.called(Duration::from_millis(250));
        assert!(lines().contains("rate_limiting_backend_call_duration_sum 0.25"), "{}", lines());
    });
}
