//! Explaining: which rules apply and why, and nothing is charged for it.

use http::Method;
use tower_ratelimit::{Consistency, Dimension, MissingTenant, Tenant};

use super::*;

/// A rule for each reason.
fn policy() -> Policy {
    let tier = Quota::per_minute(60);
    Policy::new()
        .rule(Rule::new("health").path("/healthz").exempt(true))
        .rule(Rule::new("search").path("/v1/{index}").methods([Method::GET]).tier(tier).plan("pro", [tier.burst(9)]))
        .rule(Rule::new("login").path("/login").tier(tier))
        .rule(Rule::new("write").methods([Method::POST]).tier(tier))
        .rule(Rule::new("off").enabled(false).tier(tier))
        .rule(Rule::new("trial").shadow(true).per([Dimension::Tenant]).tier(tier))
        .rule(Rule::new("free").tier(tier).tenant_unlimited("internal").plan_unlimited("gold"))
        .rule(
            Rule::new("nets")
                .per([Dimension::key("ip")])
                .tier(tier)
                .tenant("10.0.0.0/8", [tier])
                .tenant("10.1.0.0/16", [tier]),
        )
        .rule(Rule::new("rest").fallback(true).tier(tier))
}

/// What is said of a rule.
fn of<'t>(text: &'t str, rule: &str) -> &'t str {
    let start = format!("\n{rule}: ");
    text.split(&start).nth(1).and_then(|text| text.lines().next()).unwrap_or_else(|| panic!("no `{rule}` in: {text}"))
}

#[tokio::test]
async fn each_rule_has_its_reason() {
    let (limiter, _) = on(Local::new(), policy());
    let ip = std::net::IpAddr::from([10, 1, 2, 3]);
    let search = Descriptor::new("/v1/books").method("GET").tenant("acme").plan("pro").key("ip", ip);
    let text = limiter.explain(&search).await.to_string();
    assert_eq!(text.lines().next(), Some("allowed"));
    for (rule, reason) in [
        ("health", "does not match the path: it is for /healthz"),
        ("search", "applies, by /v1/{index}"),
        ("login", "does not match the path: it is for /login"),
        ("write", "does not match the method: it is for POST"),
        ("off", "is disabled"),
        ("trial", "applies, in shadow mode: it rejects nothing"),
        ("free", "applies"),
        ("nets", "applies"),
        ("rest", "is a fallback, and other rules apply: `search`, `free`, `nets`"),
    ] {
        assert_eq!(of(&text, rule), reason, "{text}");
    }
    for line in [
        "    counted by: tenant `acme`, endpoint `/v1/{index}`, method `GET`",
        "    search: 60 per 1m by token-bucket with a burst of 9, from plan `pro`; 9 left",
        "    trial: 60 per 1m by token-bucket, from the rule",
        "    counted by: ip `10.1.2.3`",
        "    nets: 60 per 1m by token-bucket, from network `10.1.0.0/16`; 60 left",
    ] {
        assert!(text.lines().any(|own| own == line), "no `{line}` in: {text}");
    }
}

#[tokio::test]
async fn an_exempt_request_says_by_which_rule() {
    let (limiter, _) = on(Local::new(), policy());
    let explain = async |descriptor: Descriptor<'static>| limiter.explain(&descriptor).await.to_string();
    let text = explain(Descriptor::new("/healthz").tenant("acme")).await;
    assert_eq!(of(&text, "health"), "exempts the request: no rule charges it");
    assert_eq!(of(&text, "free"), "does not apply: rule `health` exempts the request");
    assert_eq!(of(&text, "login"), "does not match the path: it is for /login");
    let text = explain(Descriptor::new("//healthz").tenant("acme")).await;
    assert_eq!(of(&text, "health"), "exempts no other spelling of its paths than the one that the policy has");
    assert_eq!(of(&text, "free"), "applies");
    let text = explain(Descriptor::new("/").exempt()).await;
    assert_eq!(of(&text, "free"), "does not apply: the request is exempt");
    let text = explain(Descriptor::new("/").rule("login").tenant("acme")).await;
    assert_eq!(
        (of(&text, "login"), of(&text, "free")),
        ("applies", "is not the rule `login`, which the request names")
    );
}

