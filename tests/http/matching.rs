//! Rules that match by a header, and rules that state the status of their rejections.

use http::{HeaderMap, Method, StatusCode};
use tower_ratelimit::{Descriptor, Policy, Quota, RateLimitLayer, RateLimited, Rule, tenant};

use super::{
    common::{Caller, limiter},
    limited,
};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const TEAPOT: StatusCode = StatusCode::IM_A_TEAPOT;

fn one_a_minute(id: &str) -> Rule {
    Rule::new(id).per([]).tier(Quota::per_minute(1))
}

async fn post(server: &Caller, path: &str, headers: &[(&str, &str)]) -> StatusCode {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    server.call(Method::POST, path, &headers).await.status
}

#[tokio::test]
async fn a_rule_is_for_requests_with_one_of_the_values() {
    let calls = one_a_minute("calls").header("MCP-Method", ["tools/call", "prompts/get"]);
    let (limiter, clock) = limiter(Policy::new().rule(calls));
    let server = limited(RateLimitLayer::new(limiter)).await;
    let others: [&[(&str, &str)]; 5] = [
        &[],
        &[("mcp-method", "tools/list")],
        &[("mcp-method", "TOOLS/CALL")],
        &[("mcp-method", "tools/call, tools/list")],
        &[("x-mcp-method", "tools/call")],
    ];
    let own: [&[(&str, &str)]; 4] = [
        &[("mcp-method", "tools/call")],
        &[("mcp-method", "prompts/get")],
        &[("Mcp-Method", " tools/call ")],
        &[("mcp-method", "tools/list"), ("mcp-method", "tools/call")],
    ];
    for headers in own {
        assert_eq!(post(&server, "/mcp", headers).await, OK, "{headers:?}");
        assert_eq!(post(&server, "/mcp", headers).await, REJECTED, "{headers:?}");
        for headers in others {
            assert_eq!(post(&server, "/mcp", headers).await, OK, "{headers:?}");
        }
        clock.advance(std::time::Duration::from_secs(60));
    }
}

#[tokio::test]
async fn a_rule_of_several_headers_needs_them_all() {
    let rule = one_a_minute("beta-calls").header("mcp-method", ["tools/call"]).header("x-beta", ["1"]).path("/mcp");
    let fallback = one_a_minute("others").fallback(true).status(TEAPOT);
    let (limiter, _) = limiter(Policy::new().rule(rule).rule(fallback));
    let server = limited(RateLimitLayer::new(limiter)).await;
    let (call, beta) = (("mcp-method", "tools/call"), ("x-beta", "1"));
    assert_eq!(post(&server, "/mcp", &[call, beta]).await, OK);
    assert_eq!(post(&server, "/mcp", &[call, beta]).await, REJECTED);
    // Only the fallback applies.
    assert_eq!(post(&server, "/mcp", &[call]).await, OK);
    assert_eq!(post(&server, "/mcp", &[beta]).await, TEAPOT);
    assert_eq!(post(&server, "/other", &[call, beta]).await, TEAPOT);
    assert_eq!(post(&server, "/mcp", &[call, beta]).await, REJECTED);
}

#[tokio::test]
async fn a_descriptor_has_the_headers_that_it_is_given() {
    let (limiter, _) = limiter(Policy::new().rule(one_a_minute("calls").header("mcp-method", ["tools/call"])));
    let mut headers = HeaderMap::new();
    headers.insert("mcp-method", "tools/call".parse().unwrap());
    let call = Descriptor::new("/mcp");
    assert_eq!(limiter.check(&call).await.limit(), None);
    let reason = limiter.explain(&call).await.to_string();
    assert!(reason.contains("calls: does not match the headers: it is for `mcp-method`: tools/call"), "{reason}");
    let call = call.headers(&headers);
    assert_eq!(limiter.check(&call).await.limit(), Some(1));
    assert!(!limiter.check(&call).await.is_allowed());
    headers.insert("mcp-method", "tools/list".parse().unwrap());
    assert_eq!(limiter.check(&Descriptor::new("/mcp").headers(&headers)).await.limit(), None);
    // A rule that is named applies whatever it matches.
    assert!(!limiter.check(&Descriptor::new("/mcp").rule("calls")).await.is_allowed());
}

