//! A backend works whatever becomes of the runtime that it was created on, and of those
//! of its callers.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};
use tower_ratelimit::{Consistency, Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis};

use super::{
    LONG, SCHEDULING, Seen, ask, closed, cluster::Cluster, exclusive_machine, limiter, server::Server, shared_machine,
    until,
};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs on a runtime of its own, which ends then.
async fn on_its_own<T: Send + 'static>(work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(|| runtime().block_on(work())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_outlives_its_runtime() {
    let _machine = shared_machine().await;
    let (server, cluster) = (Server::start().await, Cluster::start().await);
    let single = Redis::builder().url(server.url()).deadline(LONG);
    for builder in [single, Redis::builder().cluster(cluster.urls()).deadline(LONG)] {
        let limiter = on_its_own(async || {
            let limiter = limiter(closed(Quota::per_day(3)), &builder.connect().await.unwrap());
            assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
            limiter
        })
        .await;
        for expected in [Seen::Admitted, Seen::Admitted, Seen::Rejected] {
            let limiter = limiter.clone();
            assert_eq!(on_its_own(async move || ask(&limiter, "/", "acme").await).await, expected);
        }
        assert_eq!(ask(&limiter, "/", "globex").await, Seen::Admitted);
    }
}

/// Leases are renewed, and cooldowns received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn background_tasks_outlive_the_runtime() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let lease = Duration::from_millis(600);
    let url = server.url();
    let connect = move || Redis::builder().url(url.clone()).deadline(LONG).lease(lease).connect();
    let policy = || Policy::new().rule(Rule::new("busy").tier(Quota::concurrent(1)));
    let request = Descriptor::new("/").tenant("acme");
    let (connect_first, first_policy) = (connect.clone(), policy());
    let (first, permit) = on_its_own(async move || {
        let limiter: RateLimiter = limiter(first_policy, &connect_first().await.unwrap());
        let permit = limiter.acquire(&Descriptor::new("/").tenant("acme"), Duration::ZERO).await.unwrap();
        assert_eq!(limiter.cooldown(&Descriptor::new("/").tenant("globex")), None, "it subscribes");
        (limiter, permit)
    })
    .await;
    let other = limiter(policy(), &connect().await.unwrap());
    assert!(first.acquire(&request, Duration::ZERO).await.is_err());
    let start = Instant::now();
    until("several leases to pass", async || {
        assert!(other.acquire(&request, Duration::ZERO).await.is_err(), "the lease was not renewed");
        (start.elapsed() > 3 * lease).then_some(())
    })
    .await;
    drop(permit);
    let _permit = until("the unit to be released", async || other.acquire(&request, Duration::ZERO).await.ok()).await;
    other.cool_down(&Descriptor::new("/").tenant("globex"), LONG);
    until("the cooldown to be received", async || first.cooldown(&Descriptor::new("/").tenant("globex"))).await;
}

/// Connects on a runtime that has ended when this returns.
fn orphan(server: &Server, deadline: Duration) -> RateLimiter {
    let redis = Redis::builder().url(server.url()).deadline(deadline);
    runtime().block_on(async { limiter(closed(Quota::per_day(100_000)), &redis.connect().await.unwrap()) })
}

/// Asks on a runtime that ends with the request.
fn ask_shortly(limiter: &RateLimiter) -> Seen {
    runtime().block_on(ask(limiter, "/", "acme"))
}

/// Asks in this way for at most so long, until a request is admitted.
fn is_admitted_soon(limiter: &RateLimiter) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if ask_shortly(limiter) == Seen::Admitted {
            return true;
        }
        thread::yield_now();
    }
    false
}

#[test]
fn runtimes_that_end_under_load_block_no_later_request() {
    let lasting = runtime();
    let (_machine, server) = lasting.block_on(async { (shared_machine().await, Server::start().await) });
    for _ in 0..5 {
        let limiter = orphan(&server, Duration::from_secs(1));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5).for_each(|_| _ = ask_shortly(&limiter)));
            }
        });
        assert!(is_admitted_soon(&limiter), "on short runtimes");
        assert_eq!(lasting.block_on(ask(&limiter, "/", "acme")), Seen::Admitted, "on a lasting runtime");
    }
}

/// The circuit breaker opens for a reason, and every later runtime ends sooner
/// than the delay before a probe.
#[test]
fn short_runtimes_close_the_circuit_breaker() {
    let lasting = runtime();
    let (_machine, mut server) = lasting.block_on(async { (shared_machine().await, Server::start().await) });
    let limiter = orphan(&server, Duration::from_millis(200));
    assert_eq!(ask_shortly(&limiter), Seen::Admitted);
    server.freeze();
    lasting.block_on(async {
        for _ in 0..5 {
            assert_eq!(ask(&limiter, "/", "acme").await, Seen::Failed);
        }
    });
    drop(lasting);
    server.thaw();
    assert!(is_admitted_soon(&limiter));
}

