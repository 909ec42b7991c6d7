//! The level `eventual` on real servers: that a fleet keeps its limit, what becomes of
//! what an instance has counted when the store fails, and how few calls it needs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval},
};
use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule,
    backend::{Acquire, AcquireRequest, Backend, Receipt, Redis},
    time::Timestamp,
};

use super::{Seen, ask, exclusive_machine, limiter, patient, server::Server, shared_machine, until};

const DAY: Duration = Duration::from_secs(86_400);

fn policy(quota: Quota, sync: Duration) -> Policy {
    let rule = Rule::new("all").tier(quota).consistency(Consistency::Eventual).sync_interval(sync);
    Policy::new().rule(rule.on_backend_failure(FailureMode::Closed))
}

fn daily(limit: u64) -> Policy {
    policy(Quota::new(limit, DAY).algorithm(Algorithm::FixedWindow), Duration::from_millis(100))
}

/// An instance with its own connection.
async fn instance(server: &Server, policy: &Policy) -> RateLimiter {
    limiter(policy.clone(), &patient(server.url()).await)
}

/// Requests for as long as it takes to admit so many.
async fn admit(limiter: &RateLimiter, count: usize) {
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..count {
        ticks.tick().await;
        assert_eq!(ask(limiter, "/", "acme").await, Seen::Admitted);
    }
}

/// What the store has counted for the only key.
async fn counted(server: &Server) -> u64 {
    let keys = server.keys("rl:all:*fixed-window*").await;
    let counter = keys.iter().find(|key| !key.ends_with(":fleet")).expect("a counter");
    let text: u64 = server
        .run(
            "EVAL",
            ["local _, _, _, count = struct.unpack('<Bddd', redis.call('GET', KEYS[1])) return count", "1", counter],
        )
        .await;
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_is_admitted_reaches_the_store_exactly_once() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let (one, other) = (instance(&server, &daily(1_000_000)).await, instance(&server, &daily(1_000_000)).await);
    admit(&one, 300).await;
    admit(&other, 200).await;
    one.drain().await;
    other.drain().await;
    assert_eq!(counted(&server).await, 500);
}

