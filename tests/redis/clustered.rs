//! A cluster: rules with keys on several nodes, and hash slots that move.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::time::Instant;
use tower_ratelimit::{Algorithm, Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis};

use super::{
    DEADLINE, LONG, SCHEDULING, Seen, ask, closed,
    cluster::{Cluster, SLOTS},
    exclusive_machine, limiter,
    load::{Load, run_for},
    server::Server,
    shared_machine, until,
};

async fn connect(cluster: &Cluster) -> Redis {
    // One node names the others.
    Redis::builder().cluster([cluster.nodes[1].url()]).deadline(LONG).connect().await.unwrap()
}

fn daily(limit: u64) -> Quota {
    Quota::per_day(limit).algorithm(Algorithm::FixedWindow)
}

/// All tiers and rules of a tenant are in one hash slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_one_hash_slot() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    let rule = |id: &str| Rule::new(id).tier(Quota::per_second(100)).tier(daily(100)).tier(Quota::concurrent(5));
    let limiter = limiter(Policy::new().rule(rule("one")).rule(rule("other")), &connect(&cluster).await);
    for tenant in ["acme", "{", "a}b", "日本"] {
        let before: HashSet<_> = cluster.keys("*").await.into_iter().collect();
        let request = Descriptor::new("/").tenant(tenant);
        let _permit = limiter.acquire(&request, Duration::ZERO).await.unwrap();
        let mut slots = HashSet::new();
        for key in cluster.keys("*").await {
            if !before.contains(&key) && !key.contains("epoch") {
                slots.insert(cluster.slot_of(&key).await);
            }
        }
        assert_eq!(slots.len(), 1, "{tenant:?}: {slots:?}");
    }
}

fn spanning() -> Policy {
    let own = Rule::new("own").tier(daily(100)).on_backend_failure(FailureMode::Closed);
    let all = Rule::new("all").per([]).tier(daily(10)).on_backend_failure(FailureMode::Closed);
    Policy::new().rule(own).rule(all)
}

async fn remaining_own(limiter: &RateLimiter, tenant: &str) -> u64 {
    // A cost of zero reads the status.
    let decision = limiter.check(&Descriptor::new("/").tenant(tenant).cost(0)).await;
    decision.tiers().iter().find(|tier| tier.rule() == "own").map_or(0, |tier| tier.remaining())
}

/// If one rule rejects, what others have charged on other nodes is refunded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_in_several_hash_slots_are_all_or_nothing() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    let limiter = limiter(spanning(), &connect(&cluster).await);
    let tenants: Vec<String> = (0..8).map(|nth| format!("tenant-{nth}")).collect();
    let mut admitted = vec![0_u64; tenants.len()];
    for _ in 0..5 {
        for (tenant, admitted) in tenants.iter().zip(&mut admitted) {
            match ask(&limiter, "/", tenant).await {
                Seen::Admitted => *admitted += 1,
                Seen::Rejected => {}
                Seen::Failed => panic!("the cluster failed"),
            }
        }
    }
    assert_eq!(admitted.iter().sum::<u64>(), 10, "of all");
    for (tenant, admitted) in tenants.iter().zip(admitted) {
        let left = 100 - admitted;
        until(&format!("{tenant} to have {left} left"), async || {
            (remaining_own(&limiter, tenant).await == left).then_some(())
        })
        .await;
    }
}

