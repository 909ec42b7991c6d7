//! What `Policy::warnings` finds in valid policies, and what it does not.

use tower_ratelimit::{Policy, Quota, Rule};

fn warnings(rules: &str) -> Vec<String> {
    let policy = Policy::from_yaml(&format!("rules: [{rules}]")).unwrap();
    policy.warnings().iter().map(ToString::to_string).collect()
}

const TIERS: &str = "per: [tenant], tiers: [{ limit: 10, window: 1s }]";

#[test]
fn the_example_policy_has_no_warnings() {
    let policy = Policy::from_yaml(include_str!("../../examples/policy.yaml")).unwrap();
    assert_eq!(policy.warnings(), []);
}

#[test]
fn a_cost_above_a_capacity_is_found_in_every_tier_set() {
    let rule = "{ id: a, cost: 5, tiers: [{ limit: 9, window: 1s, burst: 4 }, { limit: 5, window: 1m }], \
                plans: { free: [{ limit: 4, window: 1s, algorithm: fixed-window }] }, \
                tenants: { acme: [{ concurrent: 4 }], shut: [{ limit: 0, window: 1s }] } }";
    assert_eq!(
        warnings(rule),
        [
            "rule `a`: tiers[0]: `9`: rejects every request that costs anything: each costs at least 5, and the tier holds at most 4",
            "rule `a`: plans.free[0]: `4`: rejects every request that costs anything: each costs at least 5, and the tier holds at most 4",
            "rule `a`: tenants.acme[0]: `4`: rejects every request that costs anything: each costs at least 5, and the tier holds at most 4",
        ]
    );
    assert!(warnings(&rule.replace("cost: 5", "cost: 4")).is_empty());
}

#[test]
fn a_tier_that_another_one_makes_useless_is_found_once() {
    let with = |tiers: &str| warnings(&format!("{{ id: a, tiers: [{tiers}] }}"));
    let useless = "never rejects: another tier of its algorithm and window is as strict";
    assert_eq!(
        with("{ limit: 9, window: 1s }, { limit: 5, window: 1s }"),
        [format!("rule `a`: tiers[0]: `9`: {useless}")]
    );
    assert_eq!(
        with("{ limit: 5, window: 1s }, { limit: 5, window: 1s }"),
        [format!("rule `a`: tiers[1]: `5`: {useless}")]
    );
    for useful in [
        "{ limit: 9, window: 1s }, { limit: 5, window: 2s }",
        "{ limit: 9, window: 1s, burst: 2 }, { limit: 5, window: 1s }",
        "{ limit: 9, window: 1s, algorithm: fixed-window }, { limit: 5, window: 1s, algorithm: sliding-window }",
        "{ limit: 18446744073709551615, window: 1s }, { limit: 18446744073709551615, window: 2s }",
    ] {
        assert_eq!(with(useful), [""; 0], "{useful}");
    }
}

/// The warnings of a rule whose match is `below`, beside one whose match is `above`.
fn beside(above: &str, below: &str, settings: [&str; 2]) -> Vec<String> {
    let rule = |id, matched: &str, settings| format!("{{ id: {id}, match: {{ {matched} }}, {settings} }}");
    warnings(&[rule("a", above, settings[0]), rule("b", below, settings[1])].join(", "))
}

/// A match, and one that it covers.
const COVERED: [(&str, &str); 11] = [
    ("", "paths: [/x]"),
    ("", ""),
    ("paths: ['/{*rest}']", "routes: [/x]"),
    ("methods: [GET]", "methods: [HEAD, GET]"),
    ("paths: ['/x/{*rest}']", "paths: [/x, '/x/{id}/y']"),
    ("paths: ['/x/{id}']", "paths: [/x/y, '/x/*', '/x/file-{name}.txt']"),
    ("paths: ['/x/f{id}t']", "paths: ['/x/file-{name}.txt', /x/fit]"),
    ("paths: [/y, '/%78/']", "paths: [/x]"),
    ("routes: [/x, /y]", "routes: [/y]"),
    ("paths: [/x]", "paths: [/x], headers: { a: [b] }"),
    ("headers: { A: [b, c] }", "headers: { a: [c], d: [e] }"),
];

/// A match, and one that it does not cover.
const UNCOVERED: [(&str, &str); 12] = [
    ("paths: [/x]", ""),
    ("methods: [GET]", "methods: [GET, POST]"),
    ("methods: [GET]", ""),
    ("methods: [HEAD]", "methods: [GET]"),
    ("paths: ['/x/{*rest}']", "paths: ['/{id}/y']"),
    ("paths: ['/x/{id}']", "paths: ['/x/{*rest}']"),
    ("paths: ['/x/f{id}t']", "paths: [/x/ft]"),
    ("paths: [/X]", "paths: [/x]"),
    ("paths: [/x]", "routes: [/x]"),
    ("headers: { a: [b] }", ""),
    ("headers: { a: [b] }", "headers: { a: [b, c] }"),
    ("headers: { a: [b], c: [d] }", "headers: { a: [b] }"),
];

