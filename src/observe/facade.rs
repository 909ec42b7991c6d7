//! The crates `metrics` and `tracing`. While a feature is off, the same names do
//! nothing, so what reports need not ask.
//!
//! Invariant: what is written for a crate compiles with its stand-in.

#![allow(dead_code, unused_imports, reason = "each feature uses some of it")]

#[cfg(feature = "metrics")]
pub(crate) use ::metrics;
#[cfg(feature = "tracing")]
pub(crate) use ::tracing;

#[cfg(not(feature = "metrics"))]
pub(crate) mod metrics {
    /// A counter, a gauge or a histogram.
    #[derive(Debug)]
    pub(crate) struct Nothing;

    pub(crate) type Counter = Nothing;
    pub(crate) type Gauge = Nothing;
    pub(crate) type Histogram = Nothing;

    impl Nothing {
        pub(crate) fn increment(&self, _: impl Sized) {}
        pub(crate) fn set(&self, _: impl Sized) {}
        pub(crate) fn record(&self, _: impl Sized) {}
    }

    macro_rules! nothing {
        ($($anything:tt)*) => {
            $crate::observe::facade::metrics::Nothing
        };
    }
    pub(crate) use {nothing as counter, nothing as gauge, nothing as histogram};
}

#[cfg(not(feature = "tracing"))]
pub(crate) mod tracing {
    macro_rules! nothing {
        ($($anything:tt)*) => {};
    }
    pub(crate) use {nothing as debug, nothing as error, nothing as info, nothing as warn};

    pub(crate) mod dispatcher {
        pub(crate) fn has_been_set() -> bool {
            false
        }
    }
}
