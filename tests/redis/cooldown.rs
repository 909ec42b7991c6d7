//! What a provider asks of one instance of a client, all hear, over a real
//! server: and no instance is any worse off where there is none.

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

use super::{LONG, PATIENCE, beside_others, cluster::Cluster, limiter, sentinel, server::Server, until};

const LONGEST: Duration = Duration::from_secs(600);

fn builder() -> RedisBuilder {
    let (shortest, longest) = (Duration::from_millis(20), Duration::from_millis(200));
    Redis::builder().deadline(LONG).breaker(5, shortest, longest)
}

/// An instance of a service, with a backend of its own.
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

/// Sends a request to a provider that answers 429.
async fn is_told(limiter: &RateLimiter, host: &str, seconds: u64) {
    let provider = service_fn(move |_: Request<()>| async move {
        Response::builder().status(429).header("retry-after", seconds).body(())
    });
    let request = Request::get(format!("http://{host}/things")).body(()).unwrap();
    RateLimitLayer::client(limiter.clone()).layer(provider).oneshot(request).await.unwrap();
}

async fn subscribers(server: &Server) -> u64 {
    let told: (String, u64) = server.run("PUBSUB", ["NUMSUB", "rl:cooldowns"]).await;
    told.1
}

/// Asks whether it is held back, which makes the limiters hear, and waits until
/// they do.
async fn all_hear(server: &Server, limiters: &[&RateLimiter]) {
    limiters.iter().for_each(|limiter| assert_eq!(limiter.cooldown(&call("nobody")), None));
    until("all to listen", async || (subscribers(server).await == limiters.len() as u64).then_some(())).await;
}