/// Many requests at once: the narrow rule admits its limit, and what was refunded
/// is available again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_in_several_hash_slots_admit_their_limit() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    let limiter = limiter(spanning(), &connect(&cluster).await);
    let admitted = AtomicUsize::new(0);
    let admitted = &admitted;
    let limiter = &limiter;
    let requests = (0..64).map(|nth| async move {
        if ask(limiter, "/", &format!("tenant-{}", nth % 8)).await == Seen::Admitted {
            admitted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let requests: Vec<_> = requests.collect();
    futures_join(requests).await;
    let first = admitted.load(Ordering::Relaxed);
    assert!(first <= 10, "{first} admitted, of 10");
    // Some were rejected while another request had units that it then refunded.
    until("all to be used", async || {
        if ask(limiter, "/", "late").await == Seen::Admitted {
            admitted.fetch_add(1, Ordering::Relaxed);
        }
        (admitted.load(Ordering::Relaxed) == 10).then_some(())
    })
    .await;
    for _ in 0..20 {
        assert_eq!(ask(limiter, "/", "late").await, Seen::Rejected, "the eleventh");
    }
}

/// Polls all of them at the same time.
async fn futures_join<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|cx| {
        for slot in &mut futures {
            if slot.as_mut().is_some_and(|future| future.as_mut().poll(cx).is_ready()) {
                *slot = None;
            }
        }
        if futures.iter().all(Option::is_none) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// A request whose hash slot is moving is decided by one node or the other, and
/// charged once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hash_slots_move_under_load() {
    const LIMIT: u64 = 3_000;
    let _machine = exclusive_machine().await;
    let cluster = Cluster::start().await;
    let limiter = limiter(closed(daily(LIMIT)), &connect(&cluster).await);
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
    let key = cluster.keys("*{acme}*").await.pop().unwrap();
    let slot = cluster.slot_of(&key).await;
    let load = Load::start(&limiter, "/", "acme", 8);
    for _ in 0..9 {
        run_for(Duration::from_millis(100)).await;
        cluster.move_slot(slot, (cluster.owner(slot).await + 1) % 3).await;
    }
    until("the limit to be used up", async || (ask(&limiter, "/", "acme").await == Seen::Rejected).then_some(())).await;
    let outcomes = load.end().await;
    let (admitted, failed) = (outcomes.count(Seen::Admitted), outcomes.count(Seen::Failed));
    eprintln!("{admitted} admitted, {failed} failed, slowest {:?}", outcomes.slowest(0.0));
    let limit = usize::try_from(LIMIT).unwrap();
    // The first request, and those that waited for the end.
    assert!(admitted < limit, "{admitted} of {limit}");
    assert!(failed * 20 <= outcomes.0.len(), "{failed} of {} failed", outcomes.0.len());
    assert!(slot < SLOTS);
}

/// How often a node has run a script.
async fn calls(node: &Server) -> u64 {
    let stats: String = node.run("INFO", ["commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// A node that replies late still admits at once: the others are not asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_reply_one_after_the_other_agree() {
    let _machine = shared_machine().await;
    let mut cluster = Cluster::start().await;
    let limiter = limiter(spanning(), &connect(&cluster).await);
    let all = async |cluster: &Cluster| cluster.keys("*all*").await;
    assert_eq!(ask(&limiter, "/", "first").await, Seen::Admitted);
    let [all] = &all(&cluster).await[..] else { panic!("the key of all tenants") };
    let prompt = cluster.owner(cluster.slot_of(all).await).await;
    // Of a tenant on another node.
    let (mut late, mut tenant) = (prompt, 0);
    while late == prompt {
        tenant += 1;
        let before: HashSet<_> = cluster.keys("*").await.into_iter().collect();
        assert_eq!(ask(&limiter, "/", &tenant.to_string()).await, Seen::Admitted);
        let new: Vec<_> = cluster.keys("*").await.into_iter().filter(|key| !before.contains(key)).collect();
        late = cluster.owner(cluster.slot_of(&new[0]).await).await;
    }
    let before = calls(&cluster.nodes[prompt]).await;
    cluster.nodes[late].freeze();
    let asked = tokio::spawn(async move { ask(&limiter, "/", &tenant.to_string()).await });
    until("one node to decide", async || (calls(&cluster.nodes[prompt]).await > before).then_some(())).await;
    // The reply has arrived by the next one on another connection, and some milliseconds.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        calls(&cluster.nodes[prompt]).await;
    }
    cluster.nodes[late].thaw();
    assert_eq!(asked.await.unwrap(), Seen::Admitted);
    assert_eq!(calls(&cluster.nodes[prompt]).await, before + 1);
}

/// The keys of one node are unavailable; the other nodes decide, or none, as the
/// cluster is configured. No request hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_fails_only_its_own_tenants() {
    let _machine = exclusive_machine().await;
    let mut cluster = Cluster::start().await;
    let redis = Redis::builder().cluster(cluster.urls()).connect().await.unwrap();
    let limiter = limiter(closed(daily(1_000_000)), &redis);
    for tenant in 0..50 {
        assert_eq!(ask(&limiter, "/", &tenant.to_string()).await, Seen::Admitted);
    }
    cluster.nodes[2].kill();
    let start = Instant::now();
    let (mut decided, mut failed) = (0, 0);
    for tenant in (0..50).cycle() {
        let sent = Instant::now();
        match ask(&limiter, "/", &tenant.to_string()).await {
            Seen::Failed => failed += 1,
            _ => decided += 1,
        }
        assert!(sent.elapsed() < DEADLINE + SCHEDULING, "a request took {:?}", sent.elapsed());
        if start.elapsed() > Duration::from_secs(2) {
            break;
        }
        tokio::task::yield_now().await;
    }
    eprintln!("{decided} decided, {failed} not");
    assert!(failed > 0, "no request needed the node");
}

/// A tenant of each node, as far as a few names reach.
async fn tenant_of_each(cluster: &Cluster, limiter: &RateLimiter) -> Vec<(usize, String)> {
    let mut tenants = Vec::new();
    for nth in 0..12 {
        let tenant = format!("tenant-{nth}");
        assert_eq!(ask(limiter, "/", &tenant).await, Seen::Admitted);
        let key = cluster.keys(&format!("*{{{tenant}}}*")).await.pop().unwrap();
        tenants.push((cluster.owner(cluster.slot_of(&key).await).await, tenant));
    }
    assert!((0..3).all(|node| tenants.iter().any(|(owner, _)| *owner == node)), "{tenants:?}");
    tenants
}

/// Tenants of other nodes notice nothing, neither while a node is dead or frozen nor when
/// it returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_concerns_no_other() {
    const DEAD: usize = 2;
    let _machine = exclusive_machine().await;
    let mut cluster = Cluster::start().await;
    let redis = Redis::builder().cluster(cluster.urls()).deadline(Duration::from_secs(1)).connect().await.unwrap();
    let limiter = limiter(closed(daily(1_000_000)), &redis);
    let tenants = tenant_of_each(&cluster, &limiter).await;
    for dies in [Server::kill as fn(&mut Server), Server::freeze] {
        let own = |is_dead: bool| tenants.iter().filter(move |(node, _)| (*node == DEAD) == is_dead);
        let loads = own(false).map(|(_, tenant)| Load::start(&limiter, "/", tenant, 1)).collect::<Vec<_>>();
        let (_, lost) = own(true).next().unwrap();
        let fails = async || (ask(&limiter, "/", lost).await == Seen::Failed).then_some(());
        let recovers = async || (ask(&limiter, "/", lost).await == Seen::Admitted && !redis.stats().open).then_some(());
        dies(&mut cluster.nodes[DEAD]);
        until("requests of the node to fail", fails).await;
        until("its circuit breaker to open", async || {
            ask(&limiter, "/", lost).await;
            redis.stats().open.then_some(())
        })
        .await;
        run_for(Duration::from_secs(2)).await;
        cluster.nodes[DEAD].restart().await;
        until("the node to return", recovers).await;
        for load in loads {
            let outcomes = load.end().await;
            let failed = outcomes.count(Seen::Failed);
            assert_eq!(failed, 0, "of {} requests to other nodes", outcomes.0.len());
        }
    }
}
