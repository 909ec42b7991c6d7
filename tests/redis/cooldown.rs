//! Cooldowns shared through a real server: all instances apply what an upstream
//! asks one of them. Without a server each applies its own.

use std::{net::IpAddr, time::Duration};

use http::{Method, Request, Response};
use redis::Value;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Descriptor, Dimension, Policy, Quota, RateLimitLayer, RateLimiter, Rule, Tenant,
    backend::{Redis, RedisBuilder},
    descriptor::TenantRef,
};

#[cfg(feature = "tracing")]
use super::log;
use super::{LONG, PATIENCE, cluster::Cluster, limiter, sentinel, server::Server, shared_machine, until};

const LONGEST: Duration = Duration::from_secs(600);

fn builder() -> RedisBuilder {
    let (shortest, longest) = (Duration::from_millis(20), Duration::from_millis(200));
    Redis::builder().deadline(LONG).breaker(5, shortest, longest)
}

/// An instance of a client with its own backend.
async fn instance(policy: Policy, redis: RedisBuilder) -> RateLimiter {
    limiter(policy, &redis.connect().await.unwrap())
}

async fn at(server: &Server) -> RateLimiter {
    instance(api(), builder().url(server.url())).await
}

fn api() -> Policy {
    Policy::new().rule(Rule::new("api").tier(Quota::per_second(1_000)).max_wait(LONGEST))
}

fn call<'a>(tenant: impl Into<TenantRef<'a>>) -> Descriptor<'a> {
    Descriptor::new("/things").method("GET").tenant(tenant)
}

/// Sends a request to an upstream that replies 429.
async fn receive_429(limiter: &RateLimiter, host: &str, seconds: u64) {
    let provider = service_fn(move |_: Request<()>| async move {
        Response::builder().status(429).header("retry-after", seconds).body(())
    });
    let request = Request::get(format!("http://{host}/things")).body(()).unwrap();
    RateLimitLayer::client(limiter.clone()).layer(provider).oneshot(request).await.unwrap();
}

async fn subscribers(server: &Server) -> u64 {
    let reply: (String, u64) = server.run("PUBSUB", ["NUMSUB", "rl:cooldowns"]).await;
    reply.1
}

/// Reads a cooldown, which makes the limiters subscribe, and waits until they
/// have.
async fn subscribe_all(server: &Server, limiters: &[&RateLimiter]) {
    limiters.iter().for_each(|limiter| assert_eq!(limiter.cooldown(&call("unknown")), None));
    until("all to subscribe", async || (subscribers(server).await == limiters.len() as u64).then_some(())).await;
}

