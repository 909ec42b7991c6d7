//! Promises of `Redis`, on a server that stalls and drops connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tokio::{
    task::{JoinSet, block_in_place},
    time::{Instant, timeout},
};
use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, Dimension, FailureMode, Policy, Quota, RateLimitedKind, RateLimiter, Rule,
    backend::Redis, descriptor::Tenant, testing::ManualClock,
};

use super::{Figure, Random, cluster::Cluster, pause, server::Server};

fn caller() -> Descriptor<'static> {
    Descriptor::new("/")
}
const WINDOW: u64 = 20_000;

/// For how long a unit in flight stays whose caller never learned of it.
const LEASE: Duration = Duration::from_secs(3);

async fn limiter(server: &Server, policy: Policy) -> RateLimiter {
    let backend = Redis::builder().url(server.url()).deadline(Duration::from_millis(100)).lease(LEASE);
    let backend = backend.connect().await.unwrap();
    RateLimiter::builder().policy(policy).backend(backend).build().unwrap()
}

/// Kills connections or stalls the server a few times, each for a moment.
async fn faults(server: &mut Server, random: &mut Random, stalls_only: bool) -> u64 {
    let faults = random.within(1, 6);
    for _ in 0..faults {
        pause(random.millis(50, 400)).await;
        if stalls_only || random.within(0, 1) == 0 {
            block_in_place(|| server.freeze());
            pause(random.millis(50, 150)).await;
            block_in_place(|| server.thaw());
        } else {
            let _: i64 = server.run("CLIENT", ["KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        }
    }
    faults
}

/// Handlers that give back more than is left must not hold up others.
pub(crate) async fn settlements(mut random: Random) -> Figure {
    let server = Server::start().await;
    let settled = Rule::new("settled").path("/settled").tier(Quota::per_hour(1_000_000)).settle(true);
    let other = Rule::new("other").path("/other").tier(Quota::per_hour(1_000_000));
    let closed = |rule: Rule| rule.on_backend_failure(FailureMode::Closed);
    let limiter = limiter(&server, Policy::new().rule(closed(settled)).rule(closed(other))).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut settlers = JoinSet::new();
    for task in 0..random.within(1, 8) {
        let (limiter, is_over, give_backs) = (limiter.clone(), Arc::clone(&is_over), random.within(1, 4));
        settlers.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let caller = Descriptor::new("/settled").tenant(if task % 2 == 0 { "even" } else { "odd" });
                if let Ok(permit) = limiter.acquire(&caller, Duration::ZERO).await {
                    (0..give_backs).for_each(|_| permit.give_back(1));
                    permit.refund();
                }
            }
        });
    }
    let mut failed = 0;
    for _ in 0..240 {
        let decision = limiter.check(&Descriptor::new("/other").tenant("other")).await;
        failed += u64::from(decision.rejection() == Some(RateLimitedKind::BackendUnavailable));
    }
    is_over.store(true, Ordering::Relaxed);
    settlers.join_all().await;
    Figure { figure: failed as f64, bound: 0.0 }
}

/// Instances that check as fast as they may, until stopped. Returns what they were
/// granted.
struct Fleet {
    callers: JoinSet<()>,
    limiters: Vec<RateLimiter>,
    admitted: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Fleet {
    async fn start(server: &Server, instances: u64, rule: &Rule, pace: Duration) -> Self {
        let (admitted, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (mut callers, mut limiters) = (JoinSet::new(), Vec::new());
        for _ in 0..instances {
            let limiter = limiter(server, Policy::new().rule(rule.clone())).await;
            let (own, admitted, is_over) = (limiter.clone(), Arc::clone(&admitted), Arc::clone(&is_over));
            callers.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    for _ in 0..10 {
                        let decision = own.check(&caller()).await;
                        admitted.fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
                    }
                    pause(pace).await;
                }
            });
            limiters.push(limiter);
        }
        Self { callers, limiters, admitted, is_over }
    }

    async fn stop(self) -> (u64, Vec<RateLimiter>) {
        self.is_over.store(true, Ordering::Relaxed);
        self.callers.join_all().await;
        (self.admitted.load(Ordering::Relaxed), self.limiters)
    }
}

fn leased(limit: u64) -> Rule {
    // A window that does not end meanwhile.
    let day = Quota::per_day(limit).algorithm(Algorithm::AnchoredWindow);
    let rule = Rule::new("leased").per([]).tier(day).on_backend_failure(FailureMode::Closed);
    rule.consistency(Consistency::Leased).sync_interval(Duration::from_millis(50))
}

/// A leased window under faults: no unit is handed out twice.
pub(crate) async fn leased_window(mut random: Random) -> Figure {
    let mut server = Server::start().await;
    let limit = random.within(100, WINDOW);
    let fleet = Fleet::start(&server, random.within(1, 4), &leased(limit), random.millis(1, 5)).await;
    faults(&mut server, &mut random, false).await;
    pause(Duration::from_millis(500)).await;
    let (admitted, _) = fleet.stop().await;
    Figure { figure: admitted.saturating_sub(limit) as f64, bound: 0.0 }
}