/// Long before it is due to be reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peek_counts_what_was_admitted_here() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let quota = Quota::new(1_000_000, DAY).algorithm(Algorithm::FixedWindow);
    let limiter = instance(&server, &policy(quota, Duration::from_secs(10))).await;
    for admitted in [100, 200] {
        admit(&limiter, 100).await;
        let seen = limiter.peek(&Descriptor::new("/").method("GET").tenant("acme")).await;
        assert_eq!(seen.remaining(), 1_000_000 - admitted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_counted_while_the_store_was_frozen_is_reported_afterwards() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(Duration::from_millis(200)).connect().await.unwrap();
    let limiter =
        limiter(policy(Quota::new(1_000_000, DAY).algorithm(Algorithm::FixedWindow), Duration::from_secs(1)), &redis);
    admit(&limiter, 100).await;
    server.freeze();
    // For ten intervals the last known counts decide.
    admit(&limiter, 2_000).await;
    server.thaw();
    until("everything to be reported", async || {
        limiter.drain().await;
        (counted(&server).await == 2_100).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_store_for_ten_intervals_the_failure_mode_decides() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let limiter = instance(&server, &daily(1_000_000)).await;
    admit(&limiter, 100).await;
    server.kill();
    let start = Instant::now();
    until("the failure mode to decide", async || (ask(&limiter, "/", "acme").await == Seen::Failed).then_some(()))
        .await;
    let took = start.elapsed();
    assert!(took > Duration::from_millis(500), "failed after {took:?}");
    server.restart().await;
    until("the store to decide again", async || (ask(&limiter, "/", "acme").await == Seen::Admitted).then_some(()))
        .await;
}

/// Requests until one is rejected. Returns how many were admitted.
async fn use_up(limiter: &RateLimiter, tenant: &str) -> u64 {
    let mut admitted = 0;
    while ask(limiter, "/", tenant).await == Seen::Admitted {
        admitted += 1;
    }
    admitted
}

/// A copy that is used up asks again about once a second: it does not reject until its
/// window ends, whatever has become of the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_used_up_follows_the_store() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let policy = daily(200);
    let (one, other) = (instance(&server, &policy).await, instance(&server, &policy).await);
    let admits = async |limiter: &RateLimiter| {
        until("units that came back", async || (ask(limiter, "/", "acme").await == Seen::Admitted).then_some(())).await;
    };
    assert!(use_up(&one, "acme").await <= 200);
    other.reset(&Descriptor::new("/").method("GET").tenant("acme")).await.unwrap();
    admits(&one).await;
    use_up(&one, "acme").await;
    server.run::<(), 0>("FLUSHALL", []).await;
    admits(&one).await;
    use_up(&one, "acme").await;
    server.kill();
    until("the failure mode", async || (ask(&one, "/", "acme").await == Seen::Failed).then_some(())).await;
}

/// What a fleet admits of a limit whose store dies when about half of it is used.
async fn admitted_without_store(limit: u64) -> u64 {
    let mut server = Server::start().await;
    let policy = daily(limit);
    let mut fleet = Vec::new();
    for _ in 0..4 {
        fleet.push(instance(&server, &policy).await);
    }
    // At this rate, what is left lasts for longer than copies decide alone.
    let mut ticks = interval(Duration::from_millis(15));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut admitted = 0;
    while admitted < limit * 12 / 25 {
        ticks.tick().await;
        for limiter in &fleet {
            assert_eq!(ask(limiter, "/", "acme").await, Seen::Admitted);
            admitted += 1;
        }
    }
    server.kill();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        for limiter in &fleet {
            admitted += use_up(limiter, "acme").await;
        }
    }
    admitted
}

/// Each has its part of what was left, of which what it was granted is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_whose_store_is_gone_admit_no_more_than_was_left() {
    const LIMIT: u64 = 1_000;
    let _machine = shared_machine().await;
    let mut tries = Vec::new();
    // Instances know of each other's last units after an interval, which a stall makes
    // longer.
    for _ in 0..3 {
        let admitted = admitted_without_store(LIMIT).await;
        assert!(admitted > LIMIT * 6 / 10, "{admitted}: they go on alone");
        if admitted <= LIMIT * 105 / 100 {
            return;
        }
        tries.push(admitted);
    }
    panic!("{tries:?} of {LIMIT}");
}

