//! The user of `docs/redis.md`: it has exactly the rights that the backend needs.

use std::{collections::HashSet, time::Duration};

use redis::Value;
use tower_ratelimit::{Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis};

use super::{LONG, algorithms::ALGORITHMS, cluster::Cluster, limiter, sentinel, server::Server, shared_machine, until};

const PAGE: &str = include_str!("../../docs/redis.md");

/// The arguments of a command in the page, over lines that end with `\`.
fn arguments(start: &str) -> Vec<String> {
    let (_, rest) = PAGE.split_once(start).unwrap_or_else(|| panic!("docs/redis.md does not mention `{start}`"));
    let mut words = Vec::new();
    for line in rest.lines() {
        words.extend(line.trim_end_matches('\\').split_whitespace().map(str::to_owned));
        if !line.ends_with('\\') {
            break;
        }
    }
    words
}

const PASSWORD: &str = "SECRET";

async fn make_user(server: &Server, more: &[&str]) -> Vec<String> {
    let rights = arguments("ACL SETUSER limiter ");
    assert!(rights.contains(&format!(">{PASSWORD}")), "{rights:?}");
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("limiter").arg(&rights).arg(more);
    let () = command.query_async(&mut server.connection().await.unwrap()).await.unwrap();
    rights
}

/// The commands that the server has denied, except for those by which a driver
/// introduces itself.
async fn rejected(server: &Server) -> Vec<String> {
    let log: Vec<Vec<Value>> = server.run("ACL", ["LOG"]).await;
    log.iter().map(|entry| format!("{entry:?}")).filter(|entry| !entry.contains("cmd=client")).collect()
}

/// The commands that the server has run, by their ACL names.
async fn ran(server: &Server) -> HashSet<String> {
    let stats: String = server.run("INFO", ["commandstats"]).await;
    stats.lines().filter_map(|line| Some(line.strip_prefix("cmdstat_")?.split_once(':')?.0.to_owned())).collect()
}

fn policy() -> Policy {
    let policy = ALGORITHMS.into_iter().fold(Policy::new(), |policy, algorithm| {
        let rule = Rule::new(algorithm.as_str()).path(format!("/{algorithm}")).settle(true);
        let quota = Quota::new(5, Duration::from_millis(100)).algorithm(algorithm);
        policy.rule(rule.tier(quota).tier(Quota::concurrent(2)).on_backend_failure(FailureMode::Closed))
    });
    let plain = Rule::new("plain").path("/plain").tier(Quota::per_second(1_000)).tier(Quota::per_day(1_000_000));
    let one = Rule::new("one").path("/one").tier(Quota::per_second(1_000));
    let waiting = Rule::new("waiting").path("/waiting").tier(Quota::per_second(1_000));
    [plain, one, waiting]
        .into_iter()
        .fold(policy, |policy, rule| policy.rule(rule.on_backend_failure(FailureMode::Closed)))
}

/// Charges each kind of counter, waits, adds debt, refunds and releases, and shares
/// a cooldown.
async fn everything(limiter: &RateLimiter, tenant: &str) {
    limiter.cool_down(&Descriptor::new("/waiting").tenant(tenant), LONG);
    for algorithm in ALGORITHMS {
        let path = format!("/{algorithm}");
        for nth in 0..4_u64 {
            let request = Descriptor::new(&path).tenant(tenant).cost(1 + nth % 2);
            // A rejection will do as well.
            let Ok(permit) = limiter.acquire(&request, Duration::from_millis(nth)).await else { continue };
            match nth {
                0 => permit.add(7),
                1 => permit.give_back(1),
                2 => permit.refund(),
                _ => {}
            }
        }
    }
    // A refund of a log that another request was charged to since.
    let log = Descriptor::new("/sliding-log").tenant(tenant);
    let (earlier, _later) = (limiter.acquire(&log, LONG).await.unwrap(), limiter.acquire(&log, LONG).await.unwrap());
    earlier.refund();
    for path in ["/plain", "/one"] {
        assert!(limiter.check(&Descriptor::new(path).tenant(tenant)).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_suffice_and_are_needed() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let rights = make_user(&server, &[]).await;
    let redis = Redis::builder().url(server.url()).username("limiter").password(PASSWORD).deadline(LONG);
    let limiter = limiter(policy(), &redis.connect().await.unwrap());
    let () = server.run("SCRIPT", ["FLUSH"]).await;
    let mut granted: HashSet<_> = rights.iter().filter_map(|right| right.strip_prefix('+')).collect();
    until("all commands to be needed", async || {
        everything(&limiter, "acme").await;
        let ran = ran(&server).await;
        // Servers before version 7 count a command with all its subcommands.
        granted.retain(|command| !ran.contains(*command) && !ran.contains(command.split('|').next().unwrap()));
        granted.is_empty().then_some(())
    })
    .await;
    assert_eq!(rejected(&server).await, [""; 0]);
    assert_eq!(limiter.stats().failed_closed, 0);
}

/// The user of a cluster needs a few more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_suffice_in_a_cluster() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    let more = arguments("# in a cluster also: ");
    let more: Vec<_> = more.iter().map(String::as_str).collect();
    for node in &cluster.nodes {
        make_user(node, &more).await;
    }
    let redis = Redis::builder().cluster(cluster.urls()).username("limiter").password(PASSWORD).deadline(LONG);
    let limiter = limiter(policy(), &redis.connect().await.unwrap());
    for tenant in 0..30 {
        everything(&limiter, &tenant.to_string()).await;
    }
    // A request for a hash slot that is moving follows it to the new node. On a slow machine the
    // counters of the first tenants have expired by now.
    everything(&limiter, "1").await;
    let key = cluster.keys("*{1}*").await.pop().unwrap();
    let slot = cluster.slot_of(&key).await;
    cluster.move_slot(slot, (cluster.owner(slot).await + 1) % 3).await;
    everything(&limiter, "1").await;
    for node in &cluster.nodes {
        assert_eq!(rejected(node).await, [""; 0]);
    }
    assert_eq!(limiter.stats().failed_closed, 0);
}

/// The user of a primary that sentinels name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_suffice_behind_sentinels() {
    let _machine = shared_machine().await;
    let watched = sentinel::Watched::start().await;
    let more = arguments("# behind sentinels also: ");
    let more: Vec<_> = more.iter().map(String::as_str).collect();
    make_user(&watched.primary, &more).await;
    let redis = Redis::builder().sentinel(sentinel::MASTER, [watched.sentinel.url()]);
    let redis = redis.username("limiter").password(PASSWORD).deadline(LONG).connect().await.unwrap();
    let limiter = limiter(policy(), &redis);
    everything(&limiter, "acme").await;
    assert_eq!(rejected(&watched.primary).await, [""; 0]);
    assert_eq!(limiter.stats().failed_closed, 0);
}
