//! Rules that are decided on units reserved ahead, by several instances: never above
//! the limit, whatever fails; few store calls; all of the limit used.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};
use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, Dimension, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis,
    testing::ManualClock,
};

use super::{
    LONG, Seen, ask, exclusive_machine,
    fleet::{admissions, bucket_has_left, windows_have_left},
    limiter, patient,
    server::Server,
    shared_machine, until,
};

fn leased(id: &str) -> Rule {
    Rule::new(id).consistency(Consistency::Leased).on_backend_failure(FailureMode::Closed)
}

fn day(limit: u64) -> Quota {
    Quota::per_day(limit).algorithm(Algorithm::FixedWindow)
}

async fn instances(server: &Server, policy: &Policy, count: usize) -> Vec<(Redis, RateLimiter)> {
    let mut all = Vec::new();
    for _ in 0..count {
        let redis = patient(server.url()).await;
        all.push((redis.clone(), limiter(policy.clone(), &redis)));
    }
    all
}

/// The number of scripts that the server has run.
pub(super) async fn calls(server: &Server) -> u64 {
    let stats: String = server.run("INFO", ["commandstats"]).await;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
    calls.map_or(0, |calls| calls.parse().unwrap())
}

async fn admitted(limiter: &RateLimiter, tenant: &str, tries: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..tries {
        admitted += usize::from(ask(limiter, "/", tenant).await == Seen::Admitted);
    }
    admitted
}

/// Three instances with very different load, which all together is several times
/// the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leased_fleet_never_exceeds_the_limit_and_uses_most_of_it() {
    let _machine = exclusive_machine().await;
    let server = Server::start().await;
    let quota = Quota::per_second(1_000);
    let windows = Policy::new().rule(leased("windows").tier(quota.algorithm(Algorithm::FixedWindow)));
    let buckets = Policy::new().rule(leased("buckets").tier(quota.burst(100)));
    let (windows, buckets) = (instances(&server, &windows, 3).await, instances(&server, &buckets, 3).await);
    let load = |all: &[(Redis, RateLimiter)]| -> Vec<_> {
        let tasks = [24, 6, 2].into_iter().zip(all);
        tasks.flat_map(|(tasks, (_, limiter))| std::iter::repeat_n(limiter.clone(), tasks)).collect()
    };
    for tenant in ["acme", "globex", "initech"] {
        let (windows, buckets) = (load(&windows), load(&buckets));
        let (windows, buckets) = tokio::join!(admissions(&windows, tenant, 5), admissions(&buckets, tenant, 5));
        // A unit may be used one lease, of a second, after it was charged.
        let (of_bucket, of_windows) = (bucket_has_left(&buckets, 1_000), windows_have_left(&windows, 5));
        // What an instance has reserved is lost while a busy machine stalls it.
        if of_bucket < 0.25 && of_windows < 0.25 {
            return;
        }
    }
    panic!("three times in a row, a quarter or more was lost");
}

/// The whole limit is used, to the unit, though several instances have reserved some
/// of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_is_used_by_others() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = Policy::new().rule(leased("day").tier(day(1_000)));
    let fleet = instances(&server, &policy, 3).await;
    let mut all = 0;
    for (_, limiter) in &fleet[..2] {
        all += admitted(limiter, "acme", 200).await;
    }
    assert_eq!(all, 400);
    for (_, limiter) in &fleet[..2] {
        limiter.drain().await;
    }
    assert_eq!(admitted(&fleet[2].1, "acme", 1_000).await, 600, "what the first two have not used");
    assert_eq!(admitted(&fleet[0].1, "acme", 10).await, 0, "there is nothing left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_is_admitted_reaches_the_store_exactly_once() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = Policy::new().rule(leased("day").tier(day(1_000_000)));
    let fleet = instances(&server, &policy, 3).await;
    assert_eq!(admitted(&fleet[0].1, "acme", 300).await, 300);
    assert_eq!(admitted(&fleet[1].1, "acme", 200).await, 200);
    fleet[0].1.drain().await;
    fleet[1].1.drain().await;
    let seen = fleet[2].1.peek(&Descriptor::new("/").method("GET").tenant("acme")).await;
    assert_eq!(seen.remaining(), Some(1_000_000 - 500));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_keeps_what_was_used() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let daily = |limit| Policy::new().rule(leased("day").tier(day(limit)));
    let (_, limiter) = &instances(&server, &daily(600), 1).await[0];
    assert_eq!(admitted(limiter, "acme", 600).await, 600);
    limiter.set_policy(daily(50)).unwrap();
    assert_eq!(ask(limiter, "/", "acme").await, Seen::Rejected);
    limiter.set_policy(daily(700)).unwrap();
    assert_eq!(admitted(limiter, "acme", 200).await, 100);
}