/// What it had not reported is forgotten: the fleet admits as much more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_instance_takes_with_it_what_it_has_not_reported() {
    const LIMIT: u64 = 3_000;
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = policy(Quota::new(LIMIT, DAY).algorithm(Algorithm::FixedWindow), Duration::from_secs(10));
    let other = instance(&server, &policy).await;
    // On a runtime that ends with all that it would have sent, like a process that is
    // killed.
    let (url, own) = (server.url(), policy.clone());
    let killed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let limiter = runtime.block_on(async {
            let limiter = limiter(own, &patient(url).await);
            admit(&limiter, 500).await;
            limiter
        });
        drop(runtime);
        std::mem::forget(limiter);
    });
    killed.join().unwrap();
    let reported = counted(&server).await;
    assert!(reported < 500, "{reported}: everything was reported");
    let mut admitted = 0;
    while ask(&other, "/", "acme").await == Seen::Admitted {
        admitted += 1;
    }
    assert_eq!(admitted, LIMIT - reported, "what the store knew of");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_tenants_take_one_call_a_second_and_instance() {
    const INSTANCES: usize = 3;
    const TENANTS: usize = 25;
    let _machine = exclusive_machine().await;
    let server = Server::start().await;
    let policy = policy(Quota::per_minute(100_000), Duration::from_secs(1));
    let mut fleet = Vec::new();
    for _ in 0..INSTANCES {
        fleet.push(instance(&server, &policy).await);
    }
    let calls = async || -> u64 {
        let info: String = server.run("INFO", ["commandstats"]).await;
        let of = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")))?;
            line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok()
        };
        of("evalsha").unwrap_or(0) + of("eval").unwrap_or(0)
    };
    // A thousand requests a second. At first, and where the machine stalls, tenants are
    // new. `tests/sim` counts the calls of each second.
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = Vec::new();
    for request in 0.. {
        ticks.tick().await;
        if request % 1_000 == 0 {
            seen.push(calls().await);
            // Five seconds that no stall disturbs. Each instance checks once a second for
            // lost data as well.
            if let Some(made) = seen.len().checked_sub(6).map(|from| seen[seen.len() - 1] - seen[from])
                && made <= 5 * 2 * INSTANCES as u64 + 6
            {
                return eprintln!("{made} calls in five seconds");
            }
            assert!(seen.len() < 30, "calls after each second: {seen:?}");
        }
        let tenant = format!("tenant-{}", request * 7 / 3 % TENANTS);
        assert_eq!(ask(&fleet[request % INSTANCES], "/", &tenant).await, Seen::Admitted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_keeps_what_was_used() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let limiter = instance(&server, &daily(600)).await;
    for _ in 0..600 {
        assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
    }
    limiter.set_policy(daily(50)).unwrap();
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Rejected);
    limiter.drain().await;
    assert_eq!(counted(&server).await, 600);
    limiter.set_policy(daily(700)).unwrap();
    let mut admitted = 0;
    for _ in 0..200 {
        admitted += u64::from(ask(&limiter, "/", "acme").await == Seen::Admitted);
    }
    limiter.drain().await;
    assert_eq!((admitted, counted(&server).await), (100, 700));
}

/// A backend of which one decision is received late.
#[derive(Debug)]
struct Late {
    redis: Redis,
    /// How many requests there were.
    asked: AtomicUsize,
    holds: AtomicBool,
    released: Arc<Notify>,
}

impl Backend for Late {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire {
        let acquire = self.redis.acquire(request);
        self.asked.fetch_add(1, Ordering::SeqCst);
        match acquire {
            Acquire::Pending(decision) if self.holds.swap(false, Ordering::SeqCst) => {
                let released = Arc::clone(&self.released);
                Acquire::Pending(Box::pin(async move {
                    released.notified().await;
                    decision.await
                }))
            }
            acquire => acquire,
        }
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.redis.refund(receipt, now);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_whose_decision_is_received_late_counts_once() {
    const QUEUED: usize = 64;
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let late = Arc::new(Late {
        redis: patient(server.url()).await,
        asked: AtomicUsize::new(0),
        holds: AtomicBool::new(false),
        released: Arc::default(),
    });
    // What is before, held, and after it, and one more.
    let policy = daily(1 + QUEUED as u64 + 1 + 1 + 1);
    let limiter = RateLimiter::builder().policy(policy).backend(Arc::clone(&late)).build().unwrap();
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted, "the first");
    let spawn = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { ask(&limiter, "/", "acme").await })
    };
    let asked = async |count: usize| {
        until("the requests to be queued", async || (late.asked.load(Ordering::SeqCst) == count).then_some(())).await;
    };
    server.freeze();
    let queued: Vec<_> = (0..QUEUED).map(|_| spawn()).collect();
    asked(1 + QUEUED).await;
    // Decided together with one of these.
    late.holds.store(true, Ordering::SeqCst);
    let held = spawn();
    asked(1 + QUEUED + 1).await;
    server.thaw();
    for queued in queued {
        assert_eq!(queued.await.unwrap(), Seen::Admitted, "one of those before");
    }
    // Reads the counter, which has the unit of the held request.
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted, "the next");
    late.released.notify_one();
    assert_eq!(held.await.unwrap(), Seen::Admitted, "the held one");
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted, "the last");
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Rejected, "one too many");
}