async fn hears(limiter: &RateLimiter, call: &Descriptor<'_>) -> Duration {
    until("what another instance was told", async || limiter.cooldown(call)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_is_told_callers_and_waiters_of_all_heed() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let paced = || Policy::new().rule(Rule::new("api").tier(Quota::per_second(4).burst(2)).max_wait(LONGEST));
    let one = instance(paced(), builder().url(server.url())).await;
    let other = instance(paced(), builder().url(server.url())).await;
    all_hear(&server, &[&one, &other]).await;
    // Those who wait already: some have gone before, some have not.
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
    let asked = start.elapsed();
    one.cool_down(&call("acme"), Duration::from_secs(2));
    let left = hears(&other, &call("acme")).await;
    let heard = start.elapsed();
    assert!(left <= Duration::from_millis(2_500), "{left:?}");
    assert_eq!((other.cooldown(&call("globex")), one.cooldown(&call("globex"))), (None, None));
    assert!(other.check(&call("globex")).await.is_allowed());
    let rejection = other.acquire(&call("acme"), Duration::ZERO).await.unwrap_err();
    assert!(rejection.retry_after().unwrap() <= left);
    let mut held = 0;
    for waiter in waiters {
        let went = waiter.await.unwrap();
        let end = asked + Duration::from_secs(2);
        assert!(went <= heard || went + Duration::from_millis(2) >= end, "{went:?} of {heard:?} to {end:?}");
        held += usize::from(went > heard);
    }
    assert!(held > 0, "all had gone before it was heard");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_to_one_client_is_heard_by_all() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let (one, other) = (at(&server).await, at(&server).await);
    // A client hears from the first.
    let _client: RateLimitLayer<_, _> = RateLimitLayer::client(other.clone());
    until("a client to listen", async || (subscribers(&server).await == 1).then_some(())).await;
    is_told(&one, "acme", 60).await;
    let left = hears(&other, &call("acme")).await;
    assert!(left > Duration::from_secs(30) && left <= Duration::from_secs(75), "{left:?}");
    assert_eq!(other.cooldown(&call("globex")), None);
    // It is told no less by who was told less.
    let before = Instant::now();
    is_told(&one, "globex", 1).await;
    one.cool_down(&call("acme"), Duration::from_secs(1));
    hears(&other, &call("globex")).await;
    let now = other.cooldown(&call("acme")).unwrap();
    assert!(now + before.elapsed() + Duration::from_millis(20) >= left, "{now:?} after {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_later_knows() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let one = at(&server).await;
    for nth in 0..200 {
        one.cool_down(&call(format!("tenant {nth}")), Duration::from_secs(100));
    }
    one.cool_down(&call("short"), Duration::from_millis(1));
    until("all to be told", async || {
        let told: u64 = server.run("ZCARD", ["rl:cooldowns"]).await;
        (told >= 200).then_some(())
    })
    .await;
    let ttl: i64 = server.run("PTTL", ["rl:cooldowns"]).await;
    assert!(ttl > 0 && ttl <= 100_000, "{ttl}");
    let late = at(&server).await;
    for nth in 0..200 {
        let left = hears(&late, &call(format!("tenant {nth}"))).await;
        assert!(left <= Duration::from_secs(110), "{left:?}");
    }
    assert_eq!(late.cooldown(&call("globex")), None);
    // A second limiter on a backend that listens already.
    let redis = builder().url(server.url()).connect().await.unwrap();
    let first = limiter(api(), &redis);
    hears(&first, &call("tenant 7")).await;
    let second = limiter(api(), &redis);
    hears(&second, &call("tenant 8")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_back_is_exactly_that() {
    let _turn = beside_others().await;
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
            .rule(Rule::new("apart").path("/apart").upstream_feedback(false).tier(tier))
    };
    let one = instance(policy(), builder().url(server.url())).await;
    let other = instance(policy(), builder().url(server.url())).await;
    all_hear(&server, &[&one, &other]).await;
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
        hears(&other, call).await;
        for (later, another) in calls.iter().enumerate().skip(nth + 1) {
            assert_eq!(other.cooldown(another), None, "{later} for {nth}: {another:?} for {call:?}");
        }
    }
    assert!(other.cooldown(&Descriptor::new("/v1/8").method("HEAD").tenant("acme")).is_some(), "it is GET");
    assert!(other.cooldown(&Descriptor::new("/all").tenant("globex")).is_some(), "one key for all");
    // What has no name that fits is its own instance's matter, and so are rules
    // that stand apart.
    let endless = "a".repeat(2_000);
    one.cool_down(&call(&*endless), LONGEST);
    one.cool_down(&Descriptor::new("/apart").tenant("acme"), LONGEST);
    one.cool_down(&call("last"), LONGEST);
    hears(&other, &call("last")).await;
    assert!(one.cooldown(&call(&*endless)).is_some());
    assert_eq!(other.cooldown(&call(&*endless)), None);
    assert_eq!(other.cooldown(&Descriptor::new("/apart").tenant("acme")), None);
}

/// What was published where this instance could not hear it, as in a part of a
/// cluster that was cut off, it reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_missed_is_read() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let one = at(&server).await;
    all_hear(&server, &[&one]).await;
    let rights = ["SETUSER", "quiet", "on", ">pass", "~rl:*", "resetchannels", "+@all"];
    let _: Value = server.run("ACL", rights).await;
    let quiet = instance(api(), builder().url(server.url()).username("quiet").password("pass")).await;
    quiet.cool_down(&call("acme"), LONGEST);
    let left = hears(&one, &call("acme")).await;
    assert!(left <= LONGEST + Duration::from_secs(10), "{left:?}");
}

/// Each instance goes by its own policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_policy_here_does_not_have_is_ignored() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let tier = Quota::per_second(1_000);
    let rule = |id: &str| Rule::new(id).path(format!("/{id}")).tier(tier);
    let told = Policy::new().rule(rule("gone")).rule(rule("apart")).rule(rule("together")).rule(rule("moved"));
    let mine = Policy::new()
        .rule(rule("apart").upstream_feedback(false))
        .rule(rule("together").per([] as [Dimension; 0]))
        .rule(Rule::new("moved").path("/moved/{id}").tier(tier));
    let one = instance(told.rule(rule("last")), builder().url(server.url())).await;
    let other = instance(mine.rule(rule("last")), builder().url(server.url())).await;
    all_hear(&server, &[&one, &other]).await;
    let paths = ["/gone", "/apart", "/together", "/moved", "/moved/1"];
    for path in paths.iter().chain(&["/last"]) {
        one.cool_down(&Descriptor::new(path).tenant("acme"), LONGEST);
    }
    hears(&other, &Descriptor::new("/last").tenant("acme")).await;
    for path in paths {
        assert_eq!(other.cooldown(&Descriptor::new(path).tenant("acme")), None, "{path}");
        assert!(other.check(&Descriptor::new(path).tenant("acme")).await.is_allowed(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_each_goes_alone_until_it_is_back() {
    let _turn = beside_others().await;
    let mut server = Server::start().await;
    let (one, other) = (at(&server).await, at(&server).await);
    all_hear(&server, &[&one, &other]).await;
    one.cool_down(&call("before"), LONGEST);
    hears(&other, &call("before")).await;
    server.kill();
    one.cool_down(&call("one"), LONGEST);
    other.cool_down(&call("other"), LONGEST);
    assert!(one.cooldown(&call("one")).is_some() && other.cooldown(&call("other")).is_some());
    assert_eq!((one.cooldown(&call("other")), other.cooldown(&call("one"))), (None, None));
    // What is known is not forgotten.
    assert!(one.cooldown(&call("before")).is_some() && other.cooldown(&call("before")).is_some());
    server.restart().await;
    // What could not be told is told now, and so is what comes.
    hears(&other, &call("one")).await;
    hears(&one, &call("other")).await;
    until("all to listen", async || (subscribers(&server).await == 2).then_some(())).await;
    one.cool_down(&call("after"), LONGEST);
    hears(&other, &call("after")).await;
    assert_eq!(other.cooldown(&call("globex")), None);
}

/// One that hangs is noticed, though it says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_holds_up_nobody() {
    let _turn = beside_others().await;
    #[cfg(feature = "tracing")]
    log::start();
    let mut server = Server::start().await;
    let deadline = Duration::from_millis(500);
    let redis = || builder().url(server.url()).deadline(deadline).connect_timeout(deadline);
    let (one, other) = (instance(api(), redis()).await, instance(api(), redis()).await);
    all_hear(&server, &[&one, &other]).await;
    server.freeze();
    one.cool_down(&call("acme"), LONGEST);
    assert!(one.cooldown(&call("acme")).is_some());
    assert_eq!(other.cooldown(&call("acme")), None);
    #[cfg(feature = "tracing")]
    until("both to notice", async || (log::count(&server, "are not received") == 2).then_some(())).await;
    server.thaw();
    hears(&other, &call("acme")).await;
    all_hear(&server, &[&one, &other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_ignored_and_no_time_is_endless() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let one = at(&server).await;
    let score = "99999999999999999";
    for key in ["", "x", "api:{acme}", "\n5 api", "api:{%ff}::", &"a".repeat(100_000)] {
        let () = server.run("ZADD", ["rl:cooldowns", score, key]).await;
    }
    let () = server.run("ZADD", ["rl:cooldowns", "inf", "api:{endless}::"]).await;
    let () = server.run("ZADD", ["rl:cooldowns", score, "api:{known}::"]).await;
    let hour = Duration::from_secs(3_600);
    let left = hears(&one, &call("known")).await;
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
        let heard: u64 = server.run("PUBLISH", [channel, text]).await;
        assert_eq!(heard, 1, "{text:.40}");
    }
    let mut raw = redis::cmd("PUBLISH");
    raw.arg(channel).arg(b"1 0\n5000 api:{\xff\0\xfe}::");
    let _: u64 = raw.query_async(&mut server.connection().await.unwrap()).await.unwrap();
    let _: u64 = server.run("PUBLISH", [channel, "1 0\n?\n99999999999 api:{globex}::\n1 api:{"]).await;
    let left = hears(&one, &call("globex")).await;
    assert!(left > hour / 2 && left <= hour + Duration::from_secs(10), "{left:?}");
    assert_eq!((one.cooldown(&call("acme")), one.cooldown(&call("endless"))), (None, None));
    assert_eq!(subscribers(&server).await, 1);
    assert!(one.check(&call("acme")).await.is_allowed());
}

/// What stands under the key is somebody else's: it is left as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_value_under_the_key_is_left_alone() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let () = server.run("SET", ["rl:cooldowns", "mine"]).await;
    let (one, other) = (at(&server).await, at(&server).await);
    all_hear(&server, &[&one, &other]).await;
    one.cool_down(&call("acme"), LONGEST);
    assert!(one.cooldown(&call("acme")).is_some());
    assert!(one.check(&call("globex")).await.is_allowed());
    until("it to be tried", async || {
        let stats: String = server.run("INFO", ["errorstats"]).await;
        stats.contains("WRONGTYPE").then_some(())
    })
    .await;
    assert_eq!(server.run::<String, 1>("GET", ["rl:cooldowns"]).await, "mine");
    let () = server.run("DEL", ["rl:cooldowns"]).await;
    one.cool_down(&call("initech"), LONGEST);
    hears(&other, &call("initech")).await;
}

/// A backend with a user of its own, so that its connections are told from the
/// test's.
async fn as_user(server: &Server) -> RateLimiter {
    let _: Value = server.run("ACL", ["SETUSER", "limiter", "on", ">pass", "~*", "&*", "+@all"]).await;
    instance(api(), builder().url(server.url()).username("limiter").password("pass")).await
}

async fn connections(server: &Server) -> usize {
    let clients: String = server.run("CLIENT", ["LIST"]).await;
    clients.lines().filter(|client| client.contains(" user=limiter ")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limiter_that_is_dropped_listens_no_more() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let one = as_user(&server).await;
    all_hear(&server, &[&one]).await;
    one.cool_down(&call("acme"), LONGEST);
    until("it to be told", async || (server.keys("rl:cooldowns").await.len() == 1).then_some(())).await;
    assert_eq!(connections(&server).await, 2);
    drop(one);
    until("its connections to end", async || (connections(&server).await == 0).then_some(())).await;

    // The backend stays, and others come.
    let redis = builder().url(server.url()).connect().await.unwrap();
    let one = limiter(api(), &redis);
    all_hear(&server, &[&one]).await;
    drop(one);
    until("it to listen no more", async || (subscribers(&server).await == 0).then_some(())).await;
    let another = limiter(api(), &redis);
    all_hear(&server, &[&another]).await;
    hears(&another, &call("acme")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_serves_has_one_connection() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let limiter = as_user(&server).await;
    let service =
        service_fn(|_: Request<()>| async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) });
    let service = RateLimitLayer::new(limiter.clone()).layer(service);
    for _ in 0..20 {
        let answer = service.clone().oneshot(Request::get("/things").body(()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        drop(limiter.acquire(&call("acme"), LONGEST).await.unwrap());
    }
    assert_eq!((connections(&server).await, subscribers(&server).await), (1, 0));
    // One that has to do with a provider has another.
    is_told(&limiter, "acme", 60).await;
    until("a second one", async || (connections(&server).await == 2).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_a_cluster_hear_each_other() {
    let _turn = beside_others().await;
    let cluster = Cluster::start().await;
    let mut instances = Vec::new();
    for node in &cluster.nodes {
        let instance = instance(api(), builder().cluster([node.url()])).await;
        assert_eq!(instance.cooldown(&call("nobody")), None);
        instances.push(instance);
    }
    until("all to listen", async || {
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
            hears(other, &call(&*name)).await;
        }
    }
    let late = instance(api(), builder().cluster([cluster.nodes[1].url()])).await;
    for name in ["0", "1", "2"] {
        hears(&late, &call(name)).await;
    }
    assert_eq!(late.cooldown(&call("globex")), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_the_new_primary_is_heard() {
    let _turn = beside_others().await;
    let mut watched = sentinel::Watched::start().await;
    let url = watched.sentinel.url();
    let redis = || builder().sentinel(sentinel::MASTER, [url.clone()]);
    let (one, other) = (instance(api(), redis()).await, instance(api(), redis()).await);
    all_hear(&watched.primary, &[&one, &other]).await;
    one.cool_down(&call("before"), LONGEST);
    hears(&other, &call("before")).await;
    watched.fail_over().await;
    until("all to listen", async || (subscribers(&watched.replica).await == 2).then_some(())).await;
    one.cool_down(&call("after"), LONGEST);
    hears(&other, &call("after")).await;
}

/// With passwords and another database: what is said there is not heard here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_are_told_apart() {
    let _turn = beside_others().await;
    let server = Server::options().password("secret").start().await;
    let redis = |database| builder().url(server.url()).password("secret").database(database);
    let (one, other) = (instance(api(), redis(3)).await, instance(api(), redis(3)).await);
    let elsewhere = instance(api(), redis(0)).await;
    all_hear(&server, &[&one, &other, &elsewhere]).await;
    one.cool_down(&call("acme"), LONGEST);
    hears(&other, &call("acme")).await;
    elsewhere.cool_down(&call("globex"), LONGEST);
    one.cool_down(&call("last"), LONGEST);
    hears(&other, &call("last")).await;
    until("the other database to be told", async || {
        let told: u64 = server.run("ZCARD", ["rl:cooldowns"]).await;
        (told == 1).then_some(())
    })
    .await;
    assert_eq!((elsewhere.cooldown(&call("acme")), other.cooldown(&call("globex"))), (None, None));
}

/// A user who may neither publish nor subscribe, and then may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_each_goes_alone_and_says_so_once() {
    let _turn = beside_others().await;
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
        until("it to be kept", async || {
            let told: Option<f64> = server.run("ZSCORE", ["rl:cooldowns", &format!("api:{{{tenant}}}::")]).await;
            told
        })
        .await;
    }
    until("both to have tried again and again", async || {
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
    // It reads what it has missed, and hears what comes.
    hears(&other, &call("acme")).await;
    until("all to listen", async || (subscribers(&server).await == 2).then_some(())).await;
    one.cool_down(&call("initech"), LONGEST);
    hears(&other, &call("initech")).await;
    #[cfg(feature = "tracing")]
    assert_eq!(
        (log::count(&server, "are received again"), log::count(&server, "are sent to other instances again")),
        (2, 1)
    );
}

/// What is logged of servers, by all threads: a backend's tasks may run on any.
#[cfg(feature = "tracing")]
mod log {
    use std::{
        fmt::{Debug, Write},
        sync::{LazyLock, Mutex},
    };

    use tracing::{
        Event, Level, Subscriber,
        field::{Field, Visit},
    };
    use tracing_subscriber::{
        Registry,
        filter::LevelFilter,
        layer::{Context, Layer, SubscriberExt},
    };

    use super::Server;

    static MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    pub(super) fn start() {
        static STARTED: LazyLock<()> = LazyLock::new(|| {
            let all = Registry::default().with(Log.with_filter(LevelFilter::from_level(Level::INFO)));
            tracing::subscriber::set_global_default(all).unwrap();
        });
        LazyLock::force(&STARTED);
    }

    /// How often something was said of a server.
    pub(super) fn count(server: &Server, words: &str) -> usize {
        let place = format!("place=127.0.0.1:{} ", server.port());
        let messages = MESSAGES.lock().unwrap();
        messages.iter().filter(|message| message.contains(&place) && message.contains(words)).count()
    }

    struct Log;

    impl<S: Subscriber> Layer<S> for Log {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut message = Message(String::new());
            event.record(&mut message);
            MESSAGES.lock().unwrap().push(message.0);
        }
    }

    struct Message(String);

    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = write!(self.0, "{}={value:?} ", field.name());
        }
    }
}