/// A key that is used up asks again about once a second: it does not reject until its
/// window ends, whatever has become of the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_used_up_follows_the_store() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let policy = Policy::new().rule(leased("day").tier(day(200)));
    let fleet = instances(&server, &policy, 2).await;
    let (one, other) = (&fleet[0].1, &fleet[1].1);
    let use_up = async || while ask(one, "/", "acme").await == Seen::Admitted {};
    let admits = async || {
        until("units that came back", async || (ask(one, "/", "acme").await == Seen::Admitted).then_some(())).await;
    };
    use_up().await;
    assert_eq!(other.reset(&Descriptor::new("/").method("GET").tenant("acme")).await.unwrap(), 1);
    admits().await;
    use_up().await;
    server.run::<(), 0>("FLUSHALL", []).await;
    admits().await;
    use_up().await;
    server.kill();
    until("the failure mode", async || (ask(one, "/", "acme").await == Seen::Failed).then_some(())).await;
}

/// Units that are reserved when a second ends were charged to the day as well.
#[tokio::test]
async fn what_a_short_window_leaves_unused_comes_back_to_the_long_one() {
    let _machine = shared_machine().await;
    let (server, clock) = (Server::start().await, ManualClock::default());
    let redis = Redis::builder().url(server.url()).deadline(LONG).limiter_time().connect().await.unwrap();
    let second = Quota::per_second(100_000).algorithm(Algorithm::FixedWindow);
    let policy = Policy::new().rule(leased("both").tier(second).tier(day(1_000_000)));
    let limiter = RateLimiter::builder().policy(policy).backend(redis).clock(clock.clone()).build().unwrap();
    for _ in 0..4 {
        for _ in 0..200 {
            assert_eq!(admitted(&limiter, "acme", 1).await, 1);
            clock.advance(Duration::from_millis(1));
        }
        clock.advance(Duration::from_millis(800));
    }
    limiter.drain().await;
    let decision = limiter.peek(&Descriptor::new("/").method("GET").tenant("acme")).await;
    assert_eq!(decision.tiers().last().unwrap().remaining(), 1_000_000 - 800);
}

/// An instance that ends without giving back loses what it has reserved: fewer are
/// admitted, never more. In a bucket, they refill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_instance_loses_what_it_has_reserved() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = Policy::new().rule(leased("day").tier(day(1_000)));
    let mut fleet = instances(&server, &policy, 2).await;
    let first = admitted(&fleet[0].1, "acme", 300).await;
    assert_eq!(first, 300);
    drop(fleet.remove(0));
    let second = admitted(&fleet[0].1, "acme", 1_000).await;
    assert!(second <= 700, "{second} of the 700 that are left at most");
    assert!(second >= 100, "{second}: a lease has taken nearly all");
}

