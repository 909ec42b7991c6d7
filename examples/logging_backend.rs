//! A decorator around any backend: logs each decision and how long it took.
//!
//! `cargo run --example logging_backend`

use std::time::{Duration, Instant};

use tower_ratelimit::{
    BackendError, Descriptor, Quota, RateLimiter,
    backend::{
        Acquire, AcquireRequest, Backend, CooldownSharing, Draining, Local, Outcome, Receipt, Settlement, Usage,
    },
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
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire {
        #[allow(clippy::disallowed_methods, reason = "a latency, not a decision")]
        let started = Instant::now();
        let rules: Vec<&str> = request.charges.iter().map(|charge| charge.rule()).collect();
        let rules = rules.join(",");
        match self.0.acquire(request) {
            Acquire::Ready(result) => {
                log(&rules, &result, started.elapsed());
                Acquire::Ready(result)
            }
            Acquire::Pending(reply) => Acquire::Pending(Box::pin(async move {
                let result = reply.await;
                log(&rules, &result, started.elapsed());
                result
            })),
            other => other,
        }
    }

    // The inner backend handles all other calls.
    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.0.refund(receipt, now);
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        self.0.release(receipt, now);
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        self.0.settle(receipt, settlement, now);
    }

    fn cooldown_sharing(&self) -> Option<&dyn CooldownSharing> {
        self.0.cooldown_sharing()
    }

    fn honors_consistency(&self) -> bool {
        self.0.honors_consistency()
    }

    fn drain(&self, now: Timestamp) -> Draining {
        self.0.drain(now)
    }

    fn usage(&self) -> Usage {
        self.0.usage()
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
