//! A store that is frozen, killed and restarted under load: each rule applies its
//! failure mode in bounded time, and the store decides again as soon as it can.

use std::{hint::black_box, time::Duration};

use tokio::time::Instant;
use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis,
};

use super::{
    DEADLINE, LONG, SCHEDULING, Seen, ask, exclusive_machine, limiter,
    load::{Load, Outcomes, run_for},
    server::Server,
    shared_machine, until,
};

const LIMIT: u64 = 4_000;
const LOCAL_LIMIT: u64 = 40;
const TASKS: usize = 4;

/// A rule for each failure mode, under a path of its name.
fn policy() -> Policy {
    let daily = Quota::per_day(LIMIT).algorithm(Algorithm::FixedWindow);
    let rule = |id: &str, mode| Rule::new(id).path(format!("/{id}")).on_backend_failure(mode);
    Policy::new()
        .rule(rule("open", FailureMode::Open).tier(daily))
        .rule(rule("closed", FailureMode::Closed).tier(daily))
        .rule(rule("local", FailureMode::Local).tier(Quota::per_day(LOCAL_LIMIT).algorithm(Algorithm::FixedWindow)))
}

struct Loads([Load; 3]);

impl Loads {
    fn start(limiter: &RateLimiter) -> Self {
        Self(["/open", "/closed", "/local"].map(|path| Load::start(limiter, path, "acme", TASKS)))
    }

    /// Of the three rules, in their order.
    async fn end(self) -> [Outcomes; 3] {
        let [open, closed, local] = self.0;
        [open.end().await, closed.end().await, local.end().await]
    }
}

/// Waits until the store decides, as the rule that fails closed shows.
async fn recovered(limiter: &RateLimiter, redis: &Redis) {
    let start = Instant::now();
    until("the store to decide again", async || {
        let decides = ask(limiter, "/closed", "another").await != Seen::Failed;
        (decides && !redis.stats().open).then_some(())
    })
    .await;
    let took = start.elapsed();
    eprintln!("recovered after {took:?}");
    assert!(took < Duration::from_secs(5), "recovered after {took:?}");
}

fn assert_in_time(outcomes: &[Outcomes; 3]) {
    for outcomes in outcomes {
        let (slowest, usual) = (outcomes.slowest(0.0), outcomes.slowest(0.01));
        eprintln!("slowest {slowest:?}, 99 of 100 within {usual:?}, of {}", outcomes.0.len());
        assert!(slowest < DEADLINE + SCHEDULING, "a request took {slowest:?}");
        assert!(usual < DEADLINE + SCHEDULING / 5, "one of a hundred requests took {usual:?}");
    }
}