/// An instance serves what it has reserved while the store is gone. Then its failure
/// mode applies. A store that restarts empty admits at most one more limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_reserved_outlives_the_store() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let policy = Policy::new().rule(leased("day").tier(day(10_000)));
    let redis = Redis::builder().url(server.url()).connect().await.unwrap();
    let limiter = limiter(policy, &redis);
    assert_eq!(admitted(&limiter, "acme", 2_000).await, 2_000);
    server.kill();
    until("the circuit breaker opens", async || {
        let _ = ask(&limiter, "/", "other").await;
        redis.stats().open.then_some(())
    })
    .await;
    let mut reserved = 0;
    while ask(&limiter, "/", "acme").await == Seen::Admitted {
        reserved += 1;
    }
    assert!(reserved > 0, "it has reserved nothing");
    assert!(reserved < 8_000, "{reserved}: more than the limit");
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Failed);
    server.restart().await;
    until("the store is back", async || (ask(&limiter, "/", "acme").await == Seen::Admitted).then_some(())).await;
    let again = admitted(&limiter, "acme", 10_001).await;
    assert!(again < 10_000, "{again}: more than one limit after the store has lost its counters");
}

/// While the store is frozen, no caller waits longer than the deadline, and no unit
/// is admitted twice afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_store_admits_no_unit_twice() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let policy = Policy::new().rule(leased("day").tier(day(2_000)));
    let redis = Redis::builder().url(server.url()).connect().await.unwrap();
    let limiter = limiter(policy, &redis);
    let mut all = admitted(&limiter, "acme", 500).await;
    server.freeze();
    all += admitted(&limiter, "acme", 1_500).await;
    server.thaw();
    until("the store answers", async || (!redis.stats().open).then_some(())).await;
    all += admitted(&limiter, "acme", 3_000).await;
    assert!(all <= 2_000, "{all} admitted, of 2000");
    assert!(all >= 500, "{all}: none after the store was frozen");
}

/// Three instances on one clock.
async fn fleet_with_own_time(server: &Server, quota: Quota) -> (Vec<RateLimiter>, ManualClock) {
    let (mut fleet, clock) = (Vec::new(), ManualClock::default());
    for _ in 0..3 {
        let redis = Redis::builder().url(server.url()).deadline(LONG).limiter_time().connect().await.unwrap();
        let builder = RateLimiter::builder().policy(Policy::new().rule(leased("fleet").tier(quota))).backend(redis);
        fleet.push(builder.clock(clock.clone()).build().unwrap());
    }
    (fleet, clock)
}

/// In any second a leased bucket admits at most its burst and two seconds of its rate: what
/// is leased may be used a second later.
#[tokio::test]
async fn a_leased_bucket_keeps_its_bound_in_any_second() {
    // More than an exact one, which is 100; and the recipe for never more than 50.
    for (quota, bounds) in [(Quota::per_second(50), 101..=150), (Quota::per_second(22).burst(6), 23..=50)] {
        let most = most_in_a_second(quota).await;
        assert!(bounds.contains(&most), "at most {most} in a second, {quota:?}");
    }
}

async fn most_in_a_second(quota: Quota) -> usize {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let (fleet, clock) = fleet_with_own_time(&server, quota).await;
    // How many were admitted in each hundredth of a second.
    let mut seen = Vec::new();
    for step in 0..1_200 {
        let mut all = 0;
        for (instance, limiter) in fleet.iter().enumerate() {
            // Units are leased ahead for a steady demand, are kept in a pause that refills the
            // bucket, and are used beside all that is left.
            let tries = match step % 400 {
                0..200 => usize::from(step % 9 == 3 * instance),
                200..270 => 0,
                _ => 20,
            };
            all += admitted(limiter, "acme", tries).await;
        }
        seen.push(all);
        clock.advance(Duration::from_millis(10));
    }
    seen.windows(100).map(|window| window.iter().sum()).max().unwrap()
}

