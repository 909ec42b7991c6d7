//! Keys in the store: readable, bounded in length, and deleted when they are no
//! longer needed.

use std::{collections::HashSet, time::Duration};

use http::Method;
use tower_ratelimit::{Algorithm, Descriptor, Dimension, Policy, Quota, Rule, Tenant, backend::Redis};

use super::{LONG, Seen, algorithms::ALGORITHMS, ask, closed, limiter, patient, server::Server, shared_machine};

/// The longest name of a key, whatever the tenant's name is.
const LONGEST: usize = 512;

/// The keys of counters, without the epoch.
async fn counters(server: &Server) -> Vec<String> {
    server.keys("*").await.into_iter().filter(|key| !key.contains("epoch")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_readable() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(LONG).prefix("limits").connect().await.unwrap();
    let policy = Policy::new()
        .rule(
            Rule::new("get-product")
                .methods([Method::GET])
                .path("/v1/product/{id}")
                .tier(Quota::per_minute(10))
                .tier(Quota::per_day(50).algorithm(Algorithm::FixedWindow)),
        )
        .rule(Rule::new("all").per([]).tier(Quota::per_day(1_000)));
    let limiter = limiter(policy, &redis);
    let request = Descriptor::new("/v1/product/17").method("GET").tenant("acme");
    assert!(limiter.check(&request).await.is_allowed());

    let keys = counters(&server).await;
    let of = |start: &str| keys.iter().filter(|key| key.starts_with(start)).collect::<Vec<_>>();
    let own = of("limits:get-product:{acme}:");
    assert!(!own.is_empty() && own.iter().all(|key| key.contains("/v1/product/") && key.contains(":GET")), "{keys:?}");
    assert_eq!(of("limits:all:{").len(), 1, "{keys:?}");
    assert_eq!(own.len() + 1, keys.len(), "{keys:?}");
    // Not the request's path: that would be a key for each product.
    assert!(!keys.iter().any(|key| key.contains("17")), "{keys:?}");
}

/// The keys that `docs/redis.md` shows are those of its kind of rule.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_named_as_documented() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(LONG).connect().await.unwrap();
    let rule = Rule::new("get-product")
        .methods([Method::GET])
        .path("/v1/organizations/{org}/product/{id}")
        .tenant_from_path("org")
        .tier(Quota::per_second(10))
        .tier(Quota::new(50, Duration::from_secs(10)).algorithm(Algorithm::FixedWindow));
    let limiter = limiter(Policy::new().rule(rule), &redis);
    let request = Descriptor::new("/v1/organizations/initech/product/17").method("GET");
    assert!(limiter.check(&request).await.is_allowed());

    let page = include_str!("../../docs/redis.md").lines();
    let documented: HashSet<&str> = page.filter(|line| line.starts_with("rl:get-product:")).collect();
    let keys = counters(&server).await;
    assert_eq!(keys.iter().map(String::as_str).collect::<HashSet<_>>(), documented);
    assert_eq!(documented.len(), 2);
}

/// Every key expires, not much later than its counter equals a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_expire() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = ALGORITHMS.into_iter().fold(Policy::new(), |policy, algorithm| {
        let quota = Quota::per_minute(20).algorithm(algorithm);
        let rule = Rule::new(algorithm.as_str()).path(format!("/{algorithm}")).tier(quota).settle(true);
        policy.rule(rule.tier(Quota::concurrent(20)))
    });
    let limiter = limiter(policy, &patient(server.url()).await);
    let mut permits = Vec::new();
    for nth in 0..300_u64 {
        let algorithm = ALGORITHMS[usize::try_from(nth % 6).unwrap()];
        let (path, tenant) = (format!("/{algorithm}"), format!("tenant-{}", nth % 17));
        let request = Descriptor::new(&path).tenant(&*tenant).cost(1 + nth % 3);
        let wait = Duration::from_millis(nth % 2);
        if let Ok(permit) = limiter.acquire(&request, wait).await {
            permit.add(nth % 5);
            permit.give_back(nth % 7);
            if nth % 4 == 0 {
                permit.refund();
            } else if nth % 4 == 1 {
                permits.push(permit);
            }
        }
    }
    drop(permits);
    let keys = server.keys("*").await;
    assert!(keys.len() > 50, "{keys:?}");
    for key in keys {
        let left: i64 = server.run("PTTL", [&key]).await;
        let is_epoch = key.contains("epoch");
        assert!(left > 0 || is_epoch || left == -2, "{key} has no TTL");
        // Two windows, the debt beyond them, and a margin.
        assert!(left < 600_000 || is_epoch, "{key} has a TTL of {left} ms");
    }
}

/// Windows that have ended leave no key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_ended_windows_expire() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let limiter = limiter(closed(Quota::new(5, Duration::from_millis(100))), &patient(server.url()).await);
    for tenant in 0..20 {
        assert_eq!(ask(&limiter, "/", &tenant.to_string()).await, Seen::Admitted);
    }
    assert!(!counters(&server).await.is_empty());
    super::until("all keys to expire", async || counters(&server).await.is_empty().then_some(())).await;
}

