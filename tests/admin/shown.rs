//! What the page and its JSON show.

use std::time::Duration;

use serde_json::json;
use tower_ratelimit::{
    Dimension, Policy, Quota, RateLimiter, Rule, Tenant,
    admin::Admin,
    backend::Local,
    overload::{self, Overload},
    testing::ManualClock,
};

use super::{get, get_json, limiter, policy, search, serve_page};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_requests_of_each_rule() {
    let (limiter, _) = limiter(policy(2));
    let server = serve_page(Admin::new(limiter.clone())).await;
    for _ in 0..5 {
        limiter.check(&search("acme")).await;
    }
    let shown = get_json(server, "?format=json").await;
    assert_eq!(shown["requests"]["allowed"], 2);
    assert_eq!(shown["requests"]["rejected"], 3);
    let of_search = &shown["rules"][0];
    assert_eq!(of_search["rule"], "search");
    assert_eq!(of_search["tiers"], json!(["2 per 1d by token-bucket"]));
    assert_eq!((&of_search["requests"]["allowed"], &of_search["requests"]["rejected"]), (&json!(2), &json!(3)));
    let of_trial = &shown["rules"][1];
    assert_eq!(of_trial["kind"], "shadow");
    assert_eq!(of_trial["requests"]["shadow_allowed"], 1);
    assert_eq!(of_trial["requests"]["shadow_rejected"], 1);
    assert_eq!(shown["backend"]["name"], "Local");

    limiter.set_policy(policy(3)).unwrap();
    limiter.check(&search("acme")).await;
    let shown = get_json(server, "?format=json").await;
    assert_eq!(shown["rules"][0]["requests"]["allowed"], 3, "a reload keeps the counts");
    assert_eq!(shown["policy"]["version"], 1);

    let page = get(server, "").await;
    assert!(page.contains("<td>search<td>3 per 1d by token-bucket<td>3<td>0<td>3<"), "{page}");
}

#[tokio::test]
async fn why_a_request_is_rejected() {
    let (limiter, _) = limiter(policy(1));
    let server = serve_page(Admin::new(limiter.clone())).await;
    limiter.check(&search("a b")).await;
    let shown = get_json(server, "?format=json&tenant=a+b&path=%2Fsearch").await;
    assert_eq!(shown["explanation"]["allowed"], false);
    assert_eq!(shown["explanation"]["rules"][0]["tiers"][0]["remaining"], 0);
    let page = get(server, "?tenant=a+b&path=%2Fsearch").await;
    assert!(page.contains("counted by: tenant `a b`"), "{page}");
}

#[tokio::test]
async fn tenants_by_name_only_if_they_are_revealed() {
    let (limiter, clock) = limiter(policy(1));
    limiter.override_tiers(Tenant::new("sk-live-acme").tiers([Quota::per_day(9)]), 2 * MINUTE).unwrap();
    limiter.block("198.51.100.4".parse::<std::net::IpAddr>().unwrap(), MINUTE).unwrap();
    let hashed = serve_page(Admin::new(limiter.clone())).await;
    let revealed = serve_page(Admin::new(limiter).reveal(true)).await;
    for query in ["", "?format=json"] {
        let (hashed, revealed) = (get(hashed, query).await, get(revealed, query).await);
        for name in ["sk-live-acme", "198.51.100.4"] {
            assert!(!hashed.contains(name), "{hashed}");
            assert!(revealed.contains(&format!("{name}<")) || revealed.contains(&format!("{name}\"")), "{revealed}");
        }
        assert!(!hashed.contains("sk-l"), "not even a part");
    }
    clock.advance(MINUTE);
    let shown = get_json(revealed, "?format=json").await;
    let overrides = shown["overrides"].as_array().unwrap();
    assert_eq!(overrides.len(), 1, "the block has ended");
    assert_eq!(overrides[0]["tiers"], json!(["all rules by tenant: 9 per 1d by token-bucket"]));
    assert_eq!(overrides[0]["tiers_for_seconds"], 60);
}