#[test]
fn a_fallback_that_another_rule_always_precedes_is_found() {
    let fallback = format!("fallback: true, {TIERS}");
    for (above, below) in COVERED {
        let expected = "rule `b`: fallback: `a`: never applies: another rule matches every request that it matches";
        assert_eq!(beside(above, below, [TIERS, &fallback]), [expected], "{above} beside {below}");
        for other in ["fallback: true", "shadow: true", "enabled: false"] {
            let other = format!("{other}, {TIERS}");
            assert_eq!(beside(above, below, [&other, &fallback]), [""; 0], "{above} beside {below}: {other}");
        }
    }
    for (above, below) in UNCOVERED {
        assert_eq!(beside(above, below, [TIERS, &fallback]), [""; 0], "{above} beside {below}");
    }
}

/// Each is found by the first other rule, in the policy's order, that matches all of its
/// requests.
#[test]
fn several_rules_that_cover_each_other_are_found_by_the_first() {
    let rules = |id: &str, matched: &str, settings: &str| format!("{{ id: {id}, match: {{ {matched} }}, {settings} }}");
    let exempt = |id, matched| rules(id, matched, "exempt: true");
    let expected = |rule: &str, by: &str| {
        format!("rule `{rule}`: match: `{by}`: never applies: another rule exempts every request that it matches")
    };
    let same = ["a", "b", "c"].map(|id| exempt(id, "paths: [/x]")).join(", ");
    assert_eq!(warnings(&same), [expected("a", "b"), expected("b", "a"), expected("c", "a")]);
    let narrow = [exempt("a", "paths: ['/{x}']"), exempt("b", ""), rules("c", "paths: [/x, /y]", TIERS)].join(", ");
    assert_eq!(warnings(&narrow), [expected("a", "b"), expected("c", "a")]);
    // Together they match its requests, but neither does alone.
    let halves = [exempt("a", "paths: [/x]"), exempt("b", "paths: [/y]"), rules("c", "paths: [/x, /y]", TIERS)];
    assert_eq!(warnings(&halves.join(", ")), [""; 0]);
    // A letter that stands for other letters in the comparison stands for itself here.
    let letter = [exempt("a", "paths: ['/%F4%8F%BF%BF']"), rules("b", "paths: ['/{x}']", TIERS)];
    assert_eq!(warnings(&letter.join(", ")), [""; 0]);
    let rest = [exempt("a", "paths: ['/{a}/{b}']"), rules("b", "paths: ['/{*rest}']", TIERS)];
    assert_eq!(warnings(&rest.join(", ")), [""; 0]);
}

#[test]
fn a_rule_whose_requests_are_exempt_is_found() {
    for (above, below) in COVERED {
        let expected = "rule `b`: match: `a`: never applies: another rule exempts every request that it matches";
        assert_eq!(beside(above, below, ["exempt: true", TIERS]), [expected], "{above} beside {below}");
    }
    for (above, below) in UNCOVERED {
        assert_eq!(beside(above, below, ["exempt: true", TIERS]), [""; 0], "{above} beside {below}");
    }
}

#[test]
fn a_rule_that_refunds_every_response_is_found() {
    let with = |statuses| warnings(&format!("{{ id: a, {TIERS}, refund_on: [{statuses}] }}"));
    assert_eq!(
        with("1xx, 2xx, 3xx, 4xx, 5xx"),
        ["rule `a`: refund_on: refunds every response, so only open requests are limited"]
    );
    assert_eq!(with("2xx, 3xx, 4xx, 5xx"), [""; 0]);
}

/// A policy that is made in code may be checked before it is known to be valid.
#[test]
fn an_invalid_policy_can_be_checked() {
    let endless = "/a".repeat(100_000);
    let rule = |id: &str| Rule::new(id).path(&endless).path("/{*rest}/{*more}").path("{").tier(Quota::per_second(1));
    let policy = Policy::new().rule(rule("a")).rule(rule("b").fallback(true)).rule(rule("c").exempt(true));
    assert!(policy.warnings().iter().all(|warning| warning.rule() != Some("c")));
}

#[test]
fn disabled_rules_are_not_looked_at() {
    let rule = format!("{{ id: a, enabled: false, cost: 50, {TIERS} }}");
    assert_eq!(warnings(&rule), [""; 0]);
}

#[test]
fn a_rule_that_multiplies_its_limit_is_found_unless_it_says_so() {
    let tiers = "tiers: [{ limit: 10, window: 1s }]";
    let with = |matches: &str, per: &str| warnings(&format!("{{ id: a, match: {{ {matches} }}, {per} {tiers} }}"));
    let times = |counters: usize| {
        vec![format!(
            "rule `a`: per: is not set, so each path and method that the rule names has counters of its own: a tenant \
             has the limit {counters} times; `per: [tenant]` counts them together"
        )]
    };
    assert_eq!(with("paths: [/a, /b]", ""), times(2));
    assert_eq!(with("methods: [GET, POST], paths: [/a, /b, /c]", ""), times(6));
    assert_eq!(with("paths: [/a], methods: [GET]", ""), [""; 0]);
    for per in ["per: [tenant],", "per: [tenant, endpoint, method],"] {
        assert_eq!(with("methods: [GET, POST], paths: [/a, /b]", per), [""; 0]);
    }
}