fn hostile_tenants() -> Vec<String> {
    let mut tenants: Vec<String> = [
        "",
        " ",
        "a",
        "A",
        "a:",
        ":a",
        "a:b",
        "a::b",
        "{a}",
        "{",
        "}",
        "}{",
        "{}",
        "a}b{c",
        "%7Ba%7D",
        "%",
        "%3A",
        "a\nb",
        "a\r\nb",
        "a\0b",
        "\u{0}",
        "*",
        "?",
        "[a]",
        "a/b",
        "/",
        "\\",
        "\"",
        "'",
        "${a}",
        "ä",
        "a\u{308}",
        "日本",
        "\u{202e}",
        "192.0.2.7",
        "::1",
        "127.0.0.1",
        "null",
        "nil",
        "0",
        "-1",
    ]
    .map(str::to_owned)
    .into();
    for length in [63, 64, 65, 127, 128, 129, 255, 256, 257, 10_240] {
        let long = "x".repeat(length);
        tenants.extend([format!("{long}a"), format!("{long}b"), format!("{long}:")]);
        // Counted in bytes, not in characters.
        tenants.push("ß".repeat(length));
    }
    tenants
}

/// No two tenants share a counter, whatever their names, and none has long keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_tenants_have_different_keys() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let limiter = limiter(closed(Quota::per_day(1)), &patient(server.url()).await);
    let tenants = hostile_tenants();
    for tenant in &tenants {
        assert_eq!(ask(&limiter, "/", tenant).await, Seen::Admitted, "{tenant:.40?} has the counter of another one");
    }
    for tenant in &tenants {
        assert_eq!(ask(&limiter, "/", tenant).await, Seen::Rejected, "{tenant:.40?} has several");
    }
    let keys = counters(&server).await;
    assert_eq!(keys.len(), tenants.len(), "{keys:#?}");
    for key in &keys {
        assert!(key.len() <= LONGEST, "{} bytes: {key:.80}", key.len());
        assert!(!key.chars().any(char::is_control), "not readable on one line: {key:?}");
        // One hash tag that is not empty, or a cluster would hash the whole key.
        assert!(key.split_once('{').is_some_and(|(_, rest)| rest.find('}').is_some_and(|end| end > 0)), "{key:?}");
    }
}

/// A name and an address of the same text; the anonymous tenant, and a tenant with
/// its marker as name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_addresses_have_different_keys() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let limiter = limiter(closed(Quota::per_day(1)), &patient(server.url()).await);
    let addresses = ["192.0.2.7", "::1", "::ffff:192.0.2.7", "2001:db8::"];
    let mut tenants: Vec<Option<Tenant>> = addresses.iter().map(|name| Some(Tenant::new(*name))).collect();
    tenants.extend(addresses.iter().map(|address| Some(Tenant::address(address.parse().unwrap()))));
    tenants.extend([None, Some(Tenant::new("")), Some(Tenant::new("anonymous")), Some(Tenant::new("-"))]);
    for tenant in &tenants {
        let request = Descriptor::new("/");
        let request = match tenant {
            Some(tenant) => request.tenant(tenant.as_ref()),
            None => request,
        };
        assert!(limiter.check(&request).await.is_allowed(), "{tenant:?} has the counter of another one");
        assert!(!limiter.check(&request).await.is_allowed(), "{tenant:?} has several");
    }
}

/// Hostile rules, paths and methods.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_paths_and_methods_have_different_keys() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let ids = ["r", "r:{a}", "r:", ":r", "{r}", "r:{a}:/x", "r ", "r%3A"];
    let paths = ["/x", "/x:GET", "/{id}/x", "/*/y", "/a:b/c"];
    let policy = ids.iter().fold(Policy::new(), |policy, id| {
        let rule = Rule::new(*id).methods([Method::GET, Method::POST]).tier(Quota::per_day(1));
        policy.rule(paths.iter().fold(rule, |rule, path| rule.path(*path)))
    });
    let limiter = limiter(policy, &patient(server.url()).await);
    let requests = ["/x", "/x:GET", "/1/x", "/1/y", "/a:b/c"];
    for path in requests {
        for method in ["GET", "POST"] {
            for tenant in ["a", "a}:/x:GET:{", "a:{a}"] {
                let request = Descriptor::new(path).method(method).tenant(tenant);
                assert!(limiter.check(&request).await.is_allowed(), "{path} {method} {tenant}");
            }
        }
    }
    let keys = counters(&server).await;
    let distinct: HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), ids.len() * requests.len() * 2 * 3, "{keys:#?}");
}

/// Several applications on one server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_have_different_keys() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    for prefix in ["rl", "rl:", "rl:closed", "r", "{rl}", "a{b", "a}b", "", "ü", "a b\n"] {
        let builder = Redis::builder().url(server.url()).deadline(LONG).prefix(prefix);
        // A prefix that makes keys unreadable may be an error.
        let Ok(redis) = builder.connect().await else { continue };
        let policy = Policy::new().rule(Rule::new("closed").per([Dimension::Tenant]).tier(Quota::per_day(1)));
        let limiter = limiter(policy, &redis);
        assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted, "{prefix:?} shares counters with another one");
        assert_eq!(ask(&limiter, "/", "acme").await, Seen::Rejected, "{prefix:?}");
    }
}
