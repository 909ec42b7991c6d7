//! What an operator may do, and what no caller may.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tower_ratelimit::{Policy, Quota, RateLimitedKind, Rule, admin::Admin};

use super::{act, exchange, get_json, limiter, policy, post, search, serve_page};

const BLOCK: &str = r#"{"action":"block","tenant":"acme","ttl":"15m"}"#;

#[tokio::test]
async fn a_tenant_is_blocked_and_unblocked() {
    let (limiter, clock) = limiter(policy(5));
    let server = serve_page(Admin::new(limiter.clone())).await;
    let response = act(server, BLOCK).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.contains("is blocked"), "{response}");
    let decision = limiter.check(&search("acme")).await;
    assert_eq!(decision.rejection(), Some(RateLimitedKind::Blocked));

    let response = act(server, r#"{"action":"lift","tenant":"acme"}"#).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(limiter.check(&search("acme")).await.is_allowed());

    act(server, BLOCK).await;
    clock.advance(Duration::from_secs(15 * 60));
    assert!(limiter.check(&search("acme")).await.is_allowed(), "its time is over");
}

#[tokio::test]
async fn a_tenant_gets_other_tiers() {
    let (limiter, _) = limiter(policy(5));
    let server = serve_page(Admin::new(limiter.clone())).await;
    let tiers = r#""tiers":[{"limit":9,"window":"1d"},{"limit":100,"window":"7d"}]"#;
    let response = act(server, &format!(r#"{{"action":"override","tenant":"acme",{tiers},"ttl":"1h"}}"#)).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert_eq!(limiter.check(&search("acme")).await.tiers().len(), 2);

    let of_rule = format!(r#"{{"action":"override","tenant":"globex","rule":"search",{tiers},"ttl":"1h"}}"#);
    act(server, &of_rule).await;
    assert_eq!(limiter.check(&search("globex")).await.limit(), Some(9));
}

#[tokio::test]
async fn counters_are_reset() {
    let (limiter, _) = limiter(policy(1));
    let server = serve_page(Admin::new(limiter.clone())).await;
    limiter.check(&search("acme")).await;
    assert!(!limiter.check(&search("acme")).await.is_allowed());
    let reset = r#"{"action":"reset","request":{"tenant":"acme","path":"/search"}}"#;
    let response = act(server, reset).await;
    assert!(response.contains("2 counters were reset"), "{response}");
    assert!(limiter.check(&search("acme")).await.is_allowed());
}

#[tokio::test]
async fn rules_by_header_are_explained_and_reset() {
    let calls = Rule::new("calls").header("mcp-method", ["tools/call"]).tier(Quota::per_day(1));
    let (limiter, _) = limiter(Policy::new().rule(calls));
    let server = serve_page(Admin::new(limiter.clone())).await;
    let headers =
        HeaderMap::from_iter([(HeaderName::from_static("mcp-method"), HeaderValue::from_static("tools/call"))]);
    let call = search("acme").headers(&headers);
    limiter.check(&call).await;
    assert!(!limiter.check(&call).await.is_allowed());
    let asked = "?format=json&tenant=acme&path=/search";
    assert_eq!(get_json(server, asked).await["explanation"]["allowed"], true);
    let shown = get_json(server, &format!("{asked}&header=MCP-Method:+tools/call")).await;
    assert_eq!(shown["explanation"]["allowed"], false, "{shown}");

    let reset = |headers: &str| {
        format!(r#"{{"action":"reset","request":{{"tenant":"acme","path":"/search","headers":{headers}}}}}"#)
    };
    assert!(act(server, &reset("{}")).await.contains("0 counters were reset"));
    assert!(act(server, &reset(r#"{"a b":"c"}"#)).await.starts_with("HTTP/1.1 400"));
    let response = act(server, &reset(r#"{"MCP-Method":"tools/call"}"#)).await;
    assert!(response.contains("1 counters were reset"), "{response}");
    assert!(limiter.check(&call).await.is_allowed());
}

/// The words of the request, and what its response begins with.
#[tokio::test]
async fn whoever_may_not_act_changes_nothing() {
    let (limiter, _) = limiter(policy(5));
    let server = serve_page(Admin::new(limiter.clone())).await;
    let acts = "x-tower-ratelimit: 1\r\n";
    for headers in [
        "",
        "content-type: text/plain\r\n",
        "x-tower-ratelimit: 1\r\nsec-fetch-site: cross-site\r\n",
        "x-tower-ratelimit: 1\r\nx-forwarded-for: 192.0.2.7\r\n",
    ] {
        let response = post(server, headers, BLOCK).await;
        assert!(response.starts_with("HTTP/1.1 403"), "{headers}: {response}");
    }
    let rebound = format!(
        "POST /admin HTTP/1.1\r\nhost: evil.example\r\n{acts}content-length: {}\r\nconnection: close\r\n\r\n{BLOCK}",
        BLOCK.len()
    );
    assert!(exchange(server, &rebound).await.starts_with("HTTP/1.1 403"));
    assert!(limiter.check(&search("acme")).await.is_allowed());
}

#[tokio::test]
async fn a_malformed_action_changes_nothing() {
    let (limiter, _) = limiter(policy(5));
    let server = serve_page(Admin::new(limiter.clone())).await;
    for body in [
        "",
        "null",
        r#"{"action":"drop"}"#,
        r#"{"action":"block","tenant":"","ttl":"15m"}"#,
        r#"{"action":"block","tenant":"acme"}"#,
        r#"{"action":"block","tenant":"acme","ttl":"soon"}"#,
        r#"{"action":"block","tenant":"acme","ttl":"15m","ruel":"search"}"#,
        r#"{"action":"override","tenant":"acme","tiers":[],"ttl":"1h"}"#,
        r#"{"action":"override","tenant":"acme","tiers":[{"limit":1}],"ttl":"1h"}"#,
        r#"{"action":"override","tenant":"acme","rule":"typo","tiers":[{"limit":1,"window":"1s"}],"ttl":"1h"}"#,
        r#"{"action":"lift","tenant":"acme"}"#,
    ] {
        let response = act(server, body).await;
        assert!(response.starts_with("HTTP/1.1 400") && response.contains(r#"{"error":""#), "{body}: {response}");
    }
    let long = format!(r#"{{"action":"block","tenant":"{}","ttl":"15m"}}"#, "x".repeat(1 << 20));
    assert!(act(server, &long).await.starts_with("HTTP/1.1 413"));
    assert!(limiter.check(&search("acme")).await.is_allowed());
    assert_eq!(limiter.check(&search("acme")).await.limit(), Some(5));
}