/// Instances share a sliding log, and each takes what it may whenever a burst comes: in no
/// window more than the limit.
pub(crate) async fn leased_log(mut random: Random) -> Figure {
    const STEPS_OF_WINDOW: usize = 100;
    let (server, clock, limit) = (Server::start().await, ManualClock::new(), random.within(50, 400));
    let window = Duration::from_secs(10);
    let log = Quota::new(limit, window).algorithm(Algorithm::SlidingLog);
    let rule = Rule::new("log").per([]).tier(log).on_backend_failure(FailureMode::Closed);
    let policy = Policy::new().rule(rule.consistency(Consistency::Leased));
    let mut fleet = Vec::new();
    for _ in 0..3 {
        let redis = Redis::builder().url(server.url()).limiter_time().connect().await.unwrap();
        let limiter = RateLimiter::builder().policy(policy.clone()).backend(redis).clock(clock.clone());
        fleet.push(limiter.build().unwrap());
    }
    let mut seen = Vec::new();
    for _ in 0..3 * STEPS_OF_WINDOW {
        let (tries, mut admitted) = (random.one_of(&[0, 0, 0, 0, 5, limit / 3]), 0);
        for limiter in &fleet {
            for _ in 0..tries {
                admitted += u64::from(limiter.check(&caller()).await.is_allowed());
            }
        }
        seen.push(admitted);
        clock.advance(window / STEPS_OF_WINDOW as u32);
    }
    let most = seen.windows(STEPS_OF_WINDOW).map(|window| window.iter().sum::<u64>()).max().unwrap();
    Figure { figure: most.saturating_sub(limit) as f64, bound: 0.0 }
}

/// Requests of one path are charged by one rule, and those of another by two. Neither is
/// rejected for what is leased for the other.
pub(crate) async fn other_pools(mut random: Random) -> Figure {
    let (server, limit) = (Server::start().await, random.within(50, 500));
    let rule = |id, limit| {
        let rule = Rule::new(id).per([]).tier(Quota::per_day(limit).algorithm(Algorithm::FixedWindow));
        rule.consistency(Consistency::Leased).on_backend_failure(FailureMode::Closed)
    };
    let policy = Policy::new().rule(rule("wide", limit)).rule(rule("narrow", 1_000_000).path("/both"));
    let redis = Redis::builder().url(server.url()).deadline(Duration::from_secs(10)).connect().await.unwrap();
    let limiter = RateLimiter::builder().policy(policy).backend(redis).build().unwrap();
    let (mut admitted, mut path) = (0, "/one");
    for nth in 0.. {
        if nth == limit / 4 || random.within(0, 50) == 0 {
            path = if path == "/one" { "/both" } else { "/one" };
        }
        if !limiter.check(&Descriptor::new(path)).await.is_allowed() {
            break;
        }
        admitted += 1;
    }
    Figure { figure: (limit - admitted) as f64, bound: 0.0 }
}

/// What a stalled store granted, and no instance received, is granted again: the whole
/// limit can be used.
pub(crate) async fn lost_units(mut random: Random) -> Figure {
    let mut server = Server::start().await;
    let limit = random.within(2_000, WINDOW / 2);
    let fleet = Fleet::start(&server, random.within(1, 4), &leased(limit), Duration::from_millis(5)).await;
    faults(&mut server, &mut random, true).await;
    // Until no instance is granted any more.
    let admitted = Arc::clone(&fleet.admitted);
    let (start, mut last, mut since) = (Instant::now(), 0, Instant::now());
    while start.elapsed() < Duration::from_secs(20) && since.elapsed() < Duration::from_secs(3) {
        pause(Duration::from_millis(100)).await;
        let now = admitted.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    let (admitted, _) = fleet.stop().await;
    Figure { figure: 100.0 * limit.saturating_sub(admitted) as f64 / limit as f64, bound: 0.5 }
}

/// Requests hold units while connections die. Once their leases have ended, none is held.
pub(crate) async fn in_flight(mut random: Random) -> Figure {
    let mut server = Server::start().await;
    let concurrent = random.within(2, 20);
    let rule = Rule::new("busy").per([]).tier(Quota::concurrent(concurrent)).on_backend_failure(FailureMode::Closed);
    let limiter = limiter(&server, Policy::new().rule(rule)).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..2 * concurrent {
        let (limiter, is_over, work) = (limiter.clone(), Arc::clone(&is_over), random.millis(1, 30));
        callers.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let permit = timeout(work * 3, limiter.acquire(&caller(), Duration::from_millis(50))).await;
                pause(work).await;
                drop(permit);
            }
        });
    }
    faults(&mut server, &mut random, false).await;
    is_over.store(true, Ordering::Relaxed);
    callers.join_all().await;
    let mut left = concurrent;
    for _ in 0..150 {
        left = concurrent - limiter.peek(&caller()).await.remaining().unwrap_or(0).min(concurrent);
        if left == 0 {
            break;
        }
        pause(Duration::from_millis(100)).await;
    }
    Figure { figure: left as f64, bound: 0.0 }
}

