//! Requests that no rule charges: by a rule, by the layer, and by a network.

use http::{Method, StatusCode};
use tower::{Layer, service_fn};
use tower_ratelimit::{
    Descriptor, Dimension, Policy, Quota, RateLimitLayer, RateLimiter, Rule, Tenant,
    tenant::{self, TrustedProxies},
};

use super::{
    common::{Caller, limiter, serve},
    hello, limited,
};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

fn one_a_minute(id: &str) -> Rule {
    Rule::new(id).per([]).tier(Quota::per_minute(1))
}

#[tokio::test]
async fn an_exempt_rule_exempts_from_all_rules() {
    let policy = Policy::new()
        .rule(one_a_minute("everything"))
        .rule(Rule::new("health").methods([Method::GET]).path("/health/{*rest}").exempt(true))
        .rule(one_a_minute("fallback").fallback(true))
        .rule(Rule::new("off").exempt(true).enabled(false));
    let (limiter, _) = limiter(policy);
    let server = limited(RateLimitLayer::new(limiter.clone())).await;
    for _ in 0..3 {
        let reply = server.get("/health/live").await;
        assert_eq!(reply.status, OK);
        assert_eq!(reply.field("x-ratelimit-limit"), "", "no rule applied");
    }
    // The match of the rule still has to fit.
    assert_eq!(server.call(Method::POST, "/health/live", &[]).await.status, OK);
    assert_eq!(server.get("/health/live").await.status, OK);
    assert_eq!(server.get("/other").await.status, REJECTED);
    assert!(limiter.check(&Descriptor::new("/health").method("GET")).await.is_allowed());
}

#[tokio::test]
async fn an_exempt_rule_applies_to_any_service() {
    let policy = Policy::new().rule(one_a_minute("jobs")).rule(Rule::new("pings").path("/pings").exempt(true));
    let (limiter, _) = limiter(policy);
    let layer = RateLimitLayer::keyed(limiter, |queue: &String| Descriptor::new(queue));
    let service = layer.layer(service_fn(async |_: String| Ok::<_, std::io::Error>(())));
    let send = async |queue: &str| tower::ServiceExt::oneshot(service.clone(), queue.to_owned()).await;
    for (queue, is_admitted) in [("/pings", true), ("/mails", true), ("/mails", false), ("/pings", true)] {
        assert_eq!(send(queue).await.is_ok(), is_admitted, "{queue}");
    }
}

#[tokio::test]
async fn the_layer_skips_what_it_is_told_to() {
    let (limiter, _) = limiter(Policy::new().rule(one_a_minute("r")));
    let layer = RateLimitLayer::new(limiter).skip(|head| head.headers().contains_key("x-internal"));
    let server = limited(layer).await;
    for _ in 0..3 {
        let reply = server.call(Method::GET, "/", &[("x-internal", b"1")]).await;
        assert_eq!((reply.status, &*reply.field("x-ratelimit-limit")), (OK, ""));
    }
    assert_eq!(server.get("/").await.status, OK);
    assert_eq!(server.get("/").await.status, REJECTED);
}

#[tokio::test]
async fn a_network_is_a_tenant_of_its_addresses() {
    let rule = Rule::new("r")
        .tier(Quota::per_minute(1))
        .tenant_unlimited("10.0.0.0/8")
        .tenant("10.1.0.0/16", [Quota::per_minute(2)])
        .tenant("10.1.1.1", [Quota::per_minute(3)])
        .tenant("2001:db8::/32", [Quota::per_minute(2)]);
    let proxies = TrustedProxies::cidrs(["127.0.0.1"]).unwrap();
    let layer = RateLimitLayer::new(limiter(Policy::new().rule(rule)).0).tenant(tenant::client_ip(proxies));
    let server = limited(layer).await;
    for (address, admitted) in [
        ("10.2.0.1", 5),
        ("10.1.2.3", 2),
        ("10.1.2.4", 2), // Each address has a counter of its own.
        ("10.1.1.1", 3),
        ("11.0.0.1", 1),
        ("2001:db8:1:2::3", 2),
    ] {
        let mut passed = 0;
        for _ in 0..5 {
            let reply = server.call(Method::GET, "/", &[("x-forwarded-for", address.as_bytes())]).await;
            passed += usize::from(reply.status == OK);
        }
        assert_eq!(passed, admitted, "{address}");
    }
}