/// Units of a sliding log may be used when the entries that they were charged for are
/// about to leave the window. Bursts that come when that is most often so.
#[tokio::test]
async fn a_leased_sliding_log_keeps_its_bound() {
    const LIMIT: usize = 300;
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let log = Quota::new(LIMIT as u64, Duration::from_secs(10)).algorithm(Algorithm::SlidingLog);
    let (fleet, clock) = fleet_with_own_time(&server, log).await;
    // How many were admitted in each tenth of a second.
    let mut seen = Vec::new();
    for step in 0..400 {
        // What is reserved by a few requests is used 0.8 s later. When their entries leave
        // the window, as many are admitted at once as it has room for.
        let tries = match (step / 100 % 2, step % 100) {
            (0, 0..2) => 15,
            (0, 8) | (1, 0..3) => 100,
            _ => 0,
        };
        let mut all = 0;
        for limiter in &fleet {
            all += admitted(limiter, "acme", tries).await;
        }
        seen.push(all);
        clock.advance(Duration::from_millis(100));
    }
    let windows = seen.windows(100).map(|window| window.iter().sum::<usize>());
    let most = windows.max().unwrap();
    assert!((LIMIT * 9 / 10..=LIMIT * 11 / 10).contains(&most), "at most {most} of {LIMIT} in a window");
}

/// A request that an exact and a leased rule charge is all or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_levels_are_all_or_nothing() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let exact = Rule::new("exact").path("/both").tier(day(10)).on_backend_failure(FailureMode::Closed);
    let wide = leased("leased").per([Dimension::Tenant]).tier(day(1_000));
    let fleet = instances(&server, &Policy::new().rule(exact).rule(wide), 1).await;
    let limiter = &fleet[0].1;
    let mut both = 0;
    for _ in 0..200 {
        // Others make demand, so that units are reserved.
        assert_eq!(ask(limiter, "/one", "acme").await, Seen::Admitted);
        both += usize::from(ask(limiter, "/both", "acme").await == Seen::Admitted);
    }
    assert_eq!(both, 10, "the exact rule");
    let mut rest = 0;
    while ask(limiter, "/one", "acme").await == Seen::Admitted {
        rest += 1;
    }
    assert_eq!(200 + 10 + rest, 1_000, "a request that the exact rule rejects charges the leased one nothing");
}

/// 25 tenants on three instances, 1,000 requests a second, refills once a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_need_few_store_calls() {
    const INSTANCES: usize = 3;
    const TENANTS: usize = 25;
    let _machine = exclusive_machine().await;
    let server = Server::start().await;
    let rule = leased("api").tier(Quota::per_minute(100_000)).sync_interval(Duration::from_secs(1));
    let fleet = instances(&server, &Policy::new().rule(rule), INSTANCES).await;
    // At first, and where the machine stalls, there is nothing reserved. `tests/sim`
    // counts the calls of each second.
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut random, mut waited, mut seen) = (1_u64, 0, Vec::new());
    for request in 0.. {
        ticks.tick().await;
        if request % 1_000 == 0 {
            seen.push((calls(&server).await, waited));
            // Three seconds that no stall disturbs. A call of each instance a second, which
            // also gives back and checks for lost data; and some, where chance lets a key
            // run dry.
            if let Some(from) = seen.len().checked_sub(4) {
                let [before, after] = [seen[from], seen[seen.len() - 1]];
                let (made, waited) = (after.0 - before.0, after.1 - before.1);
                if made <= 3 * INSTANCES as u64 + 6 {
                    return eprintln!("3000 requests in 3 s: {made} store calls, {waited} waited for one");
                }
            }
            assert!(seen.len() < 30, "calls, and requests that waited, after each second: {seen:?}");
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = usize::try_from(random >> 33).unwrap();
        let tenant = format!("tenant-{}", at % TENANTS);
        let descriptor = Descriptor::new("/").tenant(&*tenant);
        let limiter = &fleet[at / TENANTS % INSTANCES].1;
        let mut check = pin!(limiter.check(&descriptor));
        let decision = match check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision,
            Poll::Pending => {
                waited += 1;
                check.await
            }
        };
        assert!(decision.is_allowed());
    }
}