async fn received(limiter: &RateLimiter, call: &Descriptor<'_>) -> Duration {
    until("the cooldown of another instance", async || limiter.cooldown(call)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cooldown_applies_to_callers_and_waiters_of_all_instances() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let paced = || Policy::new().rule(Rule::new("api").tier(Quota::per_second(4).burst(2)).max_wait(LONGEST));
    let one = instance(paced(), builder().url(server.url())).await;
    let other = instance(paced(), builder().url(server.url())).await;
    subscribe_all(&server, &[&one, &other]).await;
    // Some of these requests are admitted before the cooldown, and others wait.
    let start = Instant::now();
    let waiters: Vec<_> = (0..6)
        .map(|_| {
            let other = other.clone();
            tokio::spawn(async move {
                drop(other.acquire(&call("acme"), PATIENCE).await.unwrap());
                start.elapsed()
            })
        })
        .collect();
    until("waiters", async || (other.stats().waiting > 0).then_some(())).await;
    let started_at = start.elapsed();
    one.cool_down(&call("acme"), Duration::from_secs(2));
    let left = received(&other, &call("acme")).await;
    let received_at = start.elapsed();
    assert!(left <= Duration::from_millis(2_500), "{left:?}");
    assert_eq!((other.cooldown(&call("globex")), one.cooldown(&call("globex"))), (None, None));
    assert!(other.check(&call("globex")).await.is_allowed());
    let rejection = other.acquire(&call("acme"), Duration::ZERO).await.unwrap_err();
    assert!(rejection.retry_after().unwrap() <= left);
    let mut delayed = 0;
    for waiter in waiters {
        let admitted_at = waiter.await.unwrap();
        let end = started_at + Duration::from_secs(2);
        let is_before_or_after = admitted_at <= received_at || admitted_at + Duration::from_millis(2) >= end;
        assert!(is_before_or_after, "{admitted_at:?} of {received_at:?} to {end:?}");
        delayed += usize::from(admitted_at > received_at);
    }
    assert!(delayed > 0, "all were admitted before the cooldown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_to_one_client_cools_down_all() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let (one, other) = (at(&server).await, at(&server).await);
    // A client subscribes at once.
    let _client: RateLimitLayer<_, _> = RateLimitLayer::client(other.clone());
    until("a client to subscribe", async || (subscribers(&server).await == 1).then_some(())).await;
    receive_429(&one, "acme", 60).await;
    let left = received(&other, &call("acme")).await;
    assert!(left > Duration::from_secs(30) && left <= Duration::from_secs(75), "{left:?}");
    assert_eq!(other.cooldown(&call("globex")), None);
    // A shorter cooldown does not end it early.
    let before = Instant::now();
    receive_429(&one, "globex", 1).await;
    one.cool_down(&call("acme"), Duration::from_secs(1));
    received(&other, &call("globex")).await;
    let now = other.cooldown(&call("acme")).unwrap();
    assert!(now + before.elapsed() + Duration::from_millis(20) >= left, "{now:?} after {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_instance_reads_earlier_cooldowns() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let one = at(&server).await;
    for nth in 0..200 {
        one.cool_down(&call(format!("tenant {nth}")), Duration::from_secs(100));
    }
    one.cool_down(&call("short"), Duration::from_millis(1));
    until("all to be published", async || {
        let stored: u64 = server.run("ZCARD", ["rl:cooldowns"]).await;
        (stored >= 200).then_some(())
    })
    .await;
    let ttl: i64 = server.run("PTTL", ["rl:cooldowns"]).await;
    assert!(ttl > 0 && ttl <= 100_000, "{ttl}");
    let late = at(&server).await;
    for nth in 0..200 {
        let left = received(&late, &call(format!("tenant {nth}"))).await;
        assert!(left <= Duration::from_secs(110), "{left:?}");
    }
    assert_eq!(late.cooldown(&call("globex")), None);
    // A second limiter on a backend that is subscribed already.
    let redis = builder().url(server.url()).connect().await.unwrap();
    let first = limiter(api(), &redis);
    received(&first, &call("tenant 7")).await;
    let second = limiter(api(), &redis);
    received(&second, &call("tenant 8")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cooldown_applies_to_exactly_its_key() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = || {
        let tier = Quota::per_second(1_000);
        let endpoints =
            Rule::new("by endpoint: {1}").path("/v1/{id}").path("/v1/{id}/x:y").methods([Method::GET, Method::POST]);
        let shared = Rule::new("all").per([] as [Dimension; 0]).path("/all");
        Policy::new()
            .rule(Rule::new("tenants").path("/things").tier(tier))
            .rule(endpoints.tier(tier))
            .rule(shared.tier(tier))
            .rule(Rule::new("opted-out").path("/opted-out").upstream_feedback(false).tier(tier))
    };
    let one = instance(policy(), builder().url(server.url())).await;
    let other = instance(policy(), builder().url(server.url())).await;
    subscribe_all(&server, &[&one, &other]).await;
    let address = |text: &str| Tenant::address(text.parse::<IpAddr>().unwrap());
    let long = "long ".repeat(100);
    let names = ["", "!", "*", "%", "@192.0.2.7", "192.0.2.7", "a}:b", "{a}", "日本 ", "a b\nc", "a\0b", &long];
    let mut calls: Vec<_> = names.into_iter().map(call).collect();
    calls.extend(["192.0.2.7", "2001:db8::1", "::ffff:192.0.2.7"].map(|text| call(address(text))));
    calls.push(Descriptor::new("/things").method("GET"));
    for method in ["GET", "POST"] {
        calls.extend(["/v1/7", "/v1/7/x:y"].map(|path| Descriptor::new(path).method(method).tenant("acme")));
    }
    calls.push(Descriptor::new("/all").tenant("acme"));
    for (nth, call) in calls.iter().enumerate() {
        one.cool_down(call, LONGEST);
        received(&other, call).await;
        for (later, another) in calls.iter().enumerate().skip(nth + 1) {
            assert_eq!(other.cooldown(another), None, "{later} for {nth}: {another:?} for {call:?}");
        }
    }
    assert!(other.cooldown(&Descriptor::new("/v1/8").method("HEAD").tenant("acme")).is_some(), "HEAD counts as GET");
    assert!(other.cooldown(&Descriptor::new("/all").tenant("globex")).is_some(), "one key for all");
    // Neither keys with too long names are shared, nor rules that opt out.
    let endless = "a".repeat(2_000);
    one.cool_down(&call(&*endless), LONGEST);
    one.cool_down(&Descriptor::new("/opted-out").tenant("acme"), LONGEST);
    one.cool_down(&call("last"), LONGEST);
    received(&other, &call("last")).await;
    assert!(one.cooldown(&call(&*endless)).is_some());
    assert_eq!(other.cooldown(&call(&*endless)), None);
    assert_eq!(other.cooldown(&Descriptor::new("/opted-out").tenant("acme")), None);
}

/// An instance that received no message, as in a partitioned cluster, reads the
/// cooldown later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missed_cooldown_is_read_later() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let one = at(&server).await;
    subscribe_all(&server, &[&one]).await;
    let rights = ["SETUSER", "quiet", "on", ">pass", "~rl:*", "resetchannels", "+@all"];
    let _: Value = server.run("ACL", rights).await;
    let quiet = instance(api(), builder().url(server.url()).username("quiet").password("pass")).await;
    quiet.cool_down(&call("acme"), LONGEST);
    let left = received(&one, &call("acme")).await;
    assert!(left <= LONGEST + Duration::from_secs(10), "{left:?}");
}

/// Each instance applies its own policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cooldown_of_an_unknown_rule_is_ignored() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let tier = Quota::per_second(1_000);
    let rule = |id: &str| Rule::new(id).path(format!("/{id}")).tier(tier);
    let published = Policy::new().rule(rule("gone")).rule(rule("opted-out")).rule(rule("common")).rule(rule("moved"));
    let own = Policy::new()
        .rule(rule("opted-out").upstream_feedback(false))
        .rule(rule("common").per([] as [Dimension; 0]))
        .rule(Rule::new("moved").path("/moved/{id}").tier(tier));
    let one = instance(published.rule(rule("last")), builder().url(server.url())).await;
    let other = instance(own.rule(rule("last")), builder().url(server.url())).await;
    subscribe_all(&server, &[&one, &other]).await;
    let paths = ["/gone", "/opted-out", "/common", "/moved", "/moved/1"];
    for path in paths.iter().chain(&["/last"]) {
        one.cool_down(&Descriptor::new(*path).tenant("acme"), LONGEST);
    }
    received(&other, &Descriptor::new("/last").tenant("acme")).await;
    for path in paths {
        assert_eq!(other.cooldown(&Descriptor::new(path).tenant("acme")), None, "{path}");
        assert!(other.check(&Descriptor::new(path).tenant("acme")).await.is_allowed(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_each_instance_applies_its_own_cooldowns() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let (one, other) = (at(&server).await, at(&server).await);
    subscribe_all(&server, &[&one, &other]).await;
    one.cool_down(&call("before"), LONGEST);
    received(&other, &call("before")).await;
    server.kill();
    one.cool_down(&call("one"), LONGEST);
    other.cool_down(&call("other"), LONGEST);
    assert!(one.cooldown(&call("one")).is_some() && other.cooldown(&call("other")).is_some());
    assert_eq!((one.cooldown(&call("other")), other.cooldown(&call("one"))), (None, None));
    // Known cooldowns stay in force.
    assert!(one.cooldown(&call("before")).is_some() && other.cooldown(&call("before")).is_some());
    server.restart().await;
    // Pending cooldowns are published now, and new ones as well.
    received(&other, &call("one")).await;
    received(&one, &call("other")).await;
    until("all to subscribe", async || (subscribers(&server).await == 2).then_some(())).await;
    one.cool_down(&call("after"), LONGEST);
    received(&other, &call("after")).await;
    assert_eq!(other.cooldown(&call("globex")), None);
}

/// A frozen server is noticed when the subscription is renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_delays_no_request() {
    let _machine = shared_machine().await;
    #[cfg(feature = "tracing")]
    log::start();
    let mut server = Server::start().await;
    let deadline = Duration::from_millis(500);
    let redis = || builder().url(server.url()).deadline(deadline).connect_timeout(deadline);
    let (one, other) = (instance(api(), redis()).await, instance(api(), redis()).await);
    subscribe_all(&server, &[&one, &other]).await;
    server.freeze();
    one.cool_down(&call("acme"), LONGEST);
    assert!(one.cooldown(&call("acme")).is_some());
    assert_eq!(other.cooldown(&call("acme")), None);
    #[cfg(feature = "tracing")]
    until("both instances to notice", async || (log::count(&server, "are not received") == 2).then_some(())).await;
    server.thaw();
    received(&other, &call("acme")).await;
    subscribe_all(&server, &[&one, &other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_ignored_and_no_cooldown_is_endless() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let one = at(&server).await;
    let score = "99999999999999999";
    for key in ["", "x", "api:{acme}", "\n5 api", "api:{%ff}::", &"a".repeat(100_000)] {
        let () = server.run("ZADD", ["rl:cooldowns", score, key]).await;
    }
    let () = server.run("ZADD", ["rl:cooldowns", "inf", "api:{endless}::"]).await;
    let () = server.run("ZADD", ["rl:cooldowns", score, "api:{known}::"]).await;
    let hour = Duration::from_secs(3_600);
    let left = received(&one, &call("known")).await;
    assert!(left > hour / 2 && left <= hour + Duration::from_secs(10), "{left:?}");
    let channel = "rl:cooldowns";
    let huge = format!("1 0\n{}", "5000 api:{acme}::\n".repeat(300_000));
    for text in [
        "",
        "hello",
        "1 0",
        "1 0\n",
        "1 0\nx",
        "2 0\n5000 api:{acme}::",
        "1 7\n5000 api:{acme}::",
        "1 0\n-5000 api:{acme}::",
        "1 0\n5e3 api:{acme}::",
        "1 0\n5000 api:{acme}",
        "1 0\n5000 api:{%ff}::",
        "1 0\n5000 api:{acme}:/nowhere:GET",
        "1 0\n5000 nothing:{acme}::",
        "1 0\n0 api:{acme}::",
        &huge,
    ] {
        let receivers: u64 = server.run("PUBLISH", [channel, text]).await;
        assert_eq!(receivers, 1, "{text:.40}");
    }
    let mut raw = redis::cmd("PUBLISH");
    raw.arg(channel).arg(b"1 0\n5000 api:{\xff\0\xfe}::");
    let _: u64 = raw.query_async(&mut server.connection().await.unwrap()).await.unwrap();
    let _: u64 = server.run("PUBLISH", [channel, "1 0\n?\n99999999999 api:{globex}::\n1 api:{"]).await;
    let left = received(&one, &call("globex")).await;
    assert!(left > hour / 2 && left <= hour + Duration::from_secs(10), "{left:?}");
    assert_eq!((one.cooldown(&call("acme")), one.cooldown(&call("endless"))), (None, None));
    assert_eq!(subscribers(&server).await, 1);
    assert!(one.check(&call("acme")).await.is_allowed());
}

/// A key of another type is not changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_value_under_the_key_is_not_changed() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let () = server.run("SET", ["rl:cooldowns", "foreign"]).await;
    let (one, other) = (at(&server).await, at(&server).await);
    subscribe_all(&server, &[&one, &other]).await;
    one.cool_down(&call("acme"), LONGEST);
    assert!(one.cooldown(&call("acme")).is_some());
    assert!(one.check(&call("globex")).await.is_allowed());
    until("an attempt to publish", async || {
        let stats: String = server.run("INFO", ["errorstats"]).await;
        stats.contains("WRONGTYPE").then_some(())
    })
    .await;
    assert_eq!(server.run::<String, 1>("GET", ["rl:cooldowns"]).await, "foreign");
    let () = server.run("DEL", ["rl:cooldowns"]).await;
    one.cool_down(&call("initech"), LONGEST);
    received(&other, &call("initech")).await;
}

/// A backend with its own user, so that its connections differ from those of the
/// test.
async fn as_user(server: &Server) -> RateLimiter {
    let _: Value = server.run("ACL", ["SETUSER", "limiter", "on", ">pass", "~*", "&*", "+@all"]).await;
    instance(api(), builder().url(server.url()).username("limiter").password("pass")).await
}

async fn connections(server: &Server) -> usize {
    let clients: String = server.run("CLIENT", ["LIST"]).await;
    clients.lines().filter(|client| client.contains(" user=limiter ")).count()
}

/// The calls of a command that the server has run.
async fn calls(server: &Server, command: &str) -> u64 {
    let stats: String = server.run("INFO", ["commandstats"]).await;
    let calls = stats.split_once(&format!("cmdstat_{command}:calls=")).map(|(_, calls)| calls);
    calls.map_or(0, |calls| calls.split_once(',').unwrap().0.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_backend_is_unsubscribed() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let one = as_user(&server).await;
    subscribe_all(&server, &[&one]).await;
    one.cool_down(&call("acme"), LONGEST);
    until("the cooldown to be published", async || (server.keys("rl:cooldowns").await.len() == 1).then_some(())).await;
    assert_eq!(connections(&server).await, 1);
    drop(one);
    until("its connection to end", async || (connections(&server).await == 0).then_some(())).await;
}

/// Until another one listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_whose_listeners_are_dropped_does_not_subscribe_again() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = builder().url(server.url()).connect().await.unwrap();
    let (one, serving) = (limiter(api(), &redis), limiter(api(), &redis));
    subscribe_all(&server, &[&one]).await;
    drop(one);
    let _: Value = server.run("CLIENT", ["KILL", "TYPE", "pubsub"]).await;
    for _ in 0..20 {
        until("a decision", async || serving.check(&call("acme")).await.is_allowed().then_some(())).await;
        assert_eq!(subscribers(&server).await, 0);
    }
    let other = at(&server).await;
    other.cool_down(&call("acme"), LONGEST);
    until("the cooldown to be published", async || (server.keys("rl:cooldowns").await.len() == 1).then_some(())).await;
    drop(other);
    let another = limiter(api(), &redis);
    subscribe_all(&server, &[&another]).await;
    received(&another, &call("acme")).await;
}

/// The subscription is renewed after ten seconds in any case.
const BEFORE_RENEWAL: Duration = Duration::from_secs(6);

/// One lane's connection ends, and those of both are replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_survives_the_end_of_another_connection() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = builder().url(server.url()).connections(2).connect().await.unwrap();
    let one = limiter(api(), &redis);
    subscribe_all(&server, &[&one]).await;
    let ids = async |kind| {
        let clients: String = server.run("CLIENT", ["LIST", "TYPE", kind]).await;
        let id = |client: &str| client.split(' ').next().unwrap().strip_prefix("id=").unwrap().to_owned();
        clients.lines().filter(|client| client.contains(" cmd=")).map(id).collect::<Vec<_>>()
    };
    let (start, subscribed) = (Instant::now(), ids("pubsub").await);
    let own: u64 = server.run("CLIENT", ["ID"]).await;
    for id in ids("normal").await {
        if id.parse::<u64>().unwrap() < own {
            let _: Value = server.run("CLIENT", ["KILL", "ID", &id]).await;
        }
    }
    until("its connections to be replaced", async || {
        for tenant in 0..20 {
            one.check(&call(tenant.to_string())).await;
        }
        let now = ids("pubsub").await;
        (now.len() == 1 && now != subscribed).then_some(())
    })
    .await;
    assert!(start.elapsed() < BEFORE_RENEWAL, "{:?}", start.elapsed());
}

/// Timeouts open the circuit breaker, and its probe replaces a connection that is still open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_survives_timeouts() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = builder().url(server.url()).deadline(Duration::from_millis(100)).connect().await.unwrap();
    let one = limiter(api(), &redis);
    subscribe_all(&server, &[&one]).await;
    let start = Instant::now();
    let _: Value = server.run("CLIENT", ["PAUSE", "1500", "ALL"]).await;
    until("the circuit breaker to open", async || {
        one.check(&call("acme")).await;
        redis.stats().open.then_some(())
    })
    .await;
    until("it to close", async || (!redis.stats().open).then_some(())).await;
    until("it to subscribe", async || (subscribers(&server).await == 1).then_some(())).await;
    assert!(start.elapsed() < BEFORE_RENEWAL, "{:?}", start.elapsed());
}

/// The sorted set is read for those that are lost, but not after each burst.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_messages_make_it_read_once_a_second() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let (one, other) = (at(&server).await, at(&server).await);
    subscribe_all(&server, &[&one]).await;
    let reads = async || calls(&server, "zrangebyscore").await;
    until("it to have read", async || (reads().await > 0).then_some(())).await;
    let (start, before) = (Instant::now(), reads().await);
    let mut burst = redis::pipe();
    for _ in 0..300 {
        burst.cmd("PUBLISH").arg("rl:cooldowns").arg("1 0\n5000 api:{globex}::").ignore();
    }
    let mut connection = server.connection().await.unwrap();
    let mut bursts = 0_u64;
    while start.elapsed() < Duration::from_secs(3) {
        let () = burst.query_async(&mut connection).await.unwrap();
        bursts += 1;
        let tenant = format!("tenant {bursts}");
        other.cool_down(&call(&*tenant), LONGEST);
        received(&one, &call(&*tenant)).await;
    }
    let (elapsed, again) = (start.elapsed(), reads().await - before);
    assert!(again <= elapsed.as_secs() + 2, "{again} in {elapsed:?} with {bursts} bursts");
    assert!(again > 0 || elapsed > BEFORE_RENEWAL, "nothing was lost of {bursts} bursts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_connects_lazily_logs_no_failure_to_subscribe() {
    let _machine = shared_machine().await;
    #[cfg(feature = "tracing")]
    log::start();
    let server = Server::start().await;
    let redis = Redis::builder().deadline(LONG).url(server.url()).connect_lazy().unwrap();
    let one = limiter(api(), &redis);
    subscribe_all(&server, &[&one]).await;
    let other = at(&server).await;
    other.cool_down(&call("acme"), LONGEST);
    received(&one, &call("acme")).await;
    #[cfg(feature = "tracing")]
    assert_eq!((log::count(&server, "are not received"), log::count(&server, "are received again")), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_decides_and_receives_cooldowns() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let limiter = as_user(&server).await;
    let service =
        service_fn(|_: Request<()>| async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) });
    let service = RateLimitLayer::new(limiter.clone()).layer(service);
    for _ in 0..20 {
        let response = service.clone().oneshot(Request::get("/things").body(()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        drop(limiter.acquire(&call("acme"), LONGEST).await.unwrap());
    }
    assert_eq!((connections(&server).await, subscribers(&server).await), (1, 0));
    // A client subscribes.
    receive_429(&limiter, "acme", 60).await;
    until("it to subscribe", async || (subscribers(&server).await == 1).then_some(())).await;
    assert_eq!(connections(&server).await, 1);
    assert!(limiter.check(&call("initech")).await.is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_share_cooldowns_through_a_cluster() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    let mut instances = Vec::new();
    for node in &cluster.nodes {
        let instance = instance(api(), builder().cluster([node.url()])).await;
        assert_eq!(instance.cooldown(&call("unknown")), None);
        instances.push(instance);
    }
    until("all to subscribe", async || {
        let mut all = 0;
        for node in &cluster.nodes {
            all += subscribers(node).await;
        }
        (all == 3).then_some(())
    })
    .await;
    for (nth, instance) in instances.iter().enumerate() {
        let name = nth.to_string();
        instance.cool_down(&call(&*name), LONGEST);
        for other in &instances {
            received(other, &call(&*name)).await;
        }
    }
    let late = instance(api(), builder().cluster([cluster.nodes[1].url()])).await;
    for name in ["0", "1", "2"] {
        received(&late, &call(name)).await;
    }
    assert_eq!(late.cooldown(&call("globex")), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_cooldowns_come_from_the_new_primary() {
    let _machine = shared_machine().await;
    let mut watched = sentinel::Watched::start().await;
    let url = watched.sentinel.url();
    let redis = || builder().sentinel(sentinel::MASTER, [url.clone()]);
    let (one, other) = (instance(api(), redis()).await, instance(api(), redis()).await);
    subscribe_all(&watched.primary, &[&one, &other]).await;
    one.cool_down(&call("before"), LONGEST);
    received(&other, &call("before")).await;
    watched.fail_over().await;
    until("all to subscribe", async || (subscribers(&watched.replica).await == 2).then_some(())).await;
    one.cool_down(&call("after"), LONGEST);
    received(&other, &call("after")).await;
}

/// With passwords and two databases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_do_not_share_cooldowns() {
    let _machine = shared_machine().await;
    let server = Server::options().password("secret").start().await;
    let redis = |database| builder().url(server.url()).password("secret").database(database);
    let (one, other) = (instance(api(), redis(3)).await, instance(api(), redis(3)).await);
    let in_other_database = instance(api(), redis(0)).await;
    subscribe_all(&server, &[&one, &other, &in_other_database]).await;
    one.cool_down(&call("acme"), LONGEST);
    received(&other, &call("acme")).await;
    in_other_database.cool_down(&call("globex"), LONGEST);
    one.cool_down(&call("last"), LONGEST);
    received(&other, &call("last")).await;
    until("the other database to have it", async || {
        let stored: u64 = server.run("ZCARD", ["rl:cooldowns"]).await;
        (stored == 1).then_some(())
    })
    .await;
    assert_eq!((in_other_database.cooldown(&call("acme")), other.cooldown(&call("globex"))), (None, None));
}

/// A user without the rights to publish and subscribe, to which they are granted
/// later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_rights_each_instance_logs_it_once() {
    let _machine = shared_machine().await;
    #[cfg(feature = "tracing")]
    log::start();
    let server = Server::start().await;
    let rights = ["SETUSER", "limiter", "on", ">pass", "~rl:*", "resetchannels", "+@all", "-publish", "-subscribe"];
    let _: Value = server.run("ACL", rights).await;
    let redis = || builder().url(server.url()).username("limiter").password("pass");
    let (one, other) = (instance(api(), redis()).await, instance(api(), redis()).await);
    assert_eq!(other.cooldown(&call("acme")), None);
    for tenant in ["acme", "globex"] {
        one.cool_down(&call(tenant), LONGEST);
        until("the cooldown to be stored", async || {
            let end: Option<f64> = server.run("ZSCORE", ["rl:cooldowns", &format!("api:{{{tenant}}}::")]).await;
            end
        })
        .await;
    }
    until("both to have tried several times", async || {
        let stats: String = server.run("INFO", ["commandstats"]).await;
        let (_, stats) = stats.split_once("cmdstat_subscribe:")?;
        let (_, rejected) = stats.lines().next()?.split_once("rejected_calls=")?;
        (rejected.split(',').next()?.parse::<u64>().ok()? >= 8).then_some(())
    })
    .await;
    assert!(one.cooldown(&call("acme")).is_some() && one.check(&call("initech")).await.is_allowed());
    assert_eq!((other.cooldown(&call("acme")), other.cooldown(&call("globex"))), (None, None));
    #[cfg(feature = "tracing")]
    assert_eq!((log::count(&server, "are not received"), log::count(&server, "are not sent")), (2, 1));

    let _: Value = server.run("ACL", ["SETUSER", "limiter", "&rl:cooldowns", "+publish", "+subscribe"]).await;
    // It reads what it missed, and receives later ones.
    received(&other, &call("acme")).await;
    until("all to subscribe", async || (subscribers(&server).await == 2).then_some(())).await;
    one.cool_down(&call("initech"), LONGEST);
    received(&other, &call("initech")).await;
    // What is published arrives before it is known to be published.
    #[cfg(feature = "tracing")]
    until("one to log that it publishes", async || {
        (log::count(&server, "are sent to other instances again") == 1).then_some(())
    })
    .await;
    #[cfg(feature = "tracing")]
    assert_eq!(log::count(&server, "are received again"), 2);
}
