//! Priorities, reserves and overload in policies: what is read, written, and wrong.

use tower_ratelimit::{ConfigError, Policy, Priority, Quota, RateLimiter, Rule, overload::Overload};

const FILE: &str = "
overload: { cpu: 85%, scheduling_delay: 20ms }
rules:
  - id: api
    match: { priority: [low, normal] }
    tiers: [{ limit: 10, window: 1s }]
    reserve: { critical: 20%, high: 12.5% }
    plans:
      free: { priority: low }
      pro: { priority: high, tiers: [{ limit: 100, window: 1s }] }
      internal: unlimited
    tenants:
      acme: { priority: critical, tiers: unlimited }
";

#[test]
fn a_file_says_what_code_says() {
    let rule = Rule::new("api")
        .priorities([Priority::Low, Priority::Normal])
        .tier(Quota::per_second(10))
        .reserve(Priority::Critical, 0.2)
        .reserve(Priority::High, 0.125)
        .plan_priority("free", Priority::Low)
        .plan("pro", [Quota::per_second(100)])
        .plan_priority("pro", Priority::High)
        .plan_unlimited("internal")
        .tenant_priority("acme", Priority::Critical)
        .tenant_unlimited("acme");
    let overload = Overload::new()
        .signal(tower_ratelimit::overload::cpu(), 0.85)
        .signal(tower_ratelimit::overload::scheduling_delay(), 0.02);
    let policy = Policy::from_yaml(FILE).unwrap();
    assert_eq!(policy, Policy::new().rule(rule).overload(overload));
    let written = serde_json::to_string(&policy).unwrap();
    assert!(written.contains(r#""reserve":{"high":"12.5%","critical":"20%"}"#), "{written}");
    assert!(written.contains(r#""overload":{"cpu":"85%","scheduling_delay":"20ms"}"#), "{written}");
    assert_eq!(serde_json::from_str::<Policy>(&written).unwrap(), policy, "{written}");
}

fn error(file: &str) -> String {
    Policy::from_yaml(file).map(|_| ()).unwrap_err().to_string()
}

fn of_rule(settings: &str) -> String {
    error(&format!("rules: [{{ id: a, tiers: [{{ limit: 9, window: 1s }}], {settings} }}]"))
}

#[test]
fn mistakes_name_the_rule_the_key_and_the_value() {
    let cases = [
        ("reserve: { critical: 100% }", "reserve.critical: `100%`: must be more than 0% and less than 100%"),
        ("reserve: { critical: 0% }", "reserve.critical: `0%`: must be more than 0% and less than 100%"),
        ("reserve: { critical: -5% }", "reserve.critical: `-5%`: must be more than 0% and less than 100%"),
        (
            "reserve: { critical: 60%, high: 40% }",
            "reserve: `100%`: leaves nothing to the lowest priority: all reserves together must be less than 100%",
        ),
        ("reserve: { low: 5% }", "reserve.low: `5%`: "),
        (
            "reserve: { critical: 20 }",
            "reserve.critical: `20`: expected a part in percent, such as `20%`, found a number",
        ),
        ("reserve: { critical: many }", "reserve.critical: `many`: must be a part in percent, such as `20%`"),
        ("match: { priority: [urgent] }", "match.priority[0]: `urgent`: "),
        ("plans: { free: {} }", "plans.free: "),
        ("plans: { free: { prio: low } }", "plans.free.prio: "),
    ];
    for (settings, expected) in cases {
        let found = of_rule(settings);
        assert!(found.starts_with(&format!("rule `a`: {expected}")), "{settings}: {found}");
    }
    let file = |overload: &str| error(&format!("overload: {overload}\nrules: []"));
    let cases = [
        ("{}", "overload: `{}`: must have at least one signal"),
        ("{ cpu: 120% }", "overload.cpu: `1.2`: must be at most 100%, which is 1"),
        ("{ cpu: 0% }", "overload.cpu: `0`: must be a number above 0"),
        ("{ cpus: 80% }", "overload.cpus: "),
        ("{ scheduling_delay: 0ms }", "overload.scheduling_delay: `0`: must be a number above 0"),
        ("{ scheduling_delay: 20 }", "overload.scheduling_delay: `20`: a duration needs a unit"),
    ];
    for (overload, expected) in cases {
        let found = file(overload);
        assert!(found.starts_with(expected), "{overload}: {found}");
    }
}

#[test]
fn mistakes_in_code_are_found_as_well() {
    let built =
        |policy: Policy| RateLimiter::new(policy).map(drop).map_err(|error: ConfigError| error.key().to_owned());
    let rule = |part| Policy::new().rule(Rule::new("a").tier(Quota::per_second(9)).reserve(Priority::High, part));
    for part in [f64::NAN, f64::INFINITY, -0.1, 0.0, 1.0] {
        assert_eq!(built(rule(part)), Err("reserve.high".into()), "{part}");
    }
    for threshold in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        let overload = Overload::new().signal(|| 0.0, threshold);
        assert_eq!(built(rule(0.5).overload(overload)), Err("overload.signal".into()), "{threshold}");
    }
    let of_low = Rule::new("a").tier(Quota::per_second(9)).reserve(Priority::Low, 0.1);
    assert_eq!(built(Policy::new().rule(of_low)), Err("reserve.low".into()));
    let exempt = Rule::new("a").path("/healthz").exempt(true).reserve(Priority::High, 0.5);
    assert_eq!(built(Policy::new().rule(exempt)), Err("reserve".into()));
    let quota = Quota::per_second;
    let adaptive = Rule::new("a").adaptive_rate(tower_ratelimit::AdaptiveRate::between(quota(1), quota(9)));
    assert_eq!(built(Policy::new().rule(adaptive.reserve(Priority::High, 0.1))), Err("reserve".into()));
    assert_eq!(built(rule(0.5)), Ok(()));
}

/// A part is rounded up, so a small limit may have nothing left.
#[test]
fn a_reserve_that_leaves_nothing_is_a_warning() {
    let warnings = |limit| {
        let rule = Rule::new("a").per([]).tier(Quota::per_second(limit)).reserve(Priority::High, 0.2);
        Policy::new().rule(rule).warnings().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(warnings(2), Vec::<String>::new());
    assert_eq!(warnings(0), Vec::<String>::new(), "turned off");
    let expected = "rule `a`: reserve: `1`: leaves nothing of a tier of `tiers` to the lowest priority";
    assert!(warnings(1)[0].starts_with(expected), "{:?}", warnings(1));
}
