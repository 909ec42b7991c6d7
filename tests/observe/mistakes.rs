//! Mistakes in the set-up: each is reported once, with its code, and only where it
//! is one.

use std::{convert::Infallible, net::SocketAddr};

use axum::{Router, routing::get};
use http::{Request, Response};
use tokio::net::TcpListener;
use tower::{Layer as _, Service, ServiceExt, service_fn, util::MapRequestLayer};
use tower_ratelimit::{
    Descriptor, Dimension, MissingTenant, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead, Rule, Tenant,
    tenant::{self, PeerAddr, TrustedProxies},
};
use tracing::Level;

use super::events::Log;

fn codes(log: &Log) -> Vec<String> {
    log.take(Level::WARN).into_iter().filter_map(|mut event| event.remove("code")).collect()
}

fn limiter(policy: impl Into<Policy>) -> RateLimiter {
    RateLimiter::new(policy).unwrap()
}

fn inner() -> impl Service<Request<()>, Response = Response<()>, Error = Infallible, Future: Send> + Clone {
    service_fn(async |_: Request<()>| Ok(Response::new(())))
}

/// Sends a request with these headers twice, from a known address or none.
async fn send(layer: &RateLimitLayer, has_address: bool, headers: &[(&str, &str)]) -> u16 {
    let service = layer.layer(inner());
    let mut status = 0;
    for _ in 0..2 {
        let mut request = Request::get("/here").body(()).unwrap();
        if has_address {
            request.extensions_mut().insert(PeerAddr("192.0.2.7:50123".parse().unwrap()));
        }
        for (name, value) in headers {
            request.headers_mut().insert(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        status = service.clone().oneshot(request).await.unwrap().status().as_u16();
    }
    status
}

#[tokio::test]
async fn a_layer_without_mistakes_reports_none() {
    let (log, _guard) = Log::start();
    let plain = || RateLimitLayer::new(limiter(Quota::per_hour(100)));
    send(&plain(), true, &[]).await;
    send(&plain().tenant(tenant::header("x-api-key")), true, &[("x-api-key", "acme")]).await;
    let trusting = tenant::client_ip(TrustedProxies::cidrs(["192.0.2.7"]).unwrap());
    send(&plain().tenant(trusting), true, &[("x-forwarded-for", "192.0.2.9")]).await;
    let choosing = plain().tenant(tenant::header("x-api-key")).on_missing_tenant(MissingTenant::Allow);
    send(&choosing, false, &[]).await;
    // One counter for all: no tenant is needed.
    send(
        &RateLimitLayer::new(limiter(Policy::new().rule(Rule::new("all").per([]).tier(Quota::per_hour(9))))),
        false,
        &[],
    )
    .await;
    assert_eq!(codes(&log), Vec::<String>::new());
}

#[tokio::test]
async fn mistakes_of_a_layer_are_reported_once_with_their_code() {
    let named = Rule::new("r").tier(Quota::per_hour(100)).tenant_unlimited("secret-of-acme");
    let plain = || RateLimitLayer::new(limiter(Quota::per_hour(100)));
    let per_address = || Policy::new().rule(Rule::new("r").per([Dimension::key("ip")]).tier(Quota::per_hour(100)));
    let by_address = || RateLimitLayer::new(limiter(per_address()));
    let behind = |proxies| tenant::client_ip(TrustedProxies::cidrs([proxies]).unwrap());
    let cases = [
        ("RL001", plain().tenant(tenant::header("x-api-key")), true, &[][..]),
        ("RL002", plain(), true, &[("x-forwarded-for", "192.0.2.9")]),
        (
            "RL002",
            plain().tenant(tenant::header("x-api-key").or(tenant::peer_ip())),
            true,
            &[("forwarded", "for=1.2.3.4")],
        ),
        ("RL003", plain(), false, &[]),
        ("RL003", plain().tenant(tenant::header("x-api-key").or(tenant::peer_ip())), false, &[]),
        ("RL007", RateLimitLayer::new(limiter(Policy::new().rule(named))), true, &[("x-tenant", "secret-of-acme")]),
        ("RL008", by_address().key("addr", tenant::peer_ip()), true, &[]),
        ("RL009", plain().rule("defualt"), true, &[]),
        ("RL011", plain().tenant(behind("10.0.0.0/8")), true, &[("x-forwarded-for", "198.51.100.9")]),
        ("RL011", plain().tenant(behind("192.0.2.7")), true, &[("x-forwarded-for", "10.1.2.3")]),
        ("RL011", plain().tenant(behind("192.0.2.0/24")), true, &[("x-forwarded-for", "192.0.2.9")]),
    ];
    let unstated = Rule::new("tokens").unit("tokens").tier(Quota::per_hour(100));
    let cases =
        cases.into_iter().chain([("RL014", RateLimitLayer::new(limiter(Policy::new().rule(unstated))), true, &[][..])]);
    for (code, layer, has_address, headers) in cases {
        let (log, _guard) = Log::start();
        assert_eq!(send(&layer, has_address, headers).await, 200, "{code}");
        send(&layer.clone(), has_address, headers).await;
        assert_eq!(codes(&log), [code]);
    }
}

#[tokio::test]
async fn a_key_or_a_rule_that_does_not_exist_rejects_requests_of_a_strict_layer() {
    let (log, _guard) = Log::start();
    let login = || Rule::new("login").path("/login").per([Dimension::key("ip")]).tier(Quota::per_hour(100));
    let layer = |rule: Rule| RateLimitLayer::new(limiter(Policy::new().rule(rule))).strict(true);
    let unknown_key = layer(login().path("/here"));
    assert_eq!(send(&unknown_key, true, &[]).await, 500);
    assert_eq!(codes(&log), ["RL008"]);
    assert_eq!(send(&unknown_key.key("ip", tenant::peer_ip()), true, &[]).await, 200);
    let unknown_rule = layer(login()).rule("logon");
    assert_eq!(codes(&log), Vec::<String>::new(), "a watch may still bring the rule");
    assert_eq!(send(&unknown_rule, true, &[]).await, 500);
    assert_eq!(codes(&log), ["RL009"]);
    assert_eq!(send(&layer(login().enabled(false)).rule("login"), true, &[]).await, 200);
    // It enforces nothing, counts callers apart all the same, or was told to admit them.
    assert_eq!(send(&layer(login().path("/here").shadow(true)), true, &[]).await, 200);
    let by_both = || login().path("/here").per([Dimension::Tenant, Dimension::key("ip")]);
    assert_eq!(send(&layer(by_both().on_missing_key(MissingTenant::Anonymous)), true, &[]).await, 200);
    assert_eq!(codes(&log), Vec::<String>::new());
    assert_eq!(send(&layer(by_both()), true, &[]).await, 500, "it does not apply");
    assert_eq!(codes(&log), ["RL008"]);
    let admits = layer(login().path("/here")).on_missing_tenant(MissingTenant::Allow);
    assert_eq!(send(&admits, true, &[]).await, 200);
    // The layer sees no request of that rule, or exempts it.
    assert_eq!(send(&layer(login()), true, &[]).await, 200);
    assert_eq!(send(&layer(login().path("/here")).skip(|_| true), true, &[]).await, 200);
    assert_eq!(codes(&log), Vec::<String>::new());
}

/// The middleware that finds the user runs inside of the layer instead of outside.
#[tokio::test]
async fn a_key_that_no_request_has_is_reported() {
    let find_user = || {
        MapRequestLayer::new(|mut request: Request<axum::body::Body>| {
            request.extensions_mut().insert(Tenant::new("ada"));
            request
        })
    };
    let rule = || Rule::new("login").per([Dimension::key("user")]).tier(Quota::per_hour(1));
    let chosen = || rule().on_missing_key(MissingTenant::Anonymous);
    let app = |rule: Rule, strict: bool, is_outside: bool| {
        let limiter = limiter(Policy::new().rule(rule));
        let layer = RateLimitLayer::new(limiter).key("user", tenant::extension::<Tenant>()).strict(strict);
        let layer = layer.tenant(tenant::from_fn(|_: &RequestHead<'_>| Some(Tenant::new("site"))));
        let app = Router::new().route("/", get(async || "hello"));
        if is_outside { app.layer(layer).layer(find_user()) } else { app.layer(find_user()).layer(layer) }
    };
    let (log, _guard) = Log::start();
    for (rule, strict, is_outside, first, statuses) in [
        (rule(), false, false, Some(20), [200, 200]),
        (rule(), true, false, Some(1), [500, 500]),
        (rule(), true, true, None, [200, 429]),
        // Somebody knows that requests may lack it.
        (chosen(), true, false, Some(20), [200, 429]),
    ] {
        let address = serve(app(rule, strict, is_outside)).await;
        let mut seen = Vec::new();
        for number in 1..=40 {
            let status = status_of(address).await;
            if number <= 2 {
                assert_eq!(status, statuses[number - 1].to_string(), "{strict}, {is_outside}");
            }
            seen.extend(codes(&log).into_iter().map(|code| (code, number)));
        }
        let expected: Vec<_> = first.map(|number| ("RL012".to_owned(), number)).into_iter().collect();
        assert_eq!(seen, expected, "{strict}, {is_outside}");
    }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

/// The status of a response over a connection of its own.
async fn status_of(address: SocketAddr) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut stream, mut reply) = (tokio::net::TcpStream::connect(address).await.unwrap(), String::new());
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    stream.read_to_string(&mut reply).await.unwrap();
    reply.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_request_that_passes_a_limiter_twice_is_reported() {
    let (log, _guard) = Log::start();
    let rules = ["a", "b"].map(|id| Rule::new(id).tier(Quota::per_hour(100)));
    let one = RateLimitLayer::new(limiter(rules.into_iter().fold(Policy::new(), Policy::rule)));
    let other = RateLimitLayer::new(limiter(Quota::per_hour(100)));
    let request = || Request::get("/").extension(PeerAddr("192.0.2.7:1".parse().unwrap())).body(()).unwrap();
    one.layer(other.layer(inner())).oneshot(request()).await.unwrap();
    assert_eq!(codes(&log), Vec::<String>::new(), "two limiters");
    let routed = |rule: &'static str| one.clone().rule(rule);
    one.layer(routed("a").layer(routed("b").layer(inner()))).oneshot(request()).await.unwrap();
    assert_eq!(codes(&log), Vec::<String>::new(), "limits beside routes");
    for _ in 0..2 {
        one.clone().layer(one.layer(inner())).oneshot(request()).await.unwrap();
    }
    assert_eq!(codes(&log), ["RL004"]);
    let strict = one.clone().strict(true);
    assert_eq!(one.layer(strict.layer(inner())).oneshot(request()).await.unwrap().status(), 500);
}

/// The quick start, served without connect info: it says at once why it cannot
/// limit by address, and fails at once where it is strict.
#[tokio::test]
async fn a_server_without_connect_info_says_so_at_once() {
    let (log, _guard) = Log::start();
    for (strict, status) in [(false, "200"), (true, "500")] {
        let layer = RateLimitLayer::new(limiter(Quota::per_minute(5))).strict(strict);
        let address = serve(Router::new().route("/", get(async || "hello")).layer(layer)).await;
        assert_eq!(status_of(address).await, status);
        assert_eq!(codes(&log), ["RL003"]);
    }
}

#[tokio::test]
async fn rules_and_tenants_that_never_occur_are_reported_after_10000_requests() {
    let (log, _guard) = Log::start();
    let policy = || {
        Policy::new()
            .rule(
                Rule::new("used")
                    .path("/used")
                    .tier(Quota::per_hour(100_000))
                    .tenant_unlimited("internal")
                    .tenant_unlimited("gone"),
            )
            .rule(Rule::new("misspelled").path("/usde").tier(Quota::per_hour(1)))
            .rule(Rule::new("rest").fallback(true).tier(Quota::per_hour(1)))
            .rule(Rule::new("off").path("/off").tier(Quota::per_hour(1)).enabled(false))
    };
    let limiter = limiter(policy());
    let used = Descriptor::new("/used").tenant("acme");
    limiter.check(&Descriptor::new("/used").tenant("internal")).await;
    for _ in 0..9_998 {
        limiter.check(&used).await;
    }
    assert_eq!(codes(&log), Vec::<String>::new());
    limiter.check(&used).await;
    let reported: Vec<_> =
        log.take(Level::WARN).into_iter().map(|event| (event["code"].clone(), event["detail"].clone())).collect();
    assert_eq!(reported, [("RL005".into(), "rule `misspelled`".into()), ("RL006".into(), String::from("rule `used`"))]);
    for _ in 0..10_000 {
        limiter.check(&used).await;
    }
    assert_eq!(codes(&log), Vec::<String>::new(), "once");
    // Another policy is looked at again.
    limiter.set_policy(policy()).unwrap();
    for _ in 0..10_000 {
        limiter.try_check(&used).unwrap();
    }
    assert_eq!(codes(&log), ["RL005", "RL006"]);
}

/// As in a policy that many services share.
#[tokio::test]
async fn hundreds_of_rules_that_never_occur_are_one_report() {
    let (log, _guard) = Log::start();
    let rule = |number: usize| Rule::new(format!("r{number:03}")).path(format!("/{number}")).tier(Quota::per_hour(1));
    let limiter = limiter((0..300).map(rule).fold(Policy::new(), Policy::rule));
    for _ in 0..10_000 {
        limiter.try_check(&Descriptor::new("/other")).unwrap();
    }
    let details: Vec<_> = log.take(Level::WARN).into_iter().map(|event| event["detail"].clone()).collect();
    assert_eq!(details, ["rules `r000`, `r001`, `r002`, `r003`, `r004`, `r005`, `r006`, `r007` and 292 more"],);
}

#[tokio::test]
async fn plans_that_never_occur_are_reported_after_10000_requests() {
    let (log, _guard) = Log::start();
    let quota = || Quota::per_hour(100_000);
    let planned = |id: &str| Rule::new(id).tier(quota()).plan("pro", [quota()]).plan("free", [quota()]);
    let limiter = limiter(Policy::new().rule(planned("api")).rule(planned("search").tenant_unlimited("gone")));
    let with_plan = |plan| Descriptor::new("/").tenant("acme").plan(plan);
    limiter.check(&with_plan("free").tenant("gone")).await;
    for _ in 0..10_000 {
        limiter.check(&with_plan("Pro")).await;
    }
    assert_eq!(codes(&log), Vec::<String>::new(), "one plan of each rule occurred");
    let policy = Policy::clone(&limiter.policy());
    limiter.set_policy(policy).unwrap();
    for _ in 0..10_000 {
        limiter.check(&with_plan("Pro")).await;
    }
    let reported: Vec<_> =
        log.take(Level::WARN).into_iter().map(|event| (event["code"].clone(), event["detail"].clone())).collect();
    assert_eq!(reported, [("RL006".into(), String::from("rules `api`, `search`"))], "each rule once");
}

#[tokio::test]
async fn unlimited_tenants_occur_in_paths_in_keys_and_in_networks() {
    let (log, _guard) = Log::start();
    let policy = || {
        let by_org = Rule::new("orgs").path("/{org}/products").tenant_from_path("org").tier(Quota::per_hour(100_000));
        let by_device = Rule::new("devices").path("/devices").per([Dimension::key("device")]);
        let by_device = by_device.tier(Quota::per_hour(100_000)).tenant_unlimited("printer");
        Policy::new().rule(by_org.tenant_unlimited("internal").tenant_unlimited("10.0.0.0/8")).rule(by_device)
    };
    let limiter = limiter(policy());
    let address = |address: [u8; 4]| std::net::IpAddr::from(address);
    let named = Descriptor::new("/acme/products").tenant("internal");
    limiter.check(&Descriptor::new("/internal/products").tenant("acme")).await;
    limiter.check(&Descriptor::new("/acme/products").tenant(address([10, 1, 2, 3]))).await;
    limiter.check(&Descriptor::new("/devices").key("device", "printer")).await;
    for _ in 0..10_000 {
        limiter.check(&named).await;
    }
    assert_eq!(codes(&log), Vec::<String>::new());
    limiter
        .set_policy(policy().rule(Rule::new("other").tier(Quota::per_hour(100_000)).tenant_unlimited("192.0.2.0/24")))
        .unwrap();
    limiter.check(&Descriptor::new("/internal/products").tenant("acme")).await;
    limiter.check(&Descriptor::new("/acme/products").tenant(address([10, 1, 2, 3]))).await;
    limiter.check(&Descriptor::new("/devices").key("device", "printer")).await;
    for _ in 0..9_997 {
        limiter.check(&named).await;
    }
    assert_eq!(codes(&log), ["RL006"]);
}

/// A policy is looked at as soon as it is in force. The report never names a tenant.
#[test]
fn a_policy_that_can_never_act_is_reported_when_it_comes_into_force() {
    let (log, _guard) = Log::start();
    let details = || {
        let events = log.take(Level::WARN).into_iter();
        events.map(|event| (event["code"].clone(), event["detail"].clone())).collect::<Vec<_>>()
    };
    let costly = || Rule::new("export").cost(50).tier(Quota::per_second(100));
    let limiter = limiter(Policy::new().rule(costly()));
    assert_eq!(details(), []);
    limiter.set_policy(Policy::new().rule(costly().tenant("acme", [Quota::per_second(10)]))).unwrap();
    let reason = "rejects every request that costs anything: each costs at least 50, and the tier holds at most 10";
    assert_eq!(details(), [("RL010".into(), format!("rule `export`: tenants: {reason}"))]);
    let invalid = Rule::new("a").cost(2).tier(Quota::per_second(1)).tier(Quota::per_minute(1).burst(0));
    assert!(limiter.set_policy(Policy::new().rule(invalid)).is_err());
    assert_eq!(details(), [], "it is not in force");
    let policy = Policy::new().rule(Rule::new("a").cost(2).tier(Quota::per_second(1)).tier(Quota::per_minute(1)));
    limiter.set_policy(policy).unwrap();
    let reason = "rejects every request that costs anything: each costs at least 2, and the tier holds at most 1";
    assert_eq!(details(), [("RL010".into(), format!("rule `a`: tiers[0]: {reason}, and 1 more"))]);
}
