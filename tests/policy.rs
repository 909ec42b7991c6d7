//! The policy file: what it means, and the errors of an invalid one.
#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used)]

#[path = "policy/any_input.rs"]
mod any_input;
#[path = "policy/malformed.rs"]
mod malformed;
#[path = "policy/schema.rs"]
mod schema;
#[path = "policy/warnings.rs"]
mod warnings;

use std::time::Duration;

use http::Method;
use tower_ratelimit::{
    AdaptiveRate, Algorithm, Consistency, Policy, Quota, RateLimiter, Rule,
    policy::{Dimension, FailureMode, Statuses, Unsettled},
};

const NATIVE: &str = r#"
rules:
  - id: get-product
    match: { methods: [GET], paths: ["/v1/organizations/{org}/product/{id}"] }
    tenant: "{org}"
    tiers:
      - { limit: 10, window: 1s }
      - { limit: 50, window: 10s, algorithm: fixed-window }
    max_wait: 250ms
    plans:   { pro: [{ limit: 100, window: 1s }] }
    tenants: { acme: [{ limit: 1000, window: 1s }], internal: unlimited }
    on_backend_failure: open
  - id: everything-else
    fallback: true
    tiers: [{ limit: 100, window: 1m, burst: 20 }]
"#;

const SLAS: &str = r"
slas:
  - id: get-product
    enabled: true
    match: { methods: ['GET'], pathPattern: /product/* }
    tiers: [{ period: 10, threshold: 1000 }]
";

fn native() -> Policy {
    let product = Rule::new("get-product")
        .methods([Method::GET])
        .path("/v1/organizations/{org}/product/{id}")
        .tenant_from_path("org")
        .tier(Quota::per_second(10))
        .tier(Quota::new(50, Duration::from_secs(10)).algorithm(Algorithm::FixedWindow))
        .max_wait(Duration::from_millis(250))
        .plan("pro", [Quota::per_second(100)])
        .tenant("acme", [Quota::per_second(1_000)])
        .tenant_unlimited("internal")
        .on_backend_failure(FailureMode::Open);
    let rest = Rule::new("everything-else").fallback(true).tier(Quota::per_minute(100).burst(20));
    Policy::new().rule(product).rule(rest)
}

fn sla(id: &str) -> Rule {
    Rule::new(id)
        .methods([Method::GET])
        .path("/product/*")
        .per([Dimension::Tenant, Dimension::Endpoint, Dimension::Method])
        .tier(Quota::new(1_000, Duration::from_secs(10)).algorithm(Algorithm::FixedWindow))
}

/// Every setting away from its default.
fn full() -> Policy {
    let everything = Rule::new("every \"thing\": # 100%")
        .methods([Method::POST, Method::from_bytes(b"PURGE").unwrap()])
        .path("/{tenant}/a")
        .path("/b/{tenant}")
        .tenant_from_path("tenant")
        .tier(Quota::new(u64::MAX, Duration::MAX).burst(1).algorithm(Algorithm::LeakyBucket))
        .tier(Quota::new(0, Duration::from_nanos(1)).algorithm(Algorithm::AnchoredWindow))
        .tier(Quota::new(65_536, Duration::from_millis(1_500)).algorithm(Algorithm::SlidingLog))
        .tier(Quota::per_day(7).algorithm(Algorithm::SlidingWindow))
        .tier(Quota::concurrent(u64::MAX))
        .per([Dimension::Method, Dimension::Tenant])
        .max_wait(Duration::from_micros(1))
        .cost(u64::MAX)
        .unit("tokens")
        .settle(true)
        .unsettled(Unsettled::Refund)
        .charge_on(Statuses::CLIENT_ERRORS.and([200, 599]))
        .refund_on([404])
        .plan("1", [Quota::per_hour(1)])
        .plan("true", [Quota::per_minute(1), Quota::per_second(1)])
        .tenant("007", [Quota::per_hour(0), Quota::concurrent(0)])
        .tenant_unlimited("null")
        .tenant_unlimited("")
        .fallback(true)
        .shadow(true)
        .enabled(false)
        .on_backend_failure(FailureMode::Local)
        .local_share(0.1);
    let paced = Rule::new("paced")
        .tier(Quota::per_second(9).algorithm(Algorithm::AnchoredWindow))
        .tier(Quota::per_second(5))
        .tier(Quota::per_month(5))
        .tier(Quota::per_day(5).algorithm(Algorithm::FixedWindow).offset(Duration::from_secs(55_800)))
        .tenant("slow", [Quota::concurrent(1)])
        .max_wait(Duration::from_secs(1))
        .smooth(true);
    let routed = Rule::new("routed").route("/{id}").per([]).fair(true).tier(Quota::per_second(1));
    let routed = routed.on_backend_failure(FailureMode::Closed).consistency(Consistency::Leased);
    let routed = routed.sync_interval(Duration::from_millis(250));
    let local = |id| Rule::new(id).tier(Quota::per_second(1)).on_backend_failure(FailureMode::Local);
    let found = Rule::new("found").tier(Quota::adaptive_concurrency(1..=500).start(20));
    let bounded = Rule::new("bounded").tier(Quota::adaptive_concurrency(3..=3)).tenant_unlimited("staff");
    let (third, whole) = (local("third").local_share(1.0 / 3.0), local("whole").local_share(1.0));
    Policy::new()
        .rule(everything)
        .rule(paced)
        .rule(routed)
        .rule(third)
        .rule(whole)
        .rule(found)
        .rule(bounded)
        .ignore_case(true)
}

#[test]
fn the_native_form_is_read() {
    assert_eq!(Policy::from_yaml(NATIVE), Ok(native()));
}

#[test]
fn the_slas_form_is_read() {
    assert_eq!(Policy::from_yaml(SLAS), Ok(Policy::new().rule(sla("get-product"))));
    let disabled = SLAS.replace("true", "false");
    assert_eq!(Policy::from_yaml(&disabled), Ok(Policy::new().rule(sla("get-product").enabled(false))));
}

#[test]
fn a_file_may_have_both_forms_and_native_rules_come_first() {
    let both = format!("{}\n{NATIVE}\nignore_case: true", SLAS.replace("get-product", "sla"));
    assert_eq!(Policy::from_yaml(&both), Ok(native().rule(sla("sla")).ignore_case(true)));
}

#[test]
fn json_is_read() {
    let json = r#"{ "ignore_case": true, "rules": [{
        "id": "a",
        "match": { "methods": ["GET"], "routes": ["/{id}"] },
        "tiers": [{ "limit": 3, "window": "1h 30m", "burst": 2 }],
        "per": []
    }] }"#;
    let tier = Quota::new(3, Duration::from_secs(5_400)).burst(2);
    let rule = Rule::new("a").methods([Method::GET]).route("/{id}").tier(tier).per([]);
    assert_eq!(serde_json::from_str::<Policy>(json).unwrap(), Policy::new().rule(rule).ignore_case(true));

    let error = serde_json::from_str::<Policy>(&json.replace('3', "-3")).unwrap_err().to_string();
    assert!(error.starts_with("rule `a`: tiers[0].limit: `-3`: must not be negative"), "{error}");
    // Duplicate keys are seen if the format allows them.
    let error = serde_json::from_str::<Policy>(&json.replace("\"per\"", "\"id\"")).unwrap_err().to_string();
    assert!(error.starts_with("rule `a`: id: `[]`: duplicate key"), "{error}");
}

#[test]
fn a_written_policy_is_read_back() {
    for policy in [Policy::new(), native(), Policy::new().rule(sla("a")), full()] {
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy, "{json}");
        let yaml = serde_saphyr::to_string(&policy).unwrap();
        assert_eq!(Policy::from_yaml(&yaml), Ok(policy), "{yaml}");
    }
}

#[test]
fn a_local_share_is_a_fraction_or_the_whole() {
    for (written, share) in [("0.25", 0.25), ("1", 1.0), ("1e-9", 1e-9)] {
        let yaml = format!(
            "rules: [{{ id: a, tiers: [{{ limit: 5, window: 1d }}], on_backend_failure: local, local_share: {written} }}]"
        );
        let rule = Rule::new("a").tier(Quota::per_day(5)).on_backend_failure(FailureMode::Local);
        assert_eq!(Policy::from_yaml(&yaml), Ok(Policy::new().rule(rule.local_share(share))), "{written}");
    }
}

#[test]
fn statuses_are_numbers_and_classes() {
    let yaml = "rules: [{ id: login, tiers: [{ limit: 5, window: 1d }], charge_on: [401, 5xx], refund_on: [503] }]";
    let rule = Rule::new("login").tier(Quota::per_day(5));
    let policy = Policy::new().rule(rule.charge_on(Statuses::SERVER_ERRORS.and(401)).refund_on([503]));
    assert_eq!(Policy::from_yaml(yaml), Ok(policy.clone()));
    let json = serde_json::to_string(&policy).unwrap();
    assert!(json.ends_with(r#""charge_on":["5xx",401],"refund_on":[503]}]}"#), "{json}");

    for (statuses, reason) in [
        (Statuses::from([200, 99]), "charge_on: `99`: must be an HTTP status between 100 and 599"),
        (Statuses::from([1_000]), "charge_on: `1000`: must be an HTTP status between 100 and 599"),
        (Statuses::NONE, "charge_on: `[]`: must name at least one status"),
    ] {
        let rule = Rule::new("login").tier(Quota::per_day(5)).charge_on(statuses);
        let error = tower_ratelimit::RateLimiter::new(Policy::new().rule(rule)).unwrap_err();
        assert!(error.to_string().starts_with(&format!("rule `login`: {reason}")), "{error}");
    }
}

#[test]
fn settings_at_their_default_are_not_written() {
    let policy = Policy::new().rule(Rule::new("a").tier(Quota::per_minute(3)));
    assert_eq!(
        serde_json::to_string(&policy).unwrap(),
        r#"{"rules":[{"id":"a","tiers":[{"limit":3,"window":"1m"}]}]}"#
    );
}

#[test]
fn a_quota_is_written_as_a_tier() {
    let quota = Quota::per_day(5).algorithm(Algorithm::AnchoredWindow);
    let json = r#"{"limit":5,"window":"1d","algorithm":"anchored-window"}"#;
    assert_eq!(serde_json::to_string(&quota).unwrap(), json);
    assert_eq!(serde_json::from_str::<Quota>(json).unwrap(), quota);
    assert_eq!(serde_json::to_string(&Quota::concurrent(3)).unwrap(), r#"{"concurrent":3}"#);
    assert_eq!(serde_json::from_str::<Quota>(r#"{"concurrent":3}"#).unwrap(), Quota::concurrent(3));
    assert_eq!(serde_json::from_str::<Quota>("{}").unwrap_err().to_string(), "missing field `limit`");
}

#[test]
fn tiers_can_be_shared_by_anchor() {
    let yaml = "rules:
      - id: a
        tiers: &shared [&tier { limit: 1, window: 1s }]
        plans: { pro: [{ <<: *tier, limit: 9 }] }
      - { id: b, tiers: *shared }";
    let first = Rule::new("a").tier(Quota::per_second(1)).plan("pro", [Quota::per_second(9)]);
    let second = Rule::new("b").tier(Quota::per_second(1));
    assert_eq!(Policy::from_yaml(yaml), Ok(Policy::new().rule(first).rule(second)));
}

#[test]
fn a_file_cannot_expand_without_bound() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let error = Policy::from_yaml(&bomb).unwrap_err().to_string();
    assert!(error.contains("alias replay limit"), "{error}");
    for deep in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000)] {
        Policy::from_yaml(&deep).unwrap_err();
    }
}

/// 36 KB of YAML, in which every plan has a tier for each of 928 steps.
#[test]
fn a_small_file_cannot_become_a_large_policy() {
    let plans: Vec<String> = (0..23).map(|plan| format!("p{plan}: [{{ limit: 1, window: 1s }}]")).collect();
    let rules = |count: usize| -> String {
        let rule = |id: usize| {
            let adapt = "floor: { limit: 1, window: 1s }, ceiling: { limit: 1000000, window: 1s }";
            format!("  - {{ id: r{id}, adaptive_rate: {{ {adapt} }}, plans: {{ {} }} }}\n", plans.join(", "))
        };
        format!("rules:\n{}", (0..count).map(rule).collect::<String>())
    };
    let yaml = rules(50);
    assert!(yaml.len() < 50_000, "{}", yaml.len());
    let error = Policy::from_yaml(&yaml).map(drop).unwrap_err();
    assert!(error.rule().is_some() && error.key() == "adaptive_rate", "{error}");
    let message = error.to_string();
    assert!(message.contains("at most 700000 tiers"), "{message}");
    Policy::from_yaml(&rules(5)).unwrap();

    // A segment of two bytes becomes a node.
    let deep =
        |id: usize| Rule::new(id.to_string()).path(format!("/{id}{}", "/a".repeat(250))).tier(Quota::per_hour(1));
    let policy = |count: usize| (0..count).map(deep).fold(Policy::new(), Policy::rule);
    let error = RateLimiter::new(policy(2_000)).map(drop).unwrap_err();
    assert_eq!(error.key(), "match", "{error}");
    RateLimiter::new(policy(100)).unwrap();
}

#[test]
fn an_exempt_rule_has_a_match_and_nothing_else() {
    let yaml = "rules: [{ id: health, match: { methods: [GET], paths: [/healthz] }, exempt: true }]";
    let rule = Rule::new("health").methods([Method::GET]).path("/healthz").exempt(true);
    let policy = Policy::from_yaml(yaml).unwrap();
    assert_eq!(policy, Policy::new().rule(rule.clone()));
    assert_eq!(Policy::from_yaml(&serde_json::to_string(&policy).unwrap()).unwrap(), policy);
    for (rule, key) in [
        (rule.clone().tier(Quota::per_hour(1)), "tiers"),
        (rule.clone().tenant_unlimited("acme"), "tenants"),
        (rule.clone().shadow(true), "shadow"),
        (rule.clone().fallback(true), "fallback"),
        (rule.clone().per([]), "per"),
        (rule.clone().cost(2), "exempt"),
        (rule.max_wait(Duration::ZERO), "max_wait"),
    ] {
        let error = RateLimiter::new(Policy::new().rule(rule)).unwrap_err();
        assert_eq!((error.rule(), error.key()), (Some("health"), key), "{error}");
    }
}

#[test]
fn paths_that_rules_share_count_once() {
    let path = |path: usize| format!("/{path}{}", "/a".repeat(250));
    let rule = |rule: usize| (0..16).map(path).fold(Rule::new(rule.to_string()).tier(Quota::per_hour(1)), Rule::path);
    RateLimiter::new((0..100).map(rule).fold(Policy::new(), Policy::rule)).unwrap();
}

#[test]
fn methods_that_http_does_not_define_and_long_ids_are_accepted() {
    let methods =
        ["PURGE", "PROPFIND", "TRACK", "READ", "SET", "LOCK"].map(|name| Method::from_bytes(name.as_bytes()).unwrap());
    let rule = |id: &str| Rule::new(id).methods(methods.clone()).path("/v1/a:verb/%3Aid").tier(Quota::per_hour(1));
    let ids = ["~".repeat(128), " 100% \"a\\".to_owned()];
    RateLimiter::new(Policy::new().rule(rule(&ids[0])).rule(rule(&ids[1]))).unwrap();

    let error = RateLimiter::new(Policy::new().rule(rule("a")).rule(rule(&"~".repeat(129)))).map(drop).unwrap_err();
    assert_eq!((error.rule(), error.key()), (Some("rules[1]"), "id"), "{error}");
}

/// The file that the examples use.
#[test]
fn the_example_is_valid() {
    let policy = Policy::from_yaml(include_str!("../examples/policy.yaml")).unwrap();
    let ids: Vec<&str> = policy.rules().iter().map(Rule::id).collect();
    assert_eq!(ids, ["get-product", "search", "login", "export-shadow", "everything-else"]);
    let tiers = [Quota::per_second(10), Quota::new(50, Duration::from_secs(10)).algorithm(Algorithm::FixedWindow)];
    assert_eq!(policy.rules()[0].tiers(), tiers);
    let login = Rule::new("login")
        .methods([Method::POST])
        .path("/login")
        .tier(Quota::new(5, Duration::from_secs(900)).algorithm(Algorithm::AnchoredWindow))
        .on_backend_failure(FailureMode::Closed);
    assert_eq!(policy.rules()[2], login);
}

#[test]
fn an_error_in_code_names_the_keys_of_the_file() {
    let policy = Policy::new().rule(Rule::new("login").tier(Quota::per_second(5).burst(0)));
    let error = Policy::from_yaml(&serde_saphyr::to_string(&policy).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "rule `login`: tiers[0].burst: `0`: must be at least 1");
}

#[test]
fn a_written_adaptive_rate_is_read_back() {
    let yaml = "rules:
      - id: upstream
        adaptive_rate: { floor: { limit: 1, window: 1s }, ceiling: { limit: 1000, window: 1s }, decrease: 0.8 }
        tenants: { internal: unlimited, acme: [{ limit: 10, window: 1m }] }
      - id: both
        tiers: [{ concurrent: 3 }]
        adaptive_rate:
          floor: { limit: 1, window: 1h }
          ceiling: { limit: 10, window: 1s }
          start: { limit: 5, window: 1m }
          increase: 0.01
    ";
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)).decrease(0.8);
    let upstream =
        Rule::new("upstream").adaptive_rate(adapt).tenant("acme", [Quota::per_minute(10)]).tenant_unlimited("internal");
    let adapt =
        AdaptiveRate::between(Quota::per_hour(1), Quota::per_second(10)).start(Quota::per_minute(5)).increase(0.01);
    let policy = Policy::new().rule(upstream).rule(Rule::new("both").tier(Quota::concurrent(3)).adaptive_rate(adapt));
    assert_eq!(Policy::from_yaml(yaml), Ok(policy.clone()));
    let written = serde_saphyr::to_string(&policy).unwrap();
    assert_eq!(Policy::from_yaml(&written), Ok(policy), "{written}");
    assert!(!written.contains("0.9") && !written.contains("0.001"), "defaults are left out: {written}");

    // Every step is a tier of each tenant with its own tiers.
    let mut rule =
        Rule::new("many").adaptive_rate(AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)));
    for tenant in 0..1_000 {
        rule = rule.tenant(tenant.to_string(), [Quota::per_second(5)]);
    }
    let error = RateLimiter::new(Policy::new().rule(rule)).unwrap_err();
    assert_eq!((error.rule(), error.key()), (Some("many"), "adaptive_rate"));
}

#[test]
fn a_concurrency_limit_has_neither_window_nor_burst() {
    for (quota, reason) in [
        (Quota::concurrent(4).burst(2), "tiers[0].burst: `2`: has no meaning for concurrency"),
        (Quota::concurrent(4).burst(0), "tiers[0].burst: `0`: must be at least 1"),
        (
            Quota::per_second(4).algorithm(Algorithm::Concurrency),
            "tiers[0].window: `1s`: has no meaning for concurrency: write `Quota::concurrent(4)`",
        ),
        // Every other algorithm needs a window.
        (Quota::concurrent(4).algorithm(Algorithm::TokenBucket), "tiers[0].window: `0s`: must be longer than zero"),
    ] {
        let policy = Policy::new().rule(Rule::new("a").tier(quota));
        let error = tower_ratelimit::RateLimiter::new(policy).unwrap_err();
        assert_eq!(error.to_string(), format!("rule `a`: {reason}"));
    }
    assert_eq!("concurrency".parse(), Ok(Algorithm::Concurrency));
}

#[tokio::test]
async fn every_tenant_may_have_its_own_limits() {
    let tenants = 70_000;
    let rule = (1..=tenants).fold(Rule::new("own").tier(Quota::per_hour(1)), |rule, limit| {
        rule.tenant(format!("tenant-{limit}"), [Quota::per_hour(limit)])
    });
    let limiter = tower_ratelimit::RateLimiter::new(Policy::new().rule(rule)).unwrap();
    for limit in [1, 2, 65_535, 65_536, 65_537, tenants] {
        let tenant = format!("tenant-{limit}");
        assert_eq!(limiter.check(&tower_ratelimit::Descriptor::new("/").tenant(tenant)).await.limit(), Some(limit));
    }
}

/// `defaults` stand in every rule that does not say otherwise, but in exempt ones.
#[test]
fn defaults_are_settings_of_the_rules_that_have_none() {
    let policy = Policy::from_yaml(
        "defaults: { on_backend_failure: closed, max_wait: 1s, plans: { staff: unlimited } }
rules:
  - { id: a, tiers: [{ limit: 1, window: 1s }] }
  - { id: b, max_wait: 2s, plans: {}, tiers: [{ limit: 1, window: 1s }] }
  - { id: health, exempt: true, match: { paths: [/healthz] } }",
    );
    let rule = |id, wait| {
        let rule = Rule::new(id).tier(Quota::per_second(1)).max_wait(Duration::from_secs(wait));
        rule.on_backend_failure(FailureMode::Closed)
    };
    let expected = Policy::new()
        .rule(rule("a", 1).plan_unlimited("staff"))
        .rule(rule("b", 2))
        .rule(Rule::new("health").path("/healthz").exempt(true));
    assert_eq!(policy, Ok(expected));

    for (defaults, error) in [
        ("[]", "defaults: `[]`: must be a map of a rule's settings"),
        ("{ id: a }", "defaults.id: `a`: each rule has its own"),
        ("{ max_wiat: 1s }", "defaults.max_wiat: `1s`: unknown key; did you mean `max_wait`?"),
        ("{ consistency: often }", "defaults.consistency: `often`: unknown name; one of `exact`, `leased`"),
    ] {
        let read = Policy::from_yaml(&format!("{{ defaults: {defaults}, rules: [] }}"));
        assert_eq!(read.unwrap_err().to_string(), error);
    }
}

#[test]
fn a_policy_says_how_many_instances_share_its_limits() {
    let policy = Policy::from_yaml("{ rules: [], instances: 3 }").unwrap();
    assert_eq!((policy.instance_count(), &policy), (Some(3), &Policy::new().instances(3)));
    let error = Policy::from_yaml("{ rules: [], instances: 0 }").unwrap_err();
    assert_eq!(error.to_string(), "instances: `0`: must be from 1 to 1048576");
}

#[test]
fn calendar_windows_have_one_form() {
    let tiers = "{ limit: 1000, window: month }, { limit: 7, window: 1w, algorithm: fixed-window, offset: 9h }";
    let read = Policy::from_yaml(&format!("rules: [{{ id: plan, tiers: [{tiers}] }}]")).unwrap();
    let week = Quota::new(7, Duration::from_secs(7 * 86_400)).algorithm(Algorithm::FixedWindow);
    let week = week.offset(Duration::from_secs(9 * 3_600));
    assert_eq!(read, Policy::new().rule(Rule::new("plan").tier(Quota::per_month(1_000)).tier(week)));
    let written = serde_json::to_string(&read).unwrap();
    assert!(written.contains(r#""window":"month""#), "{written}");
    assert_eq!(serde_json::from_str::<Policy>(&written).unwrap(), read);
}
