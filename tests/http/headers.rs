//! Rate limit headers of responses.

use std::time::Duration;

use http::{Method, StatusCode};
use tower::Layer;
use tower_ratelimit::{Algorithm, Headers, Policy, Quota, RateLimitLayer, Rule};

use super::{
    common::{limiter, params, serve},
    hello, limited,
};

#[tokio::test]
async fn a_response_reports_limit_remaining_and_reset() {
    let (limiter, clock) = limiter(Quota::per_minute(6));
    let server = limited(RateLimitLayer::new(limiter).headers(Headers::ALL)).await;

    let first = server.get("/").await;
    assert_eq!((first.status, &*first.body), (StatusCode::OK, &b"hello"[..]));
    assert_eq!(first.trio(), [6, 5, 10]);
    assert_eq!(first.policies(), [("default".into(), params([("q", 6), ("w", 60)]))]);
    let [(name, status_of)] = &first.statuses()[..] else { panic!("{first:?}") };
    assert_eq!((&**name, status_of["r"]), ("default", 5));
    assert!(status_of["t"] >= 1, "{status_of:?}");
    assert_eq!(first.field("retry-after"), "");

    assert_eq!(server.get("/").await.trio(), [6, 4, 20]);
    clock.advance(Duration::from_secs(10));
    assert_eq!(server.get("/").await.trio(), [6, 4, 20]);
}

/// So a client that subtracts one from the other knows what it has used. The policy field
/// has the quota.
#[tokio::test]
async fn the_limit_is_what_remaining_counts_down_from() {
    let (limiter, _) = limiter(Quota::per_minute(100).burst(20));
    let server = limited(RateLimitLayer::new(limiter).headers(Headers::ALL)).await;
    let first = server.get("/").await;
    assert_eq!(first.trio()[..2], [20, 19]);
    assert_eq!(first.policies(), [("default".into(), params([("q", 100), ("w", 60)]))]);
}

#[tokio::test]
async fn times_are_whole_seconds_rounded_up() {
    let (limiter, clock) = limiter(Quota::new(5, Duration::from_secs(10)).algorithm(Algorithm::FixedWindow));
    clock.advance(Duration::from_millis(7_999));
    let server = limited(RateLimitLayer::new(limiter).headers(Headers::ALL)).await;
    assert_eq!(server.get("/").await.trio(), [5, 4, 3]);
    clock.advance(Duration::from_millis(2_000));
    assert_eq!(server.get("/").await.trio(), [5, 3, 1]);
}

#[tokio::test]
async fn mistake_8_each_policy_has_its_own_name() {
    let policy = Policy::new()
        .rule(Rule::new("wide").tier(Quota::per_hour(1_000)))
        .rule(Rule::new("tight").tier(Quota::per_second(2)).tier(Quota::per_minute(30)))
        .rule(Rule::new("blink").tier(Quota::new(7, Duration::from_millis(500))));
    let (limiter, _) = limiter(policy);
    let reply = limited(RateLimitLayer::new(limiter).headers(Headers::ALL)).await.get("/").await;

    let expected = [
        ("wide".to_owned(), params([("q", 1_000), ("w", 3_600)])),
        ("tight-1s".to_owned(), params([("q", 2), ("w", 1)])),
        ("tight-1m".to_owned(), params([("q", 30), ("w", 60)])),
        // `w` cannot express half a second; 0 would be wrong.
        ("blink".to_owned(), params([("q", 7)])),
    ];
    assert_eq!(reply.policies(), expected);
    let left: Vec<_> = reply.statuses().into_iter().map(|(name, status_of)| (name, status_of["r"])).collect();
    assert_eq!(left, [("wide", 999), ("tight-1s", 1), ("tight-1m", 29), ("blink", 6)].map(|(n, r)| (n.to_owned(), r)));
    assert_eq!(reply.trio(), [2, 1, 1], "the binding tier's");
}

