//! Adaptive concurrency limits beside rules of a real server: counted in this process, and
//! charged together with what the store decides, or not at all.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, FailureMode, Permit, Policy, Quota, RateLimited, RateLimitedKind, RateLimiter,
    Rule,
};

use super::{limiter, patient, server::Server, shared_machine};

const IN_FLIGHT: u64 = 2;

fn policy(level: Consistency, mode: FailureMode) -> Policy {
    // A window that outlasts the test, and does not end during it.
    let day = Quota::per_day(5).algorithm(Algorithm::AnchoredWindow);
    let store = Rule::new(format!("store-{level:?}-{mode:?}")).per([]).tier(day);
    let found = Rule::new("found").per([]).tier(Quota::adaptive_concurrency(IN_FLIGHT..=9));
    Policy::new().rule(store.consistency(level).on_backend_failure(mode)).rule(found)
}

fn request() -> Descriptor<'static> {
    Descriptor::new("/")
}

async fn acquire(limiter: &RateLimiter) -> Result<Permit, RateLimited> {
    limiter.acquire(&request(), Duration::ZERO).await
}

fn in_flight(limiter: &RateLimiter) -> u64 {
    limiter.adaptive_limits(&request())[0].in_flight()
}

/// Holds as many requests as the limit admits, and sees it reject the next ones.
async fn fill(limiter: &RateLimiter) -> Vec<Permit> {
    let mut held = Vec::new();
    for _ in 0..IN_FLIGHT {
        held.push(acquire(limiter).await.unwrap());
    }
    for _ in 0..10 {
        assert_eq!(acquire(limiter).await.unwrap_err().kind(), RateLimitedKind::Overloaded);
    }
    assert_eq!(in_flight(limiter), IN_FLIGHT);
    held
}

#[tokio::test]
async fn neither_is_charged_for_what_the_other_rejects() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    for level in [Consistency::Exact, Consistency::Leased] {
        let limiter = limiter(policy(level, FailureMode::Closed), &patient(server.url()).await);
        drop(fill(&limiter).await);
        for _ in IN_FLIGHT..5 {
            drop(acquire(&limiter).await.unwrap());
        }
        // The store has nothing left, and nothing stays in flight.
        for _ in 0..10 {
            assert_eq!(acquire(&limiter).await.unwrap_err().kind(), RateLimitedKind::QuotaExceeded, "{level:?}");
        }
        assert_eq!(in_flight(&limiter), 0, "{level:?}");
    }
}

#[tokio::test]
async fn it_holds_while_the_server_is_gone() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let open = limiter(policy(Consistency::Exact, FailureMode::Open), &patient(server.url()).await);
    let closed = limiter(policy(Consistency::Exact, FailureMode::Closed), &patient(server.url()).await);
    let held = acquire(&open).await.unwrap();
    server.kill();
    drop(held);
    drop(fill(&open).await);
    assert_eq!(in_flight(&open), 0);
    assert_eq!(acquire(&closed).await.unwrap_err().kind(), RateLimitedKind::BackendUnavailable);
    assert_eq!(in_flight(&closed), 0);
}
