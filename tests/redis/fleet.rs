//! Several instances, one limit: never above it, and all of it used.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};
use tower_ratelimit::{
    Algorithm, Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis, testing::ManualClock,
};

use super::{Seen, ask, closed, exclusive_machine, limiter, patient, server::Server, shared_machine, until};

const INSTANCES: usize = 3;
const TASKS: usize = 32;
const LIMIT: u64 = 1_000;
const SECONDS: u64 = 10;

/// Limiters that share only the server.
async fn fleet(server: &Server, policy: &Policy) -> Vec<RateLimiter> {
    let mut fleet = Vec::new();
    for _ in 0..INSTANCES {
        fleet.push(limiter(policy.clone(), &patient(server.url()).await));
    }
    fleet
}

/// In microseconds since the Unix epoch. The server runs on this machine, and uses
/// the same clock.
#[allow(clippy::disallowed_methods, reason = "the server reads it as well")]
fn wall_clock() -> u64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since_epoch.as_micros()).unwrap()
}

/// An admission was decided between these two times.
pub(crate) type Admission = (u64, u64);

/// One task for each of the limiters, as many seconds.
pub(crate) async fn admissions(tasks_of: &[RateLimiter], tenant: &'static str, seconds: u64) -> Vec<Admission> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for limiter in tasks_of {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut ticks = interval(Duration::from_millis(5));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut admissions = Vec::new();
            while start.elapsed() < Duration::from_secs(seconds) {
                let before = wall_clock();
                match ask(&limiter, "/", tenant).await {
                    Seen::Admitted => admissions.push((before, wall_clock())),
                    Seen::Rejected => drop(ticks.tick().await),
                    Seen::Failed => panic!("the store failed"),
                }
            }
            admissions
        });
    }
    let mut all: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    all.sort_unstable();
    all
}

