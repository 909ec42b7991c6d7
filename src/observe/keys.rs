//! The gauge of the counters in this process: [`KeysGauge`].

/// A store's share of the gauge, which counts the keys of all stores. Without the
/// feature `metrics` it does nothing.
#[derive(Debug, Default)]
pub(crate) struct KeysGauge {
    #[cfg(feature = "metrics")]
    gauge: std::sync::OnceLock<metrics::Gauge>,
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables, clippy::unused_self, reason = "there is no gauge"))]
impl KeysGauge {
    pub(crate) fn add(&self) {
        #[cfg(feature = "metrics")]
        self.gauge().increment(1.0);
    }

    pub(crate) fn subtract(&self, keys: usize) {
        #[cfg(feature = "metrics")]
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        self.gauge().decrement(keys as f64);
    }

    #[cfg(feature = "metrics")]
    fn gauge(&self) -> &metrics::Gauge {
        self.gauge.get_or_init(|| metrics::gauge!("rate_limiting.keys"))
    }
}