/// Two are counted of each rule, so the third one displaces the second.
#[tokio::test]
async fn the_top_tenants() {
    let by_tenant = Rule::new("search").per([Dimension::Tenant]).tier(Quota::per_day(4));
    let builder = RateLimiter::builder().policy(Policy::new().rule(by_tenant)).clock(ManualClock::new());
    let limiter = builder.backend(Local::new()).top_tenants(2).build().unwrap();
    let hashed = serve_page(Admin::new(limiter.clone())).await;
    let revealed = serve_page(Admin::new(limiter.clone()).reveal(true)).await;
    assert_eq!(get_json(revealed, "?format=json").await["top_tenants"], json!([]));
    let hostile = "<script>alert(1)</script>\u{1b}[2J";
    for (tenant, requests) in [("sk-live-acme", 5), ("initech", 1), (hostile, 2)] {
        for _ in 0..requests {
            limiter.check(&search(tenant)).await;
        }
    }

    let shown = get_json(revealed, "?format=json").await;
    let tenant = |name: &str, [units, units_error, rejections]: [u64; 3], least_remaining: f64| {
        json!({
            "rule": "search", "tenant": name, "units": units, "units_error": units_error,
            "rejections": rejections, "rejections_error": 0, "least_remaining": least_remaining,
        })
    };
    let acme = tenant("sk-live-acme", [4, 0, 1], 0.0);
    let other = tenant("<script>alert(1)</script>\\u{1b}[2J", [3, 1, 0], 0.5);
    assert_eq!(shown["top_tenants"], json!([acme, other]));
    let page = get(revealed, "").await;
    let row = "<td>search<td>&lt;script&gt;alert(1)&lt;/script&gt;\\u{1b}[2J<td>3<td>1<td>0<td>0<td>50%";
    assert!(page.contains("<td>search<td>sk-live-acme<td>4<td>0<td>1<td>0<td>0%") && page.contains(row), "{page}");
    assert!(!page.contains("<script>alert"), "{page}");

    let shown = get_json(hashed, "?format=json").await;
    let fingerprint = shown["top_tenants"][0]["tenant"].as_str().unwrap();
    let page = get(hashed, "").await;
    assert!(page.contains(&format!("<td>search<td>{fingerprint}<td>4<td>0<td>1<td>0<td>0%")), "{page}");
    for response in [shown.to_string(), page] {
        assert!(!response.contains("sk-l") && !response.contains("alert"), "{response}");
    }
}

#[tokio::test]
async fn top_tenants_are_counted_where_they_are_asked_for() {
    let (limiter, _) = limiter(policy(1));
    limiter.check(&search("acme")).await;
    let server = serve_page(Admin::new(limiter)).await;
    assert!(get_json(server, "?format=json").await["top_tenants"].is_null());
    let page = get(server, "").await;
    assert!(page.contains("They are not counted: <code>builder().top_tenants(256)</code> asks for it."), "{page}");
}

#[tokio::test]
async fn signals_of_overload() {
    let signals = Overload::new().signal(overload::named("queue", || 7.5), 5.0);
    let overloaded = Policy::new().rule(Rule::new("all").tier(Quota::per_second(1))).overload(signals);
    let server = serve_page(Admin::new(RateLimiter::new(overloaded).unwrap())).await;
    let shown = get_json(server, "?format=json").await;
    assert_eq!(shown["overload"]["signals"][0], json!({ "name": "queue", "value": 7.5, "threshold": 5.0 }));
}

#[tokio::test]
async fn hostile_names_are_texts() {
    let (limiter, _) = limiter(policy(1));
    let hostile = format!("<script>alert(1)</script>\u{1b}[2J\u{9b}1m\u{202e}{}", "x".repeat(900));
    limiter.block(hostile, MINUTE).unwrap();
    let server = serve_page(Admin::new(limiter).reveal(true)).await;
    let long = "x".repeat(60_000);
    let query = format!("tenant=%3Cscript%3Ealert(2)%3C/script%3E%1B%5B2J%C2%9B%E2%80%AE{long}&path=/search");
    for query in [format!("?{query}"), format!("?format=json&{query}")] {
        let response = get(server, &query).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(!response.contains("<script>alert") || query.contains("json"), "{response}");
        let hides = |char: char| char.is_control() && !"\r\n".contains(char) || "\u{202e}".contains(char);
        assert!(!response.contains(hides), "{response}");
        assert!(response.len() < 16_000, "names are cut: {} bytes", response.len());
        assert!(response.contains("alert(1)") && response.contains("alert(2)"), "and shown");
    }
}

#[tokio::test]
async fn every_response_forbids_foreign_content() {
    let (limiter, _) = limiter(policy(1));
    let server = serve_page(Admin::new(limiter)).await;
    for response in [get(server, "").await, super::post(server, "", "{}").await] {
        for header in
            ["content-security-policy: default-src 'none'", "cache-control: no-store", "x-frame-options: DENY"]
        {
            assert!(response.contains(header), "{response}");
        }
    }
}

#[cfg(feature = "watch")]
#[tokio::test]
async fn why_the_last_reload_failed() {
    use tower_ratelimit::policy_source::FileSource;

    let (limiter, _) = limiter(policy(1));
    let file = std::env::temp_dir().join(format!("tower-ratelimit-admin-{}.yaml", std::process::id()));
    std::fs::write(&file, "rules: [{ id: broken }]").unwrap();
    let mut watch = limiter.watch(FileSource::new(&file)).unwrap();
    watch.wait_for(|status| status.error.is_some()).await.unwrap();
    let server = serve_page(Admin::new(limiter).watch(&watch)).await;
    let shown = get_json(server, "?format=json").await;
    assert_eq!(shown["sources"][0]["rejected"], 1);
    assert!(shown["sources"][0]["error"].as_str().unwrap().contains("broken"), "{shown}");
    assert!(get(server, "").await.contains("The last reload failed"));
    std::fs::remove_file(file).unwrap();
}
