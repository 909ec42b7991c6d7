//! A decorator around any backend: logs each decision and how long it took.
//!
//! `cargo run --example logging_backend`

use std::time::{Duration, Instant};

use tower_ratelimit::{
    BackendError, Descriptor, Quota, RateLimiter,
    backend::{Backend, Decide, Local, Outcome, Receipt, Request},
    time::Timestamp,
};

#[derive(Debug)]
struct Logging<B>(B);

fn log(rules: &str, result: &Result<Outcome, BackendError>, took: Duration) {
    let decided = match result {
        Ok(outcome) if outcome.is_admitted() => format!("admitted after {:?}", outcome.wait()),
        Ok(outcome) if outcome.is_busy() => "rejected, a concurrency limit is full".to_owned(),
        Ok(outcome) => format!("rejected, retry after {:?}", outcome.retry_after()),
        Err(error) => format!("failed: {error}"),
    };
    println!("{rules}: {decided} ({} us)", took.as_micros());
}

impl<B: Backend> Backend for Logging<B> {
    fn decide(&self, request: &Request<'_>) -> Decide {
        #[allow(clippy::disallowed_methods, reason = "a latency, not a decision")]
        let started = Instant::now();
        let rules: Vec<&str> = request.charges.iter().map(|charge| charge.rule()).collect();
        let rules = rules.join(",");
        match self.0.decide(request) {
            Decide::Now(result) => {
                log(&rules, &result, started.elapsed());
                Decide::Now(result)
            }
            Decide::Later(reply) => Decide::Later(Box::pin(async move {
                let result = reply.await;
                log(&rules, &result, started.elapsed());
                result
            })),
            other => other,
        }
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.0.refund(receipt, now);
    }

    // It handles all other calls.
    fn inner(&self) -> Option<&dyn Backend> {
        Some(&self.0)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = RateLimiter::builder().policy(Quota::per_hour(1)).backend(Logging(Local::new())).build()?;
    for expected in [true, false] {
        let decision = limiter.check(&Descriptor::new("/").tenant("acme")).await;
        assert_eq!(decision.is_allowed(), expected);
    }
    Ok(())
}