/// Wakes the thread that waits.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn without_any_runtime_a_request_is_decided_within_its_deadline() {
    let lasting = runtime();
    let (_machine, mut server) = lasting.block_on(async { (shared_machine().await, Server::start().await) });
    let limiter = orphan(&server, Duration::from_millis(500));
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let ask_here = || {
        let mut asking = std::pin::pin!(ask(&limiter, "/", "acme"));
        loop {
            if let Poll::Ready(seen) = asking.as_mut().poll(&mut Context::from_waker(&waker)) {
                return seen;
            }
            thread::park();
        }
    };
    assert_eq!(ask_here(), Seen::Admitted);
    server.freeze();
    assert_eq!(ask_here(), Seen::Failed);
}

/// A runtime that ends is no failure of the server, even if others use the backend.
#[test]
fn runtimes_that_end_never_open_the_circuit_breaker() {
    let lasting = runtime();
    let (_machine, server) = lasting.block_on(async { (shared_machine().await, Server::start().await) });
    let builder = Redis::builder().url(server.url()).deadline(LONG).breaker(5, LONG, LONG);
    for _ in 0..10 {
        let redis = runtime().block_on(builder.clone().connect()).unwrap();
        let limiter = limiter(closed(Quota::per_day(100_000)), &redis);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        ask_shortly(&limiter);
                        assert!(!redis.stats().open);
                    }
                });
            }
        });
        assert_eq!(lasting.block_on(ask(&limiter, "/", "acme")), Seen::Admitted);
    }
}

/// A runtime that exists outside `block_on` runs nothing. Requests on another one do not
/// need it.
#[test]
fn a_runtime_that_is_not_driven_is_not_needed() {
    let (first, second) = (runtime(), runtime());
    let (_machine, server) = second.block_on(async { (exclusive_machine().await, Server::start().await) });
    for connections in [1, 3] {
        let deadline = Duration::from_millis(200);
        let redis = Redis::builder().url(server.url()).deadline(deadline).connections(connections);
        let policy = closed(Quota::per_day(100_000)).rule(Rule::new("busy").path("/busy").tier(Quota::concurrent(1)));
        let (redis, limiter, permit) = first.block_on(async {
            let redis = redis.connect().await.unwrap();
            let limiter: RateLimiter = limiter(policy, &redis);
            assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
            let permit = limiter.acquire(&Descriptor::new("/busy").tenant("acme"), Duration::ZERO).await.unwrap();
            (redis, limiter, permit)
        });
        drop(permit);
        second.block_on(async {
            until("the requests to be admitted", async || {
                let start = Instant::now();
                let requests: Vec<_> = (0..10)
                    .map(|_| {
                        let limiter = limiter.clone();
                        tokio::spawn(async move { ask(&limiter, "/", "acme").await })
                    })
                    .collect();
                let mut are_admitted = true;
                for request in requests {
                    are_admitted &= request.await.unwrap() == Seen::Admitted;
                }
                assert!(start.elapsed() < deadline + SCHEDULING, "they took {:?}", start.elapsed());
                are_admitted.then_some(())
            })
            .await;
            let busy = Descriptor::new("/busy").tenant("acme");
            let _permit = until("the unit to return", async || limiter.acquire(&busy, Duration::ZERO).await.ok()).await;
        });
        // What was left there changes nothing when it runs after all.
        first.block_on(async { (0..100).for_each(|_| drop(tokio::spawn(async {}))) });
        second.block_on(async {
            for _ in 0..10 {
                assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
            }
        });
        assert!(!redis.stats().open);
    }
}

/// The same where the requests are of one key and come one after the other, behind a
/// refund that was queued first.
#[test]
fn a_runtime_that_is_not_driven_is_not_needed_by_requests_of_one_key() {
    let (first, second) = (runtime(), runtime());
    let (_machine, server) = second.block_on(async { (exclusive_machine().await, Server::start().await) });
    for level in [Consistency::Exact, Consistency::Leased] {
        let id = format!("{level:?}").to_lowercase();
        let rule = Rule::new(id).consistency(level).on_backend_failure(FailureMode::Closed);
        let policy = Policy::new().rule(rule.tier(Quota::per_day(100_000)));
        let redis = Redis::builder().url(server.url()).deadline(Duration::from_millis(200));
        let request = Descriptor::new("/").tenant("acme");
        let (redis, limiter, permit) = first.block_on(async {
            let redis = redis.connect().await.unwrap();
            let limiter: RateLimiter = limiter(policy, &redis);
            let permit = limiter.acquire(&request, Duration::ZERO).await.unwrap();
            (redis, limiter, permit)
        });
        permit.refund();
        second.block_on(async {
            until("the requests to be admitted", async || {
                // What a pool still admits does not need the store.
                let are_admitted = async || {
                    for _ in 0..500 {
                        if ask(&limiter, "/", "acme").await != Seen::Admitted {
                            return false;
                        }
                    }
                    true
                };
                are_admitted().await.then_some(())
            })
            .await;
        });
        assert!(!redis.stats().open);
    }
}