#[tokio::test]
async fn nested_limiters_both_report() {
    for (inner, outer, trio) in [(5, 3, [3, 2]), (3, 5, [3, 2]), (4, 4, [4, 3])] {
        let named = |id, limit| limiter(Policy::new().rule(Rule::new(id).tier(Quota::per_second(limit)))).0;
        let stack = RateLimitLayer::new(named("inner", inner)).headers(Headers::ALL).layer(hello());
        let server = serve(RateLimitLayer::new(named("outer", outer)).headers(Headers::ALL).layer(stack)).await;

        let reply = server.get("/").await;
        assert_eq!(reply.trio()[..2], trio);
        let names = |items: Vec<(String, _)>| items.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(reply.policies()), ["inner", "outer"]);
        assert_eq!(names(reply.statuses()), ["inner", "outer"]);
    }
}

#[tokio::test]
async fn the_families_are_chosen_on_the_layer() {
    const X: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    const IETF: [&str; 2] = ["ratelimit-policy", "ratelimit"];
    for (headers, x, ietf) in [
        (Headers::default(), true, false),
        (Headers::ALL, true, true),
        (Headers::NONE, false, false),
        (Headers::X_RATELIMIT, true, false),
        (Headers::IETF, false, true),
    ] {
        let (limiter, _) = limiter(Quota::per_second(1));
        let server = limited(RateLimitLayer::new(limiter).headers(headers)).await;
        for (status, retry_after) in [(StatusCode::OK, ""), (StatusCode::TOO_MANY_REQUESTS, "1")] {
            let reply = server.get("/").await;
            assert_eq!(reply.status, status);
            assert!(X.iter().all(|name| reply.headers.contains_key(*name) == x), "{headers:?}: {reply:?}");
            assert!(IETF.iter().all(|name| reply.headers.contains_key(*name) == ietf), "{headers:?}: {reply:?}");
            assert_eq!(reply.field("retry-after"), retry_after);
        }
    }
}

#[tokio::test]
async fn draft_7_is_read_by_older_clients() {
    let (limiter, _) = limiter(Quota::per_minute(5));
    let server = limited(RateLimitLayer::new(limiter).headers(Headers::IETF_DRAFT_7)).await;
    let reply = server.get("/").await;
    assert_eq!(reply.field("ratelimit"), "limit=5, remaining=4, reset=12");
    assert!(!reply.headers.contains_key("ratelimit-policy"));
}

/// nginx answers 502 if an upstream's headers are larger than its buffer.
#[tokio::test]
async fn a_hundred_rules_do_not_exceed_the_bound_of_headers() {
    let rules = (0..100).map(|n| Rule::new(format!("{n:0>128}")).tier(Quota::per_minute(1_000 - n)));
    let (limiter, _) = limiter(rules.fold(Policy::new(), Policy::rule));
    let server = limited(RateLimitLayer::new(limiter).headers(Headers::ALL)).await;
    let reply = server.get("/").await;
    let ours = reply.headers.iter().filter(|(name, _)| name.as_str().contains("ratelimit"));
    let bytes: usize = ours.map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    assert!(bytes <= 2_048, "{bytes}");
    let binding = format!("{:0>128}", 99);
    let named = |items: &[(String, _)]| items.len() == 1 && items[0].0 == binding;
    assert!(named(&reply.statuses()) && named(&reply.policies()), "{reply:?}");
    assert_eq!(reply.trio()[..2], [901, 900]);
}

#[tokio::test]
async fn a_request_that_no_rule_matches_is_not_stamped() {
    let rule = Rule::new("search").methods([Method::GET]).path("/search").tier(Quota::per_second(0));
    let (limiter, _) = limiter(Policy::new().rule(rule));
    let server = limited(RateLimitLayer::new(limiter)).await;
    let passes = server.get("/").await;
    assert_eq!(passes.status, StatusCode::OK);
    assert!(passes.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{passes:?}");
    assert_eq!(server.get("/search").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(server.call(Method::POST, "/search", &[]).await.status, StatusCode::OK);
}