fn per_second() -> Quota {
    Quota::per_second(LIMIT)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_never_exceeds_the_limit_and_uses_all_of_it() {
    let _machine = exclusive_machine().await;
    let server = Server::start().await;
    let windows = fleet(&server, &closed(per_second().algorithm(Algorithm::FixedWindow))).await;
    let bucket = Rule::new("bucket").tier(per_second().burst(100)).on_backend_failure(FailureMode::Closed);
    let buckets = Policy::new().rule(bucket);
    let buckets = fleet(&server, &buckets).await;
    let load = |fleet: &[RateLimiter]| -> Vec<_> {
        fleet.iter().flat_map(|limiter| std::iter::repeat_n(limiter.clone(), TASKS)).collect()
    };
    let (windows, buckets) = (load(&windows), load(&buckets));
    // Never above the limit. Units that are lost while a busy machine stalls are
    // not lost every time.
    for tenant in ["acme", "globex", "initech", "umbrella", "hooli"] {
        let (windows, buckets) =
            tokio::join!(admissions(&windows, tenant, SECONDS), admissions(&buckets, tenant, SECONDS));
        let (of_bucket, of_windows) = (bucket_has_left(&buckets, 0), windows_have_left(&windows, SECONDS));
        if of_bucket < 0.01 && of_windows < 0.01 {
            return;
        }
    }
    panic!("five times in a row, a hundredth or more was lost");
}

/// Checks burst and rate over the whole time, and units that were charged up to
/// `lease` milliseconds before. Returns the fraction that was left unused.
pub(crate) fn bucket_has_left(admissions: &[Admission], lease: u64) -> f64 {
    let first = admissions.first().unwrap();
    let last = admissions.iter().map(|(_, after)| after).max().unwrap();
    let allowed = 100 + LIMIT * (last - first.0) / 1_000_000;
    let count = u64::try_from(admissions.len()).unwrap();
    eprintln!("bucket: {count} of {allowed}");
    let most = allowed + LIMIT * lease / 1_000;
    assert!(count <= most, "{count} admitted, of {most}");
    left(count, allowed)
}

fn left(count: u64, allowed: u64) -> f64 {
    1.0 - count as f64 / allowed as f64
}

/// Checks each run of whole windows, by the admissions that were certainly decided
/// in them. Returns the fraction that was left unused.
pub(crate) fn windows_have_left(admissions: &[Admission], seconds: u64) -> f64 {
    let window = |time: u64| time / 1_000_000;
    let (first, last) = (window(admissions[0].0), window(admissions.iter().map(|(_, after)| *after).max().unwrap()));
    for from in first..=last {
        for to in from..=last {
            let within = |(before, after): &&Admission| window(*before) >= from && window(*after) <= to;
            let count = admissions.iter().filter(within).count();
            let allowed = usize::try_from(LIMIT * (to - from + 1)).unwrap();
            assert!(count <= allowed, "{count} admitted in {} windows, of {allowed}", to - from + 1);
        }
    }
    // The first and the last window had no load for their whole time.
    let whole = |(before, after): &&Admission| window(*before) > first && window(*after) < last;
    let (count, allowed) = (admissions.iter().filter(whole).count(), LIMIT * (last - first - 1));
    eprintln!("windows: {count} of {allowed} in {} whole ones", last - first - 1);
    assert!(last - first > seconds - 2, "too few windows");
    left(u64::try_from(count).unwrap(), allowed)
}

/// Window by window on one clock, so that the window of each admission is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_window_admits_its_limit_to_the_unit() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let clock = ManualClock::new();
    let mut fleet = Vec::new();
    for _ in 0..INSTANCES {
        let redis = Redis::builder().url(server.url()).deadline(super::LONG).limiter_time().connect().await.unwrap();
        let policy = closed(per_second().algorithm(Algorithm::FixedWindow));
        let builder = RateLimiter::builder().policy(policy).backend(redis).clock(clock.clone());
        fleet.push(builder.build().unwrap());
    }
    for window in 0..10 {
        let admitted = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        for limiter in fleet.iter().flat_map(|limiter| std::iter::repeat_n(limiter, TASKS)) {
            let (limiter, admitted) = (limiter.clone(), Arc::clone(&admitted));
            tasks.spawn(async move {
                while ask(&limiter, "/", "acme").await == Seen::Admitted {
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(admitted.load(Ordering::Relaxed), 1_000, "window {window}");
        clock.advance(Duration::from_secs(1));
    }
}

/// Waiters of all instances are admitted in one order, at one rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_all_instances_share_one_order() {
    let _machine = exclusive_machine().await;
    let server = Server::start().await;
    let fleet = fleet(&server, &closed(Quota::per_second(200).burst(1))).await;
    let admitted = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for limiter in fleet.iter().flat_map(|limiter| std::iter::repeat_n(limiter, 80)) {
        let (limiter, admitted) = (limiter.clone(), Arc::clone(&admitted));
        tasks.spawn(async move {
            let permit = limiter.acquire(&Descriptor::new("/").tenant("acme"), Duration::from_secs(5)).await.unwrap();
            admitted.lock().unwrap().push((start.elapsed(), permit.decision().wait()));
        });
    }
    tasks.join_all().await;
    let mut admitted = admitted.lock().unwrap().clone();
    admitted.sort_unstable();
    let mut waits: Vec<_> = admitted.iter().map(|(_, wait)| *wait).collect();
    waits.sort_unstable();
    // 240 slots, every 5 ms from the first on. Waiters of one instance may exchange
    // their slots, and then the time of the call is a part of the wait.
    for (index, wait) in (0_u32..).zip(&waits) {
        let longest = Duration::from_millis(5) * index + super::SCHEDULING;
        assert!(*wait <= longest, "reservation {index} waited for {wait:?}");
    }
    let took = admitted.last().unwrap().0;
    assert!(took >= Duration::from_millis(5) * 238, "240 were admitted in {took:?}");
    assert!(took <= Duration::from_millis(5) * 240 + super::SCHEDULING, "240 took {took:?}");
}

/// A unit in flight in one instance is not available to another until it is
/// released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_concurrency_limit_is_shared() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let fleet = fleet(&server, &closed(Quota::concurrent(5))).await;
    let request = Descriptor::new("/").tenant("acme");
    let mut permits = Vec::new();
    for limiter in fleet.iter().cycle().take(5) {
        permits.push(limiter.acquire(&request, Duration::ZERO).await.unwrap());
    }
    for limiter in &fleet {
        assert!(limiter.acquire(&request, Duration::ZERO).await.is_err(), "above the limit");
    }
    drop(permits.pop());
    until("a unit to be released", async || fleet[0].acquire(&request, Duration::ZERO).await.ok().map(drop)).await;
}

/// The units of an instance that died return when their lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_units_of_a_dead_instance_return_after_a_lease() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let lease = Duration::from_millis(1_500);
    let redis = Redis::builder().url(server.url()).deadline(super::LONG).lease(lease).connect().await.unwrap();
    let other = limiter(closed(Quota::concurrent(1)), &redis);
    // On a runtime that ends with all that it would have sent, like a process that
    // is killed.
    let url = server.url();
    let lost = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let permit = runtime.block_on(async {
            let redis = Redis::builder().url(url).deadline(super::LONG).lease(lease).on_current_runtime();
            let redis = redis.connect().await.unwrap();
            let limiter = limiter(closed(Quota::concurrent(1)), &redis);
            limiter.acquire(&Descriptor::new("/").tenant("acme"), Duration::ZERO).await
        });
        drop(runtime);
        std::mem::forget(permit.unwrap());
    });
    lost.join().unwrap();
    let request = Descriptor::new("/").tenant("acme");
    let start = Instant::now();
    assert!(other.acquire(&request, Duration::ZERO).await.is_err(), "held by another instance");
    until("the lease to end", async || other.acquire(&request, Duration::ZERO).await.ok().map(drop)).await;
    let took = start.elapsed();
    assert!(took < 3 * lease, "held for {took:?}, with a lease of {lease:?}");
}

/// A unit that is held for longer than a lease is still permits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_renewed() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let lease = Duration::from_millis(1_000);
    let redis = Redis::builder().url(server.url()).deadline(super::LONG).lease(lease).connect().await.unwrap();
    let limiter = limiter(closed(Quota::concurrent(1)), &redis);
    let request = Descriptor::new("/").tenant("acme");
    let permit = limiter.acquire(&request, Duration::ZERO).await.unwrap();
    let start = Instant::now();
    until("three leases to pass", async || {
        assert!(limiter.acquire(&request, Duration::ZERO).await.is_err(), "lost after {:?}", start.elapsed());
        (start.elapsed() > 3 * lease).then_some(())
    })
    .await;
    drop(permit);
    until("it to be released", async || limiter.acquire(&request, Duration::ZERO).await.ok().map(drop)).await;
}