/// While the store does not reply, `open` admits, `closed` rejects, and `local`
/// limits.
fn assert_modes([open, closed, local]: &[Outcomes; 3]) {
    assert!(open.0.len() > 50 && closed.0.len() > 50 && local.0.len() > 50, "too few requests");
    assert_eq!(open.count(Seen::Admitted), open.0.len(), "open: {open:?}");
    assert_eq!(closed.count(Seen::Failed), closed.0.len(), "closed");
    assert_eq!(local.count(Seen::Failed), 0, "local");
    let admitted = local.count(Seen::Admitted);
    assert!(admitted <= usize::try_from(LOCAL_LIMIT).unwrap(), "local: {admitted}");
    assert!(local.count(Seen::Rejected) > 0, "local rejects no request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_store_applies_the_failure_modes_until_it_recovers() {
    let _machine = exclusive_machine().await;
    let mut server = Server::start().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let limiter = limiter(policy(), &redis);
    let loads = Loads::start(&limiter);
    run_for(Duration::from_millis(500)).await;

    server.freeze();
    let frozen = Instant::now();
    until("the breaker to open", async || redis.stats().open.then_some(())).await;
    run_for(Duration::from_millis(1_500)).await;
    let thawed = Instant::now();
    server.thaw();
    recovered(&limiter, &redis).await;
    let closed_is_used_up = async || (ask(&limiter, "/closed", "acme").await == Seen::Rejected).then_some(());
    until("the limit to be used up", closed_is_used_up).await;
    let outcomes = loads.end().await;

    assert_in_time(&outcomes);
    // Calls that were on their way when it froze or thawed may have succeeded.
    let settled = frozen + Duration::from_millis(10);
    assert_modes(&outcomes.each_ref().map(|outcomes| outcomes.between(settled, thawed - 2 * DEADLINE)));

    // A request whose reply is lost may have been charged, and no other.
    let [_, closed, _] = &outcomes;
    let (admitted, lost) = (closed.count(Seen::Admitted), closed.count(Seen::Failed));
    eprintln!("admitted {admitted} of {LIMIT}; {lost} without a reply");
    let limit = usize::try_from(LIMIT).unwrap();
    assert!(admitted <= limit, "{admitted} of {limit} were admitted");
    assert!(admitted + lost >= limit, "{admitted} admitted and {lost} lost use up {limit}");
    let stats = limiter.stats();
    assert!(stats.failed_open > 0 && stats.failed_closed > 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_store_applies_the_failure_modes_until_it_is_restarted() {
    let _machine = exclusive_machine().await;
    let mut server = Server::start().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let limiter = limiter(policy(), &redis);
    let loads = Loads::start(&limiter);
    run_for(Duration::from_millis(300)).await;

    server.kill();
    let killed = Instant::now();
    until("the breaker to open", async || redis.stats().open.then_some(())).await;
    run_for(Duration::from_millis(1_000)).await;
    let back = Instant::now();
    server.restart().await;
    recovered(&limiter, &redis).await;
    run_for(Duration::from_millis(300)).await;
    let outcomes = loads.end().await;

    assert_in_time(&outcomes);
    let settled = killed + Duration::from_millis(10);
    assert_modes(&outcomes.each_ref().map(|outcomes| outcomes.between(settled, back - 2 * DEADLINE)));
    let last = outcomes[1].0.iter().max_by_key(|outcome| outcome.start).unwrap();
    assert_ne!(last.seen, Seen::Failed, "the store decides at the end");
    assert!(redis.stats().memory_lost > 0, "it restarted without data");
}

/// Repeatedly, without a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_can_be_restarted_many_times() {
    let _machine = exclusive_machine().await;
    let mut server = Server::start().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let limiter = limiter(policy(), &redis);
    let loads = Loads::start(&limiter);
    for _ in 0..4 {
        server.restart().await;
        recovered(&limiter, &redis).await;
    }
    assert_in_time(&loads.end().await);
}

/// While the circuit breaker is open, a decision costs next to nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_breaker_is_as_fast_as_a_local_decision() {
    let _machine = exclusive_machine().await;
    let mut server = Server::start().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let limiter = limiter(policy(), &redis);
    let local = RateLimiter::new(policy()).unwrap();
    server.freeze();
    until("the breaker to open", async || {
        ask(&limiter, "/open", "acme").await;
        redis.stats().open.then_some(())
    })
    .await;
    for path in ["/open", "/closed", "/local"] {
        let (with, without) = (median(&limiter, path).await, median(&local, path).await);
        let ratio = with.as_secs_f64() / without.as_secs_f64();
        eprintln!("{path}: {with:?} with the breaker open, {without:?} on a local limiter: {ratio:.1} times");
        assert!(ratio < 50.0, "{path}: {ratio:.1} times");
    }
}

/// Of a thousand decisions. Ten are measured at a time, since one is too short for
/// the clock.
async fn median(limiter: &RateLimiter, path: &str) -> Duration {
    let request = Descriptor::new(path).method("GET").tenant("acme");
    let mut times = Vec::new();
    for _ in 0..1_000 {
        let start = Instant::now();
        for _ in 0..10 {
            black_box(limiter.check(&request).await);
        }
        times.push(start.elapsed() / 10);
    }
    times.sort();
    times[times.len() / 2]
}

/// A limiter that exists before its store does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_starts_late_decides_then() {
    let _machine = exclusive_machine().await;
    let mut server = Server::start().await;
    server.kill();
    let redis = Redis::builder().url(server.url()).connect_lazy().unwrap();
    let limiter = limiter(policy(), &redis);
    assert_eq!(ask(&limiter, "/open", "acme").await, Seen::Admitted);
    assert_eq!(ask(&limiter, "/closed", "acme").await, Seen::Failed);
    assert_eq!(ask(&limiter, "/local", "acme").await, Seen::Admitted);
    server.restart().await;
    recovered(&limiter, &redis).await;
}