#[tokio::test]
async fn a_rule_states_the_status_of_its_rejections() {
    let own = Rule::new("own").path("/own").tier(Quota::per_minute(1)).status(StatusCode::SERVICE_UNAVAILABLE);
    let (limiter, _) =
        limiter(Policy::new().rule(own).rule(Rule::new("usual").path("/usual").tier(Quota::per_hour(1))));
    let server = limited(RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key"))).await;
    for path in ["/own", "/usual"] {
        assert_eq!(server.get(path).await.status, OK);
    }
    // In turns: no rejection has the status of the one before it.
    for _ in 0..2 {
        let (own, usual) = (server.get("/own").await, server.get("/usual").await);
        assert_eq!((own.status, usual.status), (StatusCode::SERVICE_UNAVAILABLE, REJECTED));
        assert_eq!((own.integer("retry-after"), usual.integer("retry-after")), (60, 3600));
        let (own, usual) = (own.json(), usual.json());
        assert_eq!((&own["status"], &usual["status"]), (&503.into(), &429.into()));
        // The problem is the same.
        assert_eq!((&own["type"], &own["title"]), (&usual["type"], &usual["title"]));
    }
    let grpc = server.call(Method::POST, "/own", &[("content-type", b"application/grpc")]).await;
    assert_eq!((grpc.status, grpc.integer("grpc-status")), (OK, 8));

    let rejected: RateLimited = limiter.check(&Descriptor::new("/own")).await.into_result().unwrap_err();
    assert_eq!(rejected.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(rejected.to_response().status(), StatusCode::SERVICE_UNAVAILABLE);
    let rejected: RateLimited = limiter.check(&Descriptor::new("/usual")).await.into_result().unwrap_err();
    assert_eq!(rejected.status(), REJECTED);
}

#[tokio::test]
async fn the_rule_that_rejects_states_the_status() {
    let rule = |id: &str, limit, status| Rule::new(id).tier(Quota::per_minute(limit)).status(status);
    let first = rule("first", 2, TEAPOT);
    let second = rule("second", 1, StatusCode::SERVICE_UNAVAILABLE);
    let full = Rule::new("full").path("/full").tier(Quota::concurrent(0)).status(StatusCode::FORBIDDEN);
    let (limiter, _) = limiter(Policy::new().rule(first).rule(second).rule(full));
    let caller = |path| Descriptor::new(path).tenant("acme");
    let status =
        async |descriptor: &Descriptor<'_>| Some(limiter.check(descriptor).await.into_result().err()?.status());
    assert_eq!(status(&caller("/")).await, None);
    assert_eq!(status(&caller("/")).await, Some(StatusCode::SERVICE_UNAVAILABLE), "`first` has a unit left");
    assert_eq!(status(&caller("/").cost(3)).await, Some(TEAPOT), "neither ever fits it");
    assert_eq!(status(&caller("/full").tenant("other")).await, Some(StatusCode::FORBIDDEN));
}

/// As the layer's hook sees it, which may make a response of it.
#[tokio::test]
async fn a_rule_in_shadow_mode_has_its_status() {
    let trial = one_a_minute("trial").shadow(true).status(TEAPOT);
    let (limiter, _) = limiter(Policy::new().rule(trial));
    let (seen, statuses) = std::sync::mpsc::channel();
    let seen = std::sync::Mutex::new(seen);
    let layer = RateLimitLayer::new(limiter).on_shadow_rejected(move |rejection| {
        seen.lock().unwrap().send((rejection.error().status(), rejection.to_response().status())).unwrap();
    });
    let server = limited(layer).await;
    for _ in 0..2 {
        assert_eq!(post(&server, "/", &[]).await, OK);
    }
    assert_eq!(statuses.try_iter().collect::<Vec<_>>(), [(TEAPOT, TEAPOT)]);
}