/// A number of the server's `INFO`, as of its section `memory`.
async fn info(server: &Server, section: &str, name: &str) -> u64 {
    let info: String = server.run("INFO", [section]).await;
    let number = |line: &str| line.strip_prefix(name)?.split(',').next()?.trim().parse().ok();
    info.lines().find_map(number).unwrap_or(0)
}

async fn fails(limiter: &RateLimiter, tenant: &str) -> bool {
    let decision = limiter.check(&Descriptor::new("/").tenant(tenant)).await;
    decision.rejection() == Some(RateLimitedKind::BackendUnavailable)
}

/// Invented tenants fill the server. It denies the next, and uses no more memory.
pub(crate) async fn flood(mut random: Random) -> Figure {
    let server = Server::start().await;
    let algorithm = random.one_of(&[Algorithm::FixedWindow, Algorithm::TokenBucket, Algorithm::SlidingLog]);
    let level = random.one_of(&[Consistency::Exact, Consistency::Leased]);
    let rule = Rule::new("flood").tier(Quota::per_day(1_000).algorithm(algorithm)).consistency(level);
    let limiter = limiter(&server, Policy::new().rule(rule.on_backend_failure(FailureMode::Closed))).await;
    fails(&limiter, "first").await;
    let most = info(&server, "memory", "used_memory:").await + random.within(100_000, 500_000);
    let _: Value = server.run("CONFIG", ["SET", "maxmemory", &most.to_string()]).await;
    let mut denied = 0;
    for nth in 0..20_000 {
        // The first request of a tenant leases nothing, the next ones may.
        for _ in 0..3 {
            denied += u64::from(fails(&limiter, &format!("invented-{nth}")).await);
        }
        if denied >= 1_000 {
            break;
        }
    }
    let over = info(&server, "memory", "used_memory:").await.saturating_sub(most);
    // A batch that begins below the bound may end above it.
    let figure = if denied == 0 { f64::INFINITY } else { over as f64 / 1_000.0 };
    Figure { figure, bound: 100.0 }
}

/// A node of a cluster dies or freezes, and returns. Tenants of others notice nothing.
pub(crate) async fn dead_node(mut random: Random) -> Figure {
    let mut cluster = Cluster::start().await;
    let backend = Redis::builder().cluster(cluster.urls()).deadline(Duration::from_secs(1)).connect().await.unwrap();
    let rule = Rule::new("node").tier(Quota::per_day(1_000_000)).on_backend_failure(FailureMode::Closed);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(backend).build().unwrap();
    let (dead, freezes) = (random.within(0, 2) as usize, random.within(0, 1) == 1);
    let (mut lost, mut healthy) = (Vec::new(), Vec::new());
    for nth in 0..12 {
        let tenant = format!("tenant-{nth}");
        assert!(!fails(&limiter, &tenant).await, "a whole cluster");
        let key = cluster.keys(&format!("*{{{tenant}}}*")).await.pop().unwrap();
        let is_lost = cluster.owner(cluster.slot_of(&key).await).await == dead;
        if is_lost { &mut lost } else { &mut healthy }.push(tenant);
    }
    let (failed, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut callers = JoinSet::new();
    for (tenants, is_counted) in [(lost, 0), (healthy, 1)] {
        let (limiter, failed, is_over) = (limiter.clone(), Arc::clone(&failed), Arc::clone(&is_over));
        callers.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                for tenant in &tenants {
                    failed.fetch_add(is_counted * u64::from(fails(&limiter, tenant).await), Ordering::Relaxed);
                }
                pause(Duration::from_millis(2)).await;
            }
        });
    }
    let node = &mut cluster.nodes[dead];
    block_in_place(|| if freezes { node.freeze() } else { node.kill() });
    pause(random.millis(500, 4_000)).await;
    if freezes {
        block_in_place(|| node.thaw())
    } else {
        node.restart().await
    }
    pause(random.millis(500, 2_000)).await;
    is_over.store(true, Ordering::Relaxed);
    callers.join_all().await;
    Figure { figure: failed.load(Ordering::Relaxed) as f64, bound: 0.0 }
}

/// More tenants with tiers of their own than are kept compiled. Once their units are
/// leased, four rounds of requests need fewer calls than one for each.
pub(crate) async fn own_tiers(mut random: Random) -> Figure {
    let server = Server::start().await;
    let rule = leased(1_000_000).per([Dimension::Tenant]).sync_interval(Duration::from_secs(10));
    let limiter = limiter(&server, Policy::new().rule(rule)).await;
    let tenants = random.within(1_025, 1_400);
    let four_rounds = async || {
        for number in (0..4).flat_map(|_| 0..tenants) {
            let quota = Quota::per_day(1_000_000 + number).algorithm(Algorithm::AnchoredWindow);
            let tenant = Tenant::new(format!("tenant-{number}")).tiers([quota]);
            limiter.check(&Descriptor::new("/").tenant(tenant.as_ref())).await;
        }
        info(&server, "commandstats", "cmdstat_evalsha:calls=").await
    };
    let before = four_rounds().await;
    let made = four_rounds().await - before;
    // And the checks for lost data, once a second.
    Figure { figure: made as f64 / tenants as f64, bound: 1.1 }
}