async fn admitted(server: &Caller, path: &str, header: (&str, &str)) -> usize {
    let mut passed = 0;
    for _ in 0..5 {
        let reply = server.call(Method::GET, path, &[(header.0, header.1.as_bytes())]).await;
        passed += usize::from(reply.status == OK);
    }
    passed
}

#[tokio::test]
async fn where_the_path_names_the_tenant_a_network_is_of_callers() {
    let policy = || {
        let rule = Rule::new("r").path("/{org}/products").tenant_from_path("org").tier(Quota::per_minute(1));
        let rule = rule.tenant_unlimited("10.0.0.0/8").tenant("10.1.0.0/16", [Quota::per_minute(2)]);
        Policy::new().rule(rule.tenant("11.0.0.1", [Quota::per_minute(4)]).tenant("acme", [Quota::per_minute(3)]))
    };
    let proxies = TrustedProxies::cidrs(["127.0.0.1"]).unwrap();
    let by_address = RateLimitLayer::new(limiter(policy()).0).tenant(tenant::client_ip(proxies));
    let by_name = RateLimitLayer::new(limiter(policy()).0).tenant(tenant::header("x-api-key"));
    let (by_address, by_name) = (limited(by_address).await, limited(by_name).await);
    for (caller, org, expected) in [
        ("10.2.0.1", "initech", 5),
        ("12.0.0.1", "initech", 1),
        ("11.0.0.1", "umbrella", 4),
        ("10.2.0.1", "acme", 3), // What is said of the tenant itself comes first.
        ("10.1.2.3", "hooli", 2),
        ("10.1.2.4", "hooli", 0), // The organization is counted, not the caller.
        ("12.0.0.1", "10.2.0.1", 1),
    ] {
        let passed = admitted(&by_address, &format!("/{org}/products"), ("x-forwarded-for", caller)).await;
        assert_eq!(passed, expected, "{caller} {org}");
    }
    // A name is no address, and no other tenant's name.
    for (n, key) in ["10.2.0.1", "acme"].into_iter().enumerate() {
        assert_eq!(admitted(&by_name, &format!("/{n}/products"), ("x-api-key", key)).await, 1, "{key}");
    }
}

#[tokio::test]
async fn an_exception_may_be_finer_than_the_prefix_that_counts() {
    let rule = || {
        let rule = Rule::new("r").tier(Quota::per_hour(2)).tenant_unlimited("::1").tenant_unlimited("2001:db8::/96");
        rule.tenant("2001:db8:1:2::3", [Quota::per_hour(1)])
    };
    let proxies = || TrustedProxies::cidrs(["127.0.0.1"]).unwrap();
    let by_tenant = RateLimitLayer::new(limiter(Policy::new().rule(rule())).0).tenant(tenant::client_ip(proxies()));
    let by_key = rule().per([Dimension::key("ip")]);
    let by_key = RateLimitLayer::new(limiter(Policy::new().rule(by_key)).0).key("ip", tenant::client_ip(proxies()));
    let of_path = rule().path("/{org}").tenant_from_path("org");
    let of_path = RateLimitLayer::new(limiter(Policy::new().rule(of_path)).0).tenant(tenant::client_ip(proxies()));
    let inner = RateLimitLayer::new(limiter(Policy::new().rule(rule())).0).tenant(tenant::extension::<Tenant>());
    let outer = limiter(Quota::per_hour(100)).0;
    let outer = RateLimitLayer::new(outer).tenant(tenant::client_ip(proxies())).expose(true);
    let passed_on = serve(outer.layer(inner.layer(hello()))).await;
    for (n, server) in
        [limited(by_tenant).await, limited(by_key).await, limited(of_path).await, passed_on].iter().enumerate()
    {
        for (path, address, expected) in [
            ("/1", "::1", 5),
            ("/2", "::2", 2),
            ("/3", "::1", 5),
            ("/4", "2001:db8::7", 5),
            ("/5", "2001:db8::1:0:0", 2),
            // The rest of the network shares one counter, unless the path is counted.
            ("/5", "2001:db8::2:0:0", 0),
            ("/6", "2001:db8:1:2::3", 1),
        ] {
            assert_eq!(admitted(server, path, ("x-forwarded-for", address)).await, expected, "{n} {address}");
        }
    }
}