#[tokio::test]
async fn who_is_unlimited_or_unknown_is_said() {
    let (limiter, _) = on(Local::new(), policy());
    let explain = async |descriptor: Descriptor<'static>| limiter.explain(&descriptor).await.to_string();
    assert_eq!(of(&explain(Descriptor::new("/").tenant("internal")).await, "free"), "does not limit tenant `internal`");
    assert_eq!(of(&explain(acme().plan("gold")).await, "free"), "does not limit plan `gold`");
    let own = explain(Descriptor::new("/").tenant(Tenant::new("acme").tiers([Quota::per_hour(7)]))).await;
    assert!(own.contains("    free: 7 per 1h by token-bucket, from the tenant itself; 7 left"), "{own}");
    let anonymous = Descriptor::new("/").key("ip", "a");
    let rejecting = explain(anonymous.clone().on_missing_tenant(MissingTenant::Reject)).await;
    assert!(rejecting.starts_with("rejected: MissingTenant\n"), "{rejecting}");
    assert_eq!(of(&rejecting, "free"), "rejects the request: it lacks a tenant or a key");
    let passing = explain(anonymous.clone().on_missing_tenant(MissingTenant::Allow)).await;
    assert_eq!(of(&passing, "free"), "does not limit requests that lack a tenant or a key");
    assert!(explain(anonymous).await.contains("counted by: tenant `anonymous`"));
    assert_eq!(of(&explain(acme()).await, "nets"), "does not apply: the request lacks a key of `ip`");
}

/// The rules that apply are those of the decision, and to explain charges nothing.
#[tokio::test]
async fn an_explanation_agrees_with_the_decision_and_leaves_no_trace() {
    let tier = |limit| Quota::per_minute(limit);
    let policy = Policy::new()
        .rule(Rule::new("a").path("/{x}").tier(tier(2)).consistency(Consistency::Leased))
        .rule(Rule::new("b").tier(tier(3)).tier(Quota::per_hour(9)).cost(2))
        .rule(Rule::new("c").path("/x").fallback(true).tier(tier(1)));
    let (limiter, _) = on(Local::new(), policy);
    for path in ["/", "/x", "/x/y"] {
        let request = Descriptor::new(path).tenant("acme");
        let before = limiter.stats();
        let explanation = limiter.explain(&request).await;
        assert_eq!(limiter.stats(), before, "{path}");
        let decision = limiter.check(&request).await;
        assert_eq!(explanation.decision().is_allowed(), decision.is_allowed(), "{path}");
        let text = explanation.to_string();
        for rule in ["a", "b", "c"] {
            let applies = of(&text, rule).starts_with("applies");
            assert_eq!(applies, decision.tiers().iter().any(|tier| tier.rule() == rule), "{path}: {text}");
        }
    }
    let rejected = limiter.explain(&acme()).await;
    let text = rejected.to_string();
    assert!(text.starts_with("rejected: QuotaExceeded, retry after "), "{text}");
    assert!(
        text.contains("    cost: 2\n    b-1m: 3 per 1m by token-bucket, from the rule; 1 left, reset in "),
        "{text}"
    );
}

/// `Display` names a tenant, `Debug` does not, and neither brings its control characters.
#[tokio::test]
async fn names_are_escaped() {
    let (limiter, _) = on(Local::new(), Quota::per_minute(1));
    let explanation = limiter.explain(&Descriptor::new("/").tenant("key-\u{1b}[31m-secret")).await;
    assert!(explanation.to_string().contains("tenant `key-\\u{1b}[31m-secret`"), "{explanation}");
    assert!(!format!("{explanation:?}").contains("secret"));
}

/// Without a reply there is nothing left to tell of.
#[tokio::test]
async fn a_backend_that_fails_leaves_out_what_is_left() {
    let backend = FaultyBackend::new(Local::new());
    backend.set(Fault::Error(BackendErrorKind::Unavailable));
    let (limiter, _) = on(backend, Quota::per_minute(5));
    let text = limiter.explain(&acme()).await.to_string();
    assert!(text.contains("    default: 5 per 1m by token-bucket, from the rule"), "{text}");
    assert!(!text.contains("left"), "{text}");
}

#[cfg(feature = "serde")]
#[tokio::test]
async fn it_is_serialized_under_names() {
    let (limiter, _) = on(Local::new(), policy());
    let request = Descriptor::new("/login").tenant("acme");
    let json = serde_json::to_value(limiter.explain(&request).await).unwrap();
    assert_eq!(json["allowed"], true);
    let login = json["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == "login").unwrap();
    assert_eq!((&login["counter"]["tenant"], &login["counter"]["endpoint"]), (&"acme".into(), &"/login".into()));
    assert_eq!((&login["tiers_from"], &login["tiers"][0]["remaining"]), (&"the rule".into(), &60.into()));
    let write = json["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == "write").unwrap();
    assert_eq!(
        (&write["applies"], &write["reason"]),
        (&false.into(), &"does not match the method: it is for POST".into())
    );
}
