//! The cost of a decision: by algorithm, by the number of keys, by the shape of
//! the policy, through the layer, and with a wait. In one process only;
//! `benches/peers` compares with other crates.

use std::{
    convert::Infallible,
    future::{self, Future, Ready},
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use http::{Request, Response};
use tower::{Layer, Service, service_fn};
use tower_ratelimit::{
    Algorithm, Decision, Descriptor, Headers, Permit, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant,
};

/// The output of a future that is ready at its first poll.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a local decision is ready at once"),
    }
}

fn check(limiter: &RateLimiter, path: &str, tenant: &str) -> Decision {
    now(limiter.check(&Descriptor::new(path).method("GET").tenant(tenant)))
}

/// A limit that the benchmark neither uses up nor lets refill completely.
const PLENTY: u64 = 60_000_000_000;

fn limiter(policy: impl Into<Policy>) -> RateLimiter {
    RateLimiter::new(policy).expect("a valid policy")
}

fn algorithms(c: &mut Criterion) {
    let mut group = c.benchmark_group("algorithm, one key");
    for (algorithm, limit) in [
        (Algorithm::TokenBucket, PLENTY),
        (Algorithm::FixedWindow, PLENTY),
        (Algorithm::AnchoredWindow, PLENTY),
        (Algorithm::SlidingWindow, PLENTY),
    ] {
        let limiter = limiter(Quota::per_minute(limit).algorithm(algorithm));
        group.bench_function(algorithm.as_str(), |b| b.iter(|| check(&limiter, "/", black_box("acme"))));
    }
    // These reject most requests, because the benchmark sends more than they admit.
    for algorithm in [Algorithm::LeakyBucket, Algorithm::SlidingLog] {
        let limiter = limiter(Quota::per_minute(1_000).algorithm(algorithm));
        let name = format!("{algorithm}, rejected");
        group.bench_function(name, |b| b.iter(|| check(&limiter, "/", black_box("acme"))));
    }
    group.finish();
}

fn store(c: &mut Criterion) {
    let mut group = c.benchmark_group("store, keys held");
    for count in [1_000, 100_000, 1_000_000] {
        let limiter = limiter(Quota::per_minute(PLENTY));
        let tenants: Vec<String> = (0..count).map(|key| format!("tenant-{key:07}")).collect();
        for tenant in &tenants {
            check(&limiter, "/", tenant);
        }
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                check(&limiter, "/", &tenants[(random % count) as usize])
            });
        });
    }
    group.finish();
}

fn policies(c: &mut Criterion) {
    let mut group = c.benchmark_group("policy");
    let two_tiers = Rule::new("two").tier(Quota::per_minute(PLENTY)).tier(Quota::per_hour(PLENTY));
    let two_rules = Policy::new()
        .rule(Rule::new("one").tier(Quota::per_minute(PLENTY)))
        .rule(Rule::new("other").path("/product/{id}").tier(Quota::per_hour(PLENTY)));
    for (name, limiter) in [
        ("one tier", limiter(Quota::per_minute(PLENTY))),
        ("two tiers", limiter(Policy::new().rule(two_tiers))),
        ("two rules", limiter(two_rules)),
        ("one of 10 rules", limiter(many_rules(10))),
        ("one of 1,000 rules", limiter(many_rules(1_000))),
    ] {
        group.bench_function(name, |b| b.iter(|| check(&limiter, black_box("/product/7"), "acme")));
    }
    let rejecting = limiter(Quota::per_hour(1));
    group.bench_function("rejected", |b| b.iter(|| check(&rejecting, black_box("/"), "acme")));
    group.finish();
}

fn many_rules(count: usize) -> Policy {
    let product = Rule::new("product").path("/product/{id}").tier(Quota::per_minute(PLENTY));
    (1..count).fold(Policy::new().rule(product), |policy, rule| {
        let other = Rule::new(format!("rule-{rule}")).path(format!("/other-{rule}/{{id}}"));
        policy.rule(other.tier(Quota::per_minute(PLENTY)))
    })
}

fn layers(c: &mut Criterion) {
    fn answer(_: Request<()>) -> Ready<Result<Response<http_body_util::Empty<bytes::Bytes>>, Infallible>> {
        future::ready(Ok(Response::new(http_body_util::Empty::new())))
    }
    let request = || Request::get("/").header("x-api-key", "acme").body(()).expect("a valid request");
    let mut group = c.benchmark_group("layer");
    let mut bare = service_fn(answer);
    group.bench_function("none", |b| b.iter(|| now(bare.call(request()))));
    for (name, quota, headers) in [
        ("without headers", Quota::per_minute(PLENTY), Headers::NONE),
        ("with headers", Quota::per_minute(PLENTY), Headers::ALL),
        ("rejected", Quota::per_hour(1), Headers::ALL),
    ] {
        let layer = RateLimitLayer::new(limiter(quota)).tenant(tenant::header("x-api-key")).headers(headers);
        let mut service = layer.layer(service_fn(answer));
        group.bench_function(name, |b| b.iter(|| now(service.call(request()))));
    }
    group.finish();
}

/// Cancels each wait at once: it reserves a slot, sets a timer, and releases
/// both. Only the sleep is left out.
fn waits(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _guard = runtime.enter();
    let request = Descriptor::new("/").method("GET").tenant("acme");
    let mut group = c.benchmark_group("acquire");
    let plenty = limiter(Quota::per_minute(PLENTY));
    group.bench_function("at once", |b| b.iter(|| now(plenty.acquire(black_box(&request), Duration::MAX))));
    let used_up = limiter(Quota::per_hour(1));
    group.bench_function("at once, refunded", |b| {
        b.iter(|| now(plenty.acquire(black_box(&request), Duration::MAX)).map(Permit::refund));
    });
    drop(now(used_up.acquire(&request, Duration::ZERO)).expect("within the limit"));
    group.bench_function("rejected", |b| b.iter(|| now(used_up.acquire(black_box(&request), Duration::ZERO)).is_err()));
    group.bench_function("a wait, cancelled", |b| {
        b.iter(|| {
            let waits = pin!(used_up.acquire(black_box(&request), Duration::MAX));
            assert!(waits.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        });
    });
    group.finish();
    assert_eq!(used_up.stats().waiting, 0);
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = algorithms, store, policies, layers, waits
}
criterion_main!(benches);
