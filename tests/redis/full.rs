//! A server that is out of memory, as after a flood of invented tenants. Rules
//! whose keys callers can invent fall back to the local limiter, unless they set
//! a failure mode.

use std::time::Duration;

use redis::Value;
use tokio::time::Instant;
use tower_ratelimit::{Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule, error::BackendErrorKind};

#[cfg(feature = "tracing")]
use super::{LONG, log};
use super::{Seen, ask, failure_kind, limiter, patient, server::Server, shared_machine, until};

const LIMIT: u64 = 5;

fn policy() -> Policy {
    let rule = |id: &str| Rule::new(id).path(format!("/{id}")).tier(Quota::per_day(LIMIT));
    Policy::new()
        .rule(rule("unset"))
        .rule(rule("common").per([]))
        .rule(rule("open").on_backend_failure(FailureMode::Open))
        .rule(rule("closed").on_backend_failure(FailureMode::Closed))
}

async fn set_memory(server: &Server, bytes: u64) {
    let _: Value = server.run("CONFIG", ["SET", "maxmemory", &bytes.to_string()]).await;
}

async fn used_memory(server: &Server) -> u64 {
    let info: String = server.run("INFO", ["memory"]).await;
    info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse().unwrap()
}

/// What a tenant sees of so many requests above the limit.
async fn seen(limiter: &RateLimiter, path: &str) -> [usize; 3] {
    let mut counts = [0; 3];
    for _ in 0..4 * LIMIT {
        counts[ask(limiter, path, "acme").await as usize] += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_that_fills_the_server_switches_no_limit_off() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(policy(), &redis);
    assert_eq!(ask(&limiter, "/unset", "first").await, Seen::Admitted);
    set_memory(&server, used_memory(&server).await + 200_000).await;
    let mut invented = 0;
    while limiter.stats().failed_local == 0 {
        ask(&limiter, "/unset", &format!("invented-{invented}")).await;
        invented += 1;
        assert!(invented < 20_000 && limiter.stats().failed_open == 0, "{invented}: {:?}", limiter.stats());
    }
    // The memory in use moves a little: what just filled it may fit a moment later.
    set_memory(&server, 1).await;
    let limit = LIMIT as usize;
    let all = 4 * limit;
    let [admitted, rejected, failed] = seen(&limiter, "/unset").await;
    assert_eq!([admitted, rejected, failed], [limit, all - limit, 0], "by the local limiter");
    assert_eq!(seen(&limiter, "/open").await, [all, 0, 0], "as it is set");
    assert_eq!(seen(&limiter, "/closed").await, [0, 0, all], "as it is set");
    assert_eq!(seen(&limiter, "/common").await, [all, 0, 0], "callers cannot invent its key");
    set_memory(&server, 0).await;
    until("the server to decide again", async || {
        (ask(&limiter, "/closed", "acme").await == Seen::Admitted).then_some(())
    })
    .await;
}

/// Also while the circuit breaker is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_names_the_lack_of_memory() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let closed = Rule::new("closed").tier(Quota::per_day(LIMIT)).on_backend_failure(FailureMode::Closed);
    let limiter = limiter(Policy::new().rule(closed), &redis);
    set_memory(&server, 1).await;
    for _ in 0..20 {
        assert_eq!(failure_kind(&limiter, "acme").await, Some(BackendErrorKind::OutOfMemory));
    }
    assert!(redis.stats().open);
}

/// Also where a call looks for lost data, which is once a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_still_answers_what_it_need_not_write() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(policy(), &redis);
    for _ in 0..LIMIT {
        assert_eq!(ask(&limiter, "/common", "acme").await, Seen::Admitted);
    }
    set_memory(&server, 1).await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        let peeked = limiter.peek(&Descriptor::new("/common")).await;
        assert!(!peeked.is_allowed(), "{peeked:?}, {:?}", limiter.stats());
    }
}

#[cfg(feature = "tracing")]
#[tokio::test]
async fn a_lack_of_memory_is_logged() {
    const MESSAGE: &str = "redis is out of memory, perhaps by a flood";
    let _machine = shared_machine().await;
    log::start();
    let server = Server::start().await;
    let redis = tower_ratelimit::backend::Redis::builder();
    let redis = redis.url(server.url()).deadline(LONG).on_current_runtime().connect().await.unwrap();
    let limiter = limiter(policy(), &redis);
    assert_eq!(ask(&limiter, "/unset", "acme").await, Seen::Admitted);
    assert_eq!(log::count_here(MESSAGE), 0);
    set_memory(&server, 1).await;
    ask(&limiter, "/unset", "acme").await;
    assert_eq!(log::count_here(MESSAGE), 1);
}
