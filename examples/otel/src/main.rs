//! The metrics of a limiter, sent to a collector by OTLP over HTTP.
//!
//! `cargo run --manifest-path examples/otel/Cargo.toml [-- URL]`
//!
//! URL is that of a collector: `http://localhost:4318/v1/metrics`. Without it the
//! example starts a stub, and prints what the stub received.

mod bridge;
mod collector;

use std::{env, error::Error};

use opentelemetry::metrics::MeterProvider;
use opentelemetry_otlp::{MetricExporter, Protocol, WithExportConfig};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use tower_ratelimit::{Descriptor, Quota, RateLimiter};

fn main() -> Result<(), Box<dyn Error>> {
    let (url, received) = match env::args().nth(1) {
        Some(url) => (url, None),
        None => collector::start().map(|(url, received)| (url, Some(received)))?,
    };
    let exporter =
        MetricExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_endpoint(url).build()?;
    let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter).build();
    metrics::set_global_recorder(bridge::Bridge::new(provider.meter("tower-ratelimit")))?;

    // Built after the recorder is installed, so that it describes its metrics.
    let limiter = RateLimiter::new(Quota::per_minute(3))?;
    for tenant in ["acme", "initech"] {
        for _ in 0..5 {
            let _ = limiter.try_check(&Descriptor::new("/").tenant(tenant));
        }
    }
    provider.shutdown()?;
    if let Some(received) = received {
        println!("{}", received.recv()?.join("\n"));
    }
    Ok(())
}