/// While the store is unreachable nothing can be released there. The lease ends by
/// itself then, so it must not be renewed once the store is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_is_released_while_the_store_is_down_returns() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let lease = Duration::from_millis(600);
    let redis = Redis::builder().url(server.url()).lease(lease).connect().await.unwrap();
    let rule = Rule::new("busy").tier(Quota::concurrent(1)).on_backend_failure(FailureMode::Closed);
    let limiter: RateLimiter = limiter(Policy::new().rule(rule), &redis);
    let request = Descriptor::new("/").tenant("acme");
    let acquire = async || limiter.acquire(&request, Duration::ZERO).await.ok();
    let permit = until("a unit", acquire).await;
    server.freeze();
    until("the circuit breaker to open", async || {
        assert!(acquire().await.is_none());
        redis.stats().open.then_some(())
    })
    .await;
    let start = Instant::now();
    until("the connection to be idle", async || (start.elapsed() > Duration::from_millis(1_200)).then_some(())).await;
    drop(permit);
    server.thaw();
    let _permit = until("the unit to return", acquire).await;
}

/// Three instances, of which each admits a third of the limit once the store is gone:
/// leased rules follow the number of instances that it has seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_the_fleet_divides_a_limit_by_its_instances() {
    const INSTANCES: u64 = 3;
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let levels = [Consistency::Leased];
    let rule = |level: Consistency| {
        let quota = Quota::per_day(300).algorithm(Algorithm::FixedWindow);
        let rule = Rule::new(level.as_str()).path(format!("/{}", level.as_str())).tier(quota).consistency(level);
        rule.on_backend_failure(FailureMode::Local)
    };
    let policy = levels.into_iter().fold(Policy::new(), |policy, level| policy.rule(rule(level)));
    let mut fleet = Vec::new();
    for _ in 0..INSTANCES {
        let redis = Redis::builder().url(server.url()).deadline(LONG).connect().await.unwrap();
        fleet.push((limiter(policy.clone(), &redis), redis));
    }
    let path = |level: Consistency| format!("/{}", level.as_str());
    until("each instance to know of the others", async || {
        for (limiter, _) in &fleet {
            for level in levels {
                assert_eq!(ask(limiter, &path(level), "acme").await, Seen::Admitted);
            }
        }
        fleet.iter().all(|(_, redis)| redis.stats().instances == INSTANCES).then_some(())
    })
    .await;
    for (limiter, _) in &fleet {
        ask(limiter, "/leased", "acme").await;
    }
    server.kill();
    for (limiter, redis) in &fleet {
        until("the circuit breaker to open", async || {
            ask(limiter, "/leased", "other").await;
            redis.stats().open.then_some(())
        })
        .await;
    }
    for level in levels {
        // Nothing is known here of this tenant.
        for (limiter, _) in &fleet {
            let mut admitted = 0;
            while ask(limiter, &path(level), "globex").await == Seen::Admitted {
                admitted += 1;
            }
            assert_eq!(admitted, 300 / INSTANCES, "{level:?}");
        }
    }
}
