//! From the facade `metrics` to OpenTelemetry: [`Bridge`].
//!
//! A gauge is observed instead of being set, since limiters also increment gauges,
//! which OpenTelemetry's cannot do.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use opentelemetry::{KeyValue, metrics::Meter};

/// A recorder that makes instruments of a meter.
pub(crate) struct Bridge {
    meter: Meter,
    /// The unit and the text of each metric.
    descriptions: Mutex<HashMap<String, (&'static str, String)>>,
    /// One value for each gauge and its labels.
    gauges: Mutex<HashMap<Key, Arc<AtomicU64>>>,
}

impl Bridge {
    pub(crate) fn new(meter: Meter) -> Self {
        Self { meter, descriptions: Mutex::default(), gauges: Mutex::default() }
    }

    fn describe(&self, name: &KeyName, unit: Option<Unit>, text: &SharedString) {
        // The codes of UCUM, as OpenTelemetry has them.
        let unit = if unit == Some(Unit::Seconds) { "s" } else { "1" };
        let mut descriptions = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
        descriptions.insert(name.as_str().into(), (unit, text.to_string()));
    }

    fn description(&self, key: &Key) -> (&'static str, String) {
        let descriptions = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
        descriptions.get(key.name()).cloned().unwrap_or_default()
    }
}

fn attributes(key: &Key) -> Vec<KeyValue> {
    key.labels().map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned())).collect()
}

struct Instrument<I>(I, Vec<KeyValue>);

impl CounterFn for Instrument<opentelemetry::metrics::Counter<u64>> {
    fn increment(&self, value: u64) {
        self.0.add(value, &self.1);
    }

    /// Limiters only increment.
    fn absolute(&self, _: u64) {}
}

impl HistogramFn for Instrument<opentelemetry::metrics::Histogram<f64>> {
    fn record(&self, value: f64) {
        self.0.record(value, &self.1);
    }
}

impl Recorder for Bridge {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&name, unit, &text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&name, unit, &text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&name, unit, &text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let (unit, text) = self.description(key);
        let counter = self.meter.u64_counter(key.name().to_owned()).with_unit(unit).with_description(text).build();
        Counter::from_arc(Arc::new(Instrument(counter, attributes(key))))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        let value = gauges.entry(key.clone()).or_insert_with(|| {
            let value = Arc::new(AtomicU64::new(0.0_f64.to_bits()));
            let (observed, attributes) = (Arc::clone(&value), attributes(key));
            let (unit, text) = self.description(key);
            let gauge = self.meter.f64_observable_gauge(key.name().to_owned()).with_unit(unit).with_description(text);
            gauge
                .with_callback(move |observer| {
                    observer.observe(f64::from_bits(observed.load(Ordering::Relaxed)), &attributes);
                })
                .build();
            value
        });
        Gauge::from_arc(Arc::clone(value))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let (unit, text) = self.description(key);
        let histogram = self.meter.f64_histogram(key.name().to_owned()).with_unit(unit).with_description(text).build();
        Histogram::from_arc(Arc::new(Instrument(histogram, attributes(key))))
    }
}