/// A caller chooses the value of the header that it sends.
#[tokio::test]
async fn a_name_claims_no_entry_of_an_address() {
    let rule = Rule::new("r")
        .tier(Quota::per_hour(1))
        .tenant_unlimited("10.0.0.0/8")
        .tenant_unlimited("192.0.2.7")
        .tenant_unlimited("acme");
    let layer = RateLimitLayer::new(limiter(Policy::new().rule(rule)).0);
    let server = limited(layer.tenant(tenant::header("x-api-key").or(tenant::peer_ip()))).await;
    for (key, expected) in [("10.0.0.0/8", 1), ("192.0.2.7", 1), ("10.0.0.1", 1), ("acme", 5)] {
        assert_eq!(admitted(&server, "/", ("x-api-key", key)).await, expected, "{key}");
    }
    // Nor does the part of a path.
    let rule =
        Rule::new("r").path("/{org}").tenant_from_path("org").tier(Quota::per_hour(1)).tenant_unlimited("192.0.2.7");
    let server = limited(RateLimitLayer::new(limiter(Policy::new().rule(rule)).0)).await;
    assert_eq!(admitted(&server, "/192.0.2.7", ("x-api-key", "any")).await, 1);
}

#[tokio::test]
async fn an_address_with_an_ipv4_address_in_it_is_counted_by_that() {
    let proxies = TrustedProxies::cidrs(["127.0.0.1"]).unwrap();
    let layer = RateLimitLayer::new(limiter(Quota::per_hour(2)).0).tenant(tenant::client_ip(proxies));
    let server = limited(layer).await;
    for (address, expected) in [
        // NAT64: all clients are in one /64.
        ("64:ff9b::c000:207", 2),
        ("64:ff9b::c633:6407", 2),
        ("192.0.2.7", 0),
        // 6to4: each client has a /48.
        ("2002:cb00:7101::1", 2),
        ("2002:cb00:7101:ffff::1", 0),
        ("203.0.113.1", 0),
    ] {
        assert_eq!(admitted(&server, "/", ("x-forwarded-for", address)).await, expected, "{address}");
    }
}

/// An address that anyone may write is none of those that it has in it.
#[tokio::test]
async fn an_embedded_address_has_no_exception_and_no_trust() {
    let rule = Rule::new("r").tier(Quota::per_hour(1)).tenant_unlimited("10.0.0.0/8");
    let proxies = TrustedProxies::cidrs(["127.0.0.1", "203.0.113.1"]).unwrap();
    let layer = RateLimitLayer::new(limiter(Policy::new().rule(rule)).0).tenant(tenant::client_ip(proxies));
    let server = limited(layer).await;
    for (chain, expected) in [("64:ff9b::10.0.0.1", 1), ("2002:a00:1::1", 0), ("10.0.0.1, 2002:cb00:7101::1", 1)] {
        assert_eq!(admitted(&server, "/", ("x-forwarded-for", chain)).await, expected, "{chain}");
    }
}

#[test]
fn a_network_that_is_none_is_an_error_with_the_right_spelling() {
    for (name, right) in [
        ("10.0.0.1/8", "write `10.0.0.0/8`"),
        ("10.0.0.0/33", "0 to 32, such as `10.0.0.0/32`"),
        ("10.0.0/8", "such as `10.0.0.0/8`"),
        ("10.0.0.0/255.0.0.0", "0 to 32"),
        ("10.0.0.0/", "0 to 32"),
        ("2001:db8::/129", "0 to 128"),
        ("2001:db8::1/32", "write `2001:db8::/32`"),
    ] {
        let policy = Policy::new().rule(Rule::new("r").tier(Quota::per_minute(1)).tenant_unlimited(name));
        let error = RateLimiter::new(policy).unwrap_err();
        assert_eq!((error.rule(), error.key(), error.value()), (Some("r"), "tenants", Some(name)));
        assert!(error.to_string().contains(right), "{error}");
    }
}
