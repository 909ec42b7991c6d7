//! The algorithms of `tower-resilience-adaptive` in virtual time.
//!
//! Its layer reads the standard library's clock, so it cannot be stepped. Its algorithms
//! read none: they are told latencies, here by a service that does what the layer does
//! behind tower's `LoadShed`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::time::Instant;
use tower::{ServiceExt, service_fn, util::BoxCloneService};
use tower_resilience_adaptive::{Aimd, ConcurrencyAlgorithm, Vegas};

use crate::{
    protections::{Contestant, statuses},
    server::{Handler, Protected},
};

pub(crate) const SIMULATED: [Contestant; 2] = [
    ("tower-resilience-adaptive: Aimd", |handler, _| stepped(aimd(), handler)),
    ("tower-resilience-adaptive: Vegas", |handler, _| stepped(vegas(), handler)),
];

/// Its defaults, from 1 to 100 in flight, with a latency that is well above the usual one.
pub(crate) fn aimd() -> Aimd {
    Aimd::builder().latency_threshold(Duration::from_millis(200)).build().expect("valid limits")
}

/// Its defaults.
pub(crate) fn vegas() -> Vegas {
    Vegas::builder().build().expect("valid limits")
}

fn stepped(algorithm: impl ConcurrencyAlgorithm + 'static, handler: Handler) -> Protected {
    let (algorithm, in_flight) = (Arc::new(algorithm), Arc::new(AtomicUsize::new(0)));
    let handler = statuses(handler);
    BoxCloneService::new(service_fn(move |request| {
        let (algorithm, in_flight, handler) = (Arc::clone(&algorithm), Arc::clone(&in_flight), handler.clone());
        async move {
            if in_flight.load(Ordering::Relaxed) >= algorithm.limit() {
                return Ok(StatusCode::SERVICE_UNAVAILABLE);
            }
            in_flight.fetch_add(1, Ordering::Relaxed);
            let sent = Instant::now();
            let status = handler.oneshot(request).await;
            algorithm.record_success_with_load(sent.elapsed(), in_flight.load(Ordering::Relaxed));
            in_flight.fetch_sub(1, Ordering::Relaxed);
            status
        }
    }))
}
