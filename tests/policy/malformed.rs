//! Invalid policy files, each with its error.

use std::collections::HashSet;

use tower_ratelimit::Policy;

/// A document, and the rule, key, value and reason of its error.
struct Bad {
    document: String,
    rule: Option<&'static str>,
    key: &'static str,
    value: Option<&'static str>,
    reason: &'static str,
}

impl Bad {
    fn file(document: &str, key: &'static str, value: Option<&'static str>, reason: &'static str) -> Self {
        Self { document: document.into(), rule: None, key, value, reason }
    }

    fn list(
        document: &str,
        rule: &'static str,
        key: &'static str,
        value: Option<&'static str>,
        reason: &'static str,
    ) -> Self {
        Self { document: document.into(), rule: Some(rule), key, value, reason }
    }

    /// A rule that is valid except for `setting`.
    fn rule(setting: &str, key: &'static str, value: &'static str, reason: &'static str) -> Self {
        let document = format!("rules: [{{ id: a, tiers: [{{ limit: 1, window: 1s }}], {setting} }}]");
        Self { document, rule: Some("a"), key, value: Some(value), reason }
    }

    fn path(path: &str, value: &'static str, reason: &'static str) -> Self {
        Self::rule(&format!("match: {{ paths: [/ok, '{path}'] }}"), "match.paths[1]", value, reason)
    }

    /// A rule whose second tier is `tier`.
    fn tier(tier: &str, key: &'static str, value: Option<&'static str>, reason: &'static str) -> Self {
        let document = format!("rules: [{{ id: a, tiers: [{{ limit: 1, window: 1s }}, {tier}] }}]");
        Self { document, rule: Some("a"), key, value, reason }
    }

    /// A rule whose first tier is a concurrency limit with these bounds, and what follows.
    fn found(bounds: &str, key: &'static str, value: &'static str, reason: &'static str) -> Self {
        let document = format!("rules: [{{ id: a, tiers: [{{ concurrent: {bounds} }}]");
        Self { document, rule: Some("a"), key, value: Some(value), reason }
    }

    /// A rule whose only tier is an adaptive rate with `setting`.
    fn adapt(setting: &str, key: &'static str, value: Option<&'static str>, reason: &'static str) -> Self {
        let document = format!("rules: [{{ id: a, adaptive_rate: {{ {setting} }} }}]");
        Self { document, rule: Some("a"), key, value, reason }
    }

    /// An adaptive rate between two rates, and `more`.
    fn adapts(
        floor: &str,
        ceiling: &str,
        more: &str,
        key: &'static str,
        value: &'static str,
        reason: &'static str,
    ) -> Self {
        Self::adapt(
            &format!("floor: {{ limit: {floor} }}, ceiling: {{ limit: {ceiling} }}{more}"),
            key,
            Some(value),
            reason,
        )
    }

    fn sla(setting: &str, key: &'static str, value: Option<&'static str>, reason: &'static str) -> Self {
        Self { document: format!("slas: [{{ id: s, {setting} }}]"), rule: Some("s"), key, value, reason }
    }
}

fn bad_files() -> Vec<Bad> {
    vec![
        Bad::adapt("", "adaptive_rate.floor", None, "is missing"),
        Bad::adapt("floor: { limit: 1, window: 1s }", "adaptive_rate.ceiling", None, "is missing"),
        Bad::adapt("floor: 3", "adaptive_rate.floor", Some("3"), "expected a map, found a number"),
        Bad::adapt("floor: { limit: 1, window: 1s, burst: 2 }", "adaptive_rate.floor.burst", Some("2"), "unknown key"),
        Bad::adapt("flor: { limit: 1, window: 1s }", "adaptive_rate.flor", Some("{limit: 1, window: 1s}"), "`floor`?"),
        Bad::adapts("0, window: 1s", "9, window: 1s", "", "adaptive_rate.floor.limit", "0", "must be at least 1"),
        Bad::adapts(
            "1, window: 0s",
            "9, window: 1s",
            "",
            "adaptive_rate.floor.window",
            "0s",
            "must be longer than zero",
        ),
        Bad::adapts("1, window: 9d", "9, window: 1s", "", "adaptive_rate.floor.window", "1 in 777600s", "is too long"),
        Bad::adapts(
            "1, window: 1s",
            "1, window: 1m",
            "",
            "adaptive_rate.ceiling",
            "1 in 60s",
            "must not be below the floor",
        ),
        Bad::adapts(
            "1, window: 1s",
            "1000001, window: 1s",
            "",
            "adaptive_rate.ceiling",
            "1000001 in 1s",
            "at most 1000000 times",
        ),
        Bad::adapts("2, window: 1ns", "2, window: 1ns", "", "adaptive_rate.floor.limit", "2 in 1ns", "is too much"),
        Bad::adapts(
            "1, window: 1s",
            "9, window: 1s",
            ", start: { limit: 10, window: 1s }",
            "adaptive_rate.start",
            "10 in 1s",
            "between the floor and the ceiling",
        ),
        Bad::adapts("1, window: 1s", "9, window: 1s", ", decrease: 1.0", "adaptive_rate.decrease", "1", "less than 1"),
        Bad::adapts(
            "1, window: 1s",
            "9, window: 1s",
            ", decrease: 0.05",
            "adaptive_rate.decrease",
            "0.05",
            "at least 0.1",
        ),
        Bad::adapts("1, window: 1s", "9, window: 1s", ", increase: 0", "adaptive_rate.increase", "0", "more than 0"),
        Bad::adapts("1, window: 1s", "9, window: 1s", ", increase: 1.5", "adaptive_rate.increase", "1.5", "at most 1"),
        Bad::adapts(
            "1, window: 1s",
            "9, window: 1s",
            ", increase: 'a'",
            "adaptive_rate.increase",
            "a",
            "expected a number",
        ),
        Bad::adapts(
            "1, window: 1s",
            "9, window: 1s",
            " }, per: [], fair: true, match: { ",
            "fair",
            "true",
            "first come",
        ),
        Bad::file("", "", None, "the policy is empty"),
        Bad::file("{}", "", None, "the policy has no `rules`"),
        Bad::file("- a", "", Some("[a]"), "expected a map, found a list"),
        Bad::file("12", "", Some("12"), "expected a map, found a number"),
        Bad::file("rulez: []", "rulez", Some("[]"), "did you mean `rules`?"),
        Bad::file("limits: 3", "limits", Some("3"), "one of `rules`, `defaults`, `slas`, `ignore_case`"),
        Bad::file("rules: { a: b }", "rules", Some("{a: b}"), "expected a list, found a map"),
        Bad::file("rules:", "rules", Some("null"), "expected a list, found nothing"),
        Bad::file("slas: none", "slas", Some("none"), "expected a list, found a string"),
        Bad::file("rules: []\nignore_case: yes", "ignore_case", Some("yes"), "expected true or false, found a string"),
        Bad::file("rules: [", "", None, "line 1, column 8"),
        Bad::file("rules:\n  - id: a\n bad", "", None, "line 3, column 2"),
        Bad::file("rules: []\nslas: []\nrules: []", "", None, "duplicate key `rules` at line 3, column 1"),
        Bad::file("rules: []\n---\nrules: []", "", None, "a second document starts at line 2, column 1"),
        Bad::file("rules: !secret []", "", None, "unsupported tag `!secret`"),
        Bad::file("rules: *nothing", "", None, "unknown anchor"),
    ]
}

fn bad_rules() -> Vec<Bad> {
    const TIERS: &str = "tiers: [{ limit: 1, window: 1s }]";
    const LONG: &str = concat!(
        "123456789-123456789-123456789-123456789-123456789-123456789-",
        "123456789-123456789-123456789-123456789-123456789-123456789-123456789",
    );
    const WINDOW: &str = "tiers: [{ limit: 1, window: 1s, algorithm: fixed-window }]";
    let good = format!("{{ id: a, {TIERS} }}");
    vec![
        Bad::list(&format!("rules: [{good}, b]"), "rules[1]", "", Some("b"), "expected a map, found a string"),
        Bad::list(&format!("rules: [{good}, {{ {TIERS} }}]"), "rules[1]", "id", None, "is missing"),
        Bad::list(&format!("rules: [{{ id: '', {TIERS} }}]"), "rules[0]", "id", Some(""), "must not be empty"),
        Bad::list(&format!("rules: [{{ id: 42, {TIERS} }}]"), "rules[0]", "id", Some("42"), "put it in quotes"),
        Bad::list(
            &format!("rules: [{{ id: [a], {TIERS} }}]"),
            "rules[0]",
            "id",
            Some("[a]"),
            "expected a string, found a list",
        ),
        Bad::list(
            &format!("rules: [{good}, {{ id: \u{fc}, {TIERS} }}]"),
            "rules[1]",
            "id",
            Some("\u{fc}"),
            "printable ASCII",
        ),
        Bad::list(&format!("rules: [{{ id: \"a\\n\", {TIERS} }}]"), "rules[0]", "id", Some("a\n"), "printable ASCII"),
        Bad::list(
            &format!("rules: [{{ id: {LONG}, {TIERS} }}]"),
            "rules[0]",
            "id",
            Some(concat!(
                "123456789-123456789-123456789-123456789-123456789-",
                "123456789-123456789-123456789-123456789-123456789-\u{2026}"
            )),
            "at most 128 bytes",
        ),
        Bad::list(&format!("rules: [{good}, {good}]"), "a", "id", Some("a"), "another rule has the same id"),
        Bad::list("rules: [{ id: a }]", "a", "tiers", None, "is missing"),
        Bad::list("rules: [{ id: a, tiers: [] }]", "a", "tiers", Some("[]"), "at least one tier"),
        Bad::list("rules: [{ id: idle, tiers: [], enabled: false }]", "idle", "tiers", Some("[]"), "at least one tier"),
        Bad::list(
            "rules: [{ id: a, tiers: { limit: 1 } }]",
            "a",
            "tiers",
            Some("{limit: 1}"),
            "expected a list, found a map",
        ),
        Bad::list("rules: [{ id: a, tiers: [5] }]", "a", "tiers[0]", Some("5"), "expected a map, found a number"),
        Bad::rule("maxWait: 1s", "maxWait", "1s", "did you mean `max_wait`?"),
        Bad::rule("shaodw: true", "shaodw", "true", "did you mean `shadow`?"),
        Bad::rule("weight: 9", "weight", "9", "one of `id`, `match`, `tenant`"),
        Bad::rule("max_wait: 5", "max_wait", "5", "such as `5s` or `5ms`"),
        Bad::rule("max_wait: 0.5", "max_wait", "0.5", "a duration needs a unit"),
        Bad::rule("max_wait: [1s]", "max_wait", "[1s]", "expected a duration such as"),
        Bad::rule("cost: 0", "cost", "0", "must be at least 1"),
        Bad::rule("cost: -2", "cost", "-2", "must not be negative"),
        Bad::rule("smooth: 1", "smooth", "1", "expected true or false, found a number"),
        Bad::rule("smooth: true, max_wait: 1s", "smooth", "true", "needs a tier with a window"),
        Bad::list(
            &format!("rules: [{{ id: a, smooth: true, {WINDOW} }}]"),
            "a",
            "smooth",
            Some("true"),
            "needs a `max_wait`",
        ),
        Bad::list(
            &format!("rules: [{{ id: b, smooth: true, max_wait: 0s, {WINDOW} }}]"),
            "b",
            "smooth",
            Some("true"),
            "needs a `max_wait`",
        ),
        Bad::list(
            &format!(
                "rules: [{{ id: a, smooth: true, max_wait: 1s, {WINDOW},
                plans: {{ pro: [{{ limit: 1, window: 1s, algorithm: sliding-log }}] }} }}]"
            ),
            "a",
            "plans.pro[0].algorithm",
            Some("sliding-log"),
            "without losing throughput",
        ),
        Bad::rule("charge_on: 401", "charge_on", "401", "expected a list, found a number"),
        Bad::rule("charge_on: []", "charge_on", "[]", "at least one status"),
        Bad::rule("charge_on: [401, 99]", "charge_on[1]", "99", "a number from 100 to 599, or a class"),
        Bad::rule("charge_on: [600]", "charge_on[0]", "600", "a number from 100 to 599, or a class"),
        Bad::rule("charge_on: [-401]", "charge_on[0]", "-401", "a number from 100 to 599, or a class"),
        Bad::rule("charge_on: [401.5]", "charge_on[0]", "401.5", "a number from 100 to 599, or a class"),
        Bad::rule("charge_on: ['401']", "charge_on[0]", "401", "write it without quotes"),
        Bad::rule("charge_on: [unauthorized]", "charge_on[0]", "unauthorized", "or a class such as `5xx`"),
        Bad::rule("refund_on: []", "refund_on", "[]", "at least one status"),
        Bad::rule("refund_on: [6xx]", "refund_on[0]", "6xx", "or a class such as `5xx`"),
        Bad::rule("refund_on: [5XX]", "refund_on[0]", "5XX", "or a class such as `5xx`"),
        Bad::rule("refund_on: [5x]", "refund_on[0]", "5x", "or a class such as `5xx`"),
        Bad::rule("refund_on: [404, 404]", "refund_on[1]", "404", "is named twice"),
        Bad::rule("refund_on: [5xx, 503]", "refund_on[1]", "503", "is named twice"),
        Bad::rule("refund_on: [503, 5xx]", "refund_on[1]", "5xx", "is named twice"),
        Bad::rule("refund_on: [5xx], charge_on: [401]", "refund_on", "5xx", "not in `charge_on`"),
        Bad::rule("refund_on: [401, 404], charge_on: [401]", "refund_on", "404", "not in `charge_on`"),
        Bad::rule("refund_on: [401, 403], charge_on: [401, 403]", "refund_on", "[401, 403]", "leaves nothing"),
        Bad::rule("refund_on: [4xx], charge_on: [4xx]", "refund_on", "[4xx]", "leaves nothing"),
        Bad::rule("unit: ''", "unit", "", "must not be empty"),
        Bad::rule("unsettled: refund", "unsettled", "refund", "does not settle"),
        Bad::rule("per_byte: response", "per_byte", "response", "needs a `unit`"),
        Bad::rule("per_byte: response, unit: b, settle: true", "per_byte", "response", "use two rules"),
        Bad::rule("settle: late", "settle", "late", "expected true or false, found a string"),
        Bad::rule("match: GET", "match", "GET", "expected a map, found a string"),
        Bad::rule("match: { path: [/a] }", "match.path", "[/a]", "did you mean `paths`?"),
        Bad::rule("match: { methods: GET }", "match.methods", "GET", "expected a list, found a string"),
        Bad::rule("match: { methods: [GET, get] }", "match.methods[1]", "get", "written in capitals"),
        Bad::rule("match: { methods: ['A B'] }", "match.methods[0]", "A B", "must be an HTTP method"),
        Bad::rule("match: { headers: { 'a b': [x] } }", "match.headers", "a b", "not the name of a header"),
        Bad::rule("match: { headers: { A: [b], a: [c] } }", "match.headers", "a", "named twice"),
        Bad::rule("match: { headers: { a: [] } }", "match.headers.a", "[]", "at least one value"),
        Bad::rule("match: { headers: { a: [ok, ' x'] } }", "match.headers.a[1]", " x", "no spaces around it"),
        Bad::rule("match: { headers: { a: [''] } }", "match.headers.a[0]", "", "not the value of a header"),
        Bad::rule("match: { headers: { a: x } }", "match.headers.a", "x", "expected a list, found a string"),
        Bad::rule("match: { header: { a: [x] } }", "match.header", "{a: [x]}", "did you mean `headers`?"),
        Bad::rule("status: 399", "status", "399", "must be an HTTP status from 400 to 599"),
        Bad::rule("status: 600", "status", "600", "must be an HTTP status from 400 to 599"),
        Bad::rule("status: 42", "status", "42", "must be an HTTP status from 400 to 599"),
        Bad::rule("status: 5xx", "status", "5xx", "expected a whole number, found a string"),
        Bad::rule("match: { methods: [''] }", "match.methods[0]", "", "must be an HTTP method"),
        Bad::rule("match: { methods: [GET, '*'] }", "match.methods[1]", "*", "leave `methods` out"),
        Bad::rule("match: { methods: [ALL] }", "match.methods[0]", "ALL", "leave `methods` out"),
        Bad::rule("match: { methods: [ANY] }", "match.methods[0]", "ANY", "leave `methods` out"),
        Bad::rule("match: { methods: [GTE] }", "match.methods[0]", "GTE", "did you mean `GET`?"),
        Bad::rule("match: { methods: [PUTT] }", "match.methods[0]", "PUTT", "did you mean `PUT`?"),
        Bad::rule("match: { methods: [OPTION] }", "match.methods[0]", "OPTION", "did you mean `OPTIONS`?"),
        Bad::rule("match: { methods: [PACTH] }", "match.methods[0]", "PACTH", "did you mean `PATCH`?"),
        Bad::rule("match: { routes: [/a, ''] }", "match.routes[1]", "", "must not be empty"),
        Bad::rule("match: { routes: [/a, /a] }", "match.routes[1]", "/a", "same route twice"),
        Bad::rule("tenant: org", "tenant", "org", "in braces, such as `{org}`"),
        Bad::rule("tenant: '{}'", "tenant", "{}", "in braces, such as `{org}`"),
        Bad::rule("tenant: '{org}'", "tenant", "{org}", "the rule names none"),
        Bad::rule(
            "tenant: '{o}', match: { paths: ['/{o}'], routes: [/x] }",
            "tenant",
            "{o}",
            "the rule matches routes",
        ),
        Bad::rule("tenant: '{o}', match: { paths: ['/{o}', '/{x}'] }", "tenant", "{o}", "the path `/{x}` has no such"),
        Bad::rule("tenant: '{r}', match: { paths: ['/{*r}'] }", "tenant", "{r}", "the path `/{*r}` has no such"),
        Bad::rule("per: tenant", "per", "tenant", "expected a list, found a string"),
        Bad::rule("per: [tenant, endpoints]", "per[1]", "endpoints", "unknown dimension; did you mean `endpoint`?"),
        Bad::rule("per: [method, tenant, method]", "per[2]", "method", "is named twice"),
        Bad::rule("plans: [pro]", "plans", "[pro]", "expected a map, found a list"),
        Bad::rule("plans: { pro: [] }", "plans.pro", "[]", "at least one tier"),
        Bad::rule("plans: { pro: [{ limit: 1, window: 0s }] }", "plans.pro[0].window", "0s", "longer than zero"),
        Bad::rule("plans: { pro: boundless }", "plans.pro", "boundless", "expected `unlimited` or a list"),
        Bad::rule("tenants: { acme: boundless }", "tenants.acme", "boundless", "expected `unlimited` or a list"),
        Bad::rule("tenants: { acme: [] }", "tenants.acme", "[]", "at least one tier"),
        Bad::rule("tenants: { acme: [{ limit: 1.5, window: 1s }] }", "tenants.acme[0].limit", "1.5", "a whole number"),
        Bad::rule("fallback: 1", "fallback", "1", "expected true or false, found a number"),
        Bad::rule("fair: true", "fair", "true", "at a counter that they share"),
        Bad::rule("tenants: { 10.0.0.1/8: unlimited }", "tenants", "10.0.0.1/8", "write `10.0.0.0/8` for the network"),
        Bad::rule("exempt: true", "tiers", "exempt", "has no meaning in a rule that is `exempt`"),
        Bad::rule("exempt: 1", "exempt", "1", "expected true or false"),
        Bad::rule("shadow: 'true'", "shadow", "true", "expected true or false, found a string"),
        Bad::rule("enabled:", "enabled", "null", "expected true or false, found nothing"),
        Bad::rule("on_backend_failure: opne", "on_backend_failure", "opne", "did you mean `open`?"),
        Bad::rule("on_backend_failure: Closed", "on_backend_failure", "Closed", "did you mean `closed`?"),
        Bad::rule("consistency: lease", "consistency", "lease", "did you mean `leased`?"),
        Bad::rule("consistency: eventual", "consistency", "eventual", "use `leased`"),
        Bad::rule("sync_interval: 1s", "sync_interval", "1s", "only where `consistency` is not `exact`"),
        Bad::rule("consistency: leased, sync_interval: 9ms", "sync_interval", "9ms", "at least 10ms and at most 10s"),
        Bad::rule("consistency: leased, sync_interval: 11s", "sync_interval", "11s", "at least 10ms and at most 10s"),
        Bad::rule("local_share: 0.5", "local_share", "0.5", "only where `on_backend_failure` is `local`"),
        Bad::rule("on_backend_failure: open, local_share: 1", "local_share", "1", "only where `on_backend_failure`"),
        Bad::rule("on_backend_failure: local, local_share: 0", "local_share", "0", "more than 0, and at most 1"),
        Bad::rule("on_backend_failure: local, local_share: 1.5", "local_share", "1.5", "more than 0, and at most 1"),
        Bad::rule("on_backend_failure: local, local_share: -1", "local_share", "-1", "more than 0, and at most 1"),
        Bad::rule("on_backend_failure: local, local_share: '0.5'", "local_share", "0.5", "without quotes"),
        Bad::rule("on_backend_failure: local, local_share: 50%", "local_share", "50%", "expected a number"),
        Bad::rule("on_backend_failure: local, local_share:", "local_share", "null", "expected a number"),
    ]
}

fn bad_paths() -> Vec<Bad> {
    vec![
        Bad::path("", "", "must not be empty"),
        Bad::path("a", "a", "must start with `/`"),
        Bad::path("/ok", "/ok", "same path twice"),
        Bad::path("/p/:id", "/p/:id", "write `/p/{id}` for a parameter, and `%3A` for a literal colon"),
        Bad::path("/p/<user>/x", "/p/<user>/x", "write `/p/{user}/x` for a parameter"),
        Bad::path("/x/<id>", "/x/<id>", "write `/x/{id}` for a parameter"),
        Bad::path("/x/{id", "/x/{id", "write `/x/{id}` for a parameter"),
        Bad::path("/x/id}/y", "/x/id}/y", "write `/x/{id}/y` for a parameter"),
        Bad::path("/:a/<b>/{c", "/:a/<b>/{c", "write `/{a}/{b}/{c}` for a parameter"),
        Bad::path("/<b>.json", "/<b>.json", "write `/{b}.json` for a parameter"),
        Bad::path("/f/<path:rest>", "/f/<path:rest>", "write `/f/{*rest}` for a parameter"),
        Bad::path("/f/<int:id>", "/f/<int:id>", "write `/f/{id}` for a parameter"),
        Bad::path("/f/:rest*", "/f/:rest*", "write `/f/{*rest}` for a parameter"),
        Bad::path("/x/<>", "/x/<>", "write `/x/{name}` for a parameter"),
        Bad::path("/<>", "/<>", "write `/{name}` for a parameter"),
        Bad::path("/{", "/{", "write `/{name}` for a parameter"),
        Bad::path("/{}", "/{}", "write `/{name}` for a parameter"),
        Bad::path("/a}", "/a}", "write `/{a}` for a parameter"),
        Bad::path("/{a{b}", "/{a{b}", "a name and both its braces"),
        Bad::path("/{a}{b}", "/{a}{b}", "only one parameter"),
        Bad::path("/{*all}/b", "/{*all}/b", "only as the whole last segment"),
        Bad::path("/b-{*all}", "/b-{*all}", "only as the whole last segment"),
        Bad::path("/a*", "/a*", "one whole segment"),
        Bad::path("/**", "/**", "one whole segment"),
        Bad::path("/a?b=c", "/a?b=c", "without a query"),
        Bad::path(&"/*".repeat(26), "/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*/*", "more than 25 parameters"),
    ]
}

fn bad_tiers() -> Vec<Bad> {
    vec![
        Bad::tier("{ window: 1s }", "tiers[1].limit", None, "is missing"),
        Bad::tier("{ limit: 1 }", "tiers[1].window", None, "is missing"),
        Bad::tier("{ limit: 1, windows: 1s }", "tiers[1].windows", Some("1s"), "did you mean `window`?"),
        Bad::tier("{ limit: -1, window: 1s }", "tiers[1].limit", Some("-1"), "must not be negative"),
        Bad::tier("{ limit: 2.5, window: 1s }", "tiers[1].limit", Some("2.5"), "must be a whole number"),
        Bad::tier("{ limit: 1e3, window: 1s }", "tiers[1].limit", Some("1000.0"), "no exponent"),
        Bad::tier("{ limit: .inf, window: 1s }", "tiers[1].limit", Some("inf"), "must be a whole number"),
        Bad::tier(
            "{ limit: ten, window: 1s }",
            "tiers[1].limit",
            Some("ten"),
            "expected a whole number, found a string",
        ),
        Bad::tier("{ limit: '10', window: 1s }", "tiers[1].limit", Some("10"), "write it without quotes"),
        Bad::tier("{ limit: , window: 1s }", "tiers[1].limit", Some("null"), "expected a whole number, found nothing"),
        Bad::tier(
            "{ limit: 18446744073709551616, window: 1s }",
            "tiers[1].limit",
            Some("1.8446744073709552e19"),
            "at most 18446744073709551615",
        ),
        Bad::tier("{ limit: 1, window: 10 }", "tiers[1].window", Some("10"), "such as `10s` or `10ms`"),
        Bad::tier("{ limit: 1, window: '10' }", "tiers[1].window", Some("10"), "a number and its unit"),
        Bad::tier("{ limit: 1, window: 0s }", "tiers[1].window", Some("0s"), "must be longer than zero"),
        Bad::tier("{ limit: 1, window: -1s }", "tiers[1].window", Some("-1s"), "a number and its unit"),
        Bad::tier("{ limit: 1, window: 1 parsec }", "tiers[1].window", Some("1 parsec"), "a number and its unit"),
        Bad::tier("{ limit: 1, window: 1M }", "tiers[1].window", Some("1M"), "write days"),
        Bad::tier(
            "{ limit: 1, window: 99999999999999999999s }",
            "tiers[1].window",
            Some("99999999999999999999s"),
            "than can be counted",
        ),
        // humantime would panic on this one.
        Bad::tier(
            "{ limit: 1, window: 18446744073709551615s 1000000000ns }",
            "tiers[1].window",
            Some("18446744073709551615s 1000000000ns"),
            "longer than can be counted",
        ),
        Bad::tier("{ limit: 1, window: 1s, burst: 0 }", "tiers[1].burst", Some("0"), "must be at least 1"),
        Bad::tier("{ limit: 1, window: 1s, burst: -3 }", "tiers[1].burst", Some("-3"), "must not be negative"),
        Bad::tier(
            "{ limit: 1, window: 1s, burst: 3, algorithm: fixed-window }",
            "tiers[1].burst",
            Some("3"),
            "has no meaning for fixed-window",
        ),
        Bad::tier(
            "{ limit: 65537, window: 1s, algorithm: sliding-log }",
            "tiers[1].limit",
            Some("65537"),
            "at most 65536 for sliding-log",
        ),
        Bad::tier(
            "{ limit: 1, window: 1s, algorithm: magic }",
            "tiers[1].algorithm",
            Some("magic"),
            "one of `token-bucket`, `leaky-bucket`, `fixed-window`, `anchored-window`, `sliding-window`, `sliding-log`",
        ),
        Bad::tier("{ concurrent: -1 }", "tiers[1].concurrent", Some("-1"), "must not be negative"),
        Bad::found("{ min: 0, max: 5 } }]", "tiers[0].concurrent.min", "0", "at least 1"),
        Bad::found("{ min: 6, max: 5 } }]", "tiers[0].concurrent.max", "5", "must not be below `min`, 6"),
        Bad::found("{ min: 1, max: 2000000 } }]", "tiers[0].concurrent.max", "2000000", "at most 1000000"),
        Bad::found("{ min: 2, max: 5, start: 1 } }]", "tiers[0].concurrent.start", "1", "from `min` to `max`, 2 to 5"),
        Bad::found("{ min: 2, max: 5, start: 6 } }]", "tiers[0].concurrent.start", "6", "from `min` to `max`, 2 to 5"),
        Bad::found("{ min: 2, max: 5, strat: 3 } }]", "tiers[0].concurrent.strat", "3", "did you mean `start`?"),
        Bad::found("{ min: 2, max: -5 } }]", "tiers[0].concurrent.max", "-5", "must not be negative"),
        Bad::found(
            "{ min: 2, max: 5 } }], cost: 3, plans: { a: unlimited }",
            "tiers[0].concurrent.min",
            "2",
            "cost of the rule, 3",
        ),
        Bad::found(
            "{ min: 2, max: 5 } }, { concurrent: { min: 1, max: 2 } }]",
            "tiers[0].concurrent",
            "2 to 5",
            "only tier",
        ),
        Bad::found("{ min: 2, max: 5 } }], plans: { a: [{ concurrent: 3 }] }", "plans.a", "1", "cannot replace"),
        Bad::found(
            "3 }], plans: { a: [{ concurrent: { min: 2, max: 5 } }] }",
            "plans.a[0].concurrent",
            "2 to 5",
            "not for a plan",
        ),
        Bad::tier("{ concurrent: { min: 1, max: 2 } }", "tiers[1].concurrent", Some("1 to 2"), "only tier of its rule"),
        Bad::tier("{ concurrent: 2s }", "tiers[1].concurrent", Some("2s"), "expected a whole number, found a string"),
        Bad::tier("{ concurent: 1 }", "tiers[1].concurent", Some("1"), "did you mean `concurrent`?"),
        Bad::tier("{ concurrent: 1, limit: 2 }", "tiers[1].limit", Some("2"), "no meaning beside `concurrent`"),
        Bad::tier("{ concurrent: 1, window: 1s }", "tiers[1].window", Some("1s"), "no meaning beside `concurrent`"),
        Bad::tier("{ burst: 2, concurrent: 1 }", "tiers[1].burst", Some("2"), "no meaning beside `concurrent`"),
        Bad::tier(
            "{ concurrent: 1, algorithm: concurrency }",
            "tiers[1].algorithm",
            Some("concurrency"),
            "no meaning beside `concurrent`",
        ),
        Bad::tier(
            "{ limit: 1, window: 1s, algorithm: concurrency }",
            "tiers[1].algorithm",
            Some("concurrency"),
            "write the tier as `{ concurrent: 10 }`",
        ),
        Bad::tier(
            "{ limit: 1, window: 1s, algorithm: SlidingLog }",
            "tiers[1].algorithm",
            Some("SlidingLog"),
            "did you mean `sliding-log`?",
        ),
        Bad::tier(
            "{ limit: 1, window: month, algorithm: token-bucket }",
            "tiers[1].window",
            Some("month"),
            "counted by fixed-window only, not by token-bucket",
        ),
        Bad::tier(
            "{ limit: 1, window: month, algorithm: sliding-window }",
            "tiers[1].window",
            Some("month"),
            "counted by fixed-window only",
        ),
        Bad::tier(
            "{ limit: 1, window: month, burst: 1 }",
            "tiers[1].burst",
            Some("1"),
            "has no meaning for fixed-window",
        ),
        Bad::tier("{ limit: 1, window: month, offset: 1h }", "tiers[1].offset", Some("3600s"), "one of UTC"),
        Bad::tier("{ limit: 1, window: months }", "tiers[1].window", Some("months"), "`window: month`"),
        Bad::tier("{ limit: 1, window: 1 month }", "tiers[1].window", Some("1 month"), "`window: month`"),
        Bad::tier("{ limit: 1, window: 1d, offset: 9h }", "tiers[1].offset", Some("32400s"), "start of fixed windows"),
        Bad::tier(
            "{ limit: 1, window: 1d, offset: 24h, algorithm: fixed-window }",
            "tiers[1].offset",
            Some("86400s"),
            "must be shorter than the window",
        ),
        Bad::tier("{ limit: 1, window: 1d, offset: 9h, burst: 2 }", "tiers[1].offset", Some("9h"), "beside `burst`"),
        Bad::tier("{ offset: 9h, concurrent: 1 }", "tiers[1].offset", Some("9h"), "no meaning beside `concurrent`"),
        Bad::tier("{ limit: 1, window: 1s, algorithm: gcra }", "tiers[1].algorithm", Some("gcra"), "`token-bucket`?"),
        Bad::tier("{ limit: 1, window: 1s, algorithm: GCRA }", "tiers[1].algorithm", Some("GCRA"), "`token-bucket`?"),
    ]
}

fn bad_slas() -> Vec<Bad> {
    const TIERS: &str = "tiers: [{ period: 1, threshold: 1 }]";
    let path = format!("match: {{ pathPattern: product/* }}, {TIERS}");
    let paths = format!("match: {{ paths: [/a] }}, {TIERS}");
    let colon = format!("match: {{ pathPattern: '/p/:id' }}, {TIERS}");
    let all = format!("match: {{ methods: [ALL] }}, {TIERS}");
    vec![
        Bad::list(&format!("slas: [{{ {TIERS} }}]"), "slas[0]", "id", None, "is missing"),
        Bad::list(
            &format!("rules: [{{ id: both, tiers: [{{ limit: 1, window: 1h }}] }}]\nslas: [{{ id: both, {TIERS} }}]"),
            "both",
            "id",
            Some("both"),
            "another rule has the same id",
        ),
        Bad::sla("enabled: true", "tiers", None, "is missing"),
        Bad::sla("tiers: []", "tiers", Some("[]"), "at least one tier"),
        Bad::sla("tiers: [{ period: 0, threshold: 1 }]", "tiers[0].period", Some("0"), "at least 1 second"),
        Bad::sla("tiers: [{ period: 1s, threshold: 1 }]", "tiers[0].period", Some("1s"), "expected a whole number"),
        Bad::sla("tiers: [{ period: 1 }]", "tiers[0].threshold", None, "is missing"),
        Bad::sla("tiers: [{ period: 1, limit: 1 }]", "tiers[0].limit", Some("1"), "one of `period`, `threshold`"),
        Bad::sla(&path, "match.pathPattern", Some("product/*"), "must start with `/`"),
        Bad::sla(&colon, "match.pathPattern", Some("/p/:id"), "write `/p/{id}` for a parameter"),
        Bad::sla(&all, "match.methods[0]", Some("ALL"), "leave `methods` out"),
        Bad::list(&format!("slas: [{{ id: '\u{fc}', {TIERS} }}]"), "slas[0]", "id", Some("\u{fc}"), "printable ASCII"),
        Bad::sla(&paths, "match.paths", Some("[/a]"), "one of `methods`, `pathPattern`"),
        Bad::sla(&format!("shadow: true, {TIERS}"), "shadow", Some("true"), "one of `id`, `enabled`, `match`, `tiers`"),
    ]
}

fn table() -> Vec<Bad> {
    [bad_files(), bad_rules(), bad_paths(), bad_tiers(), bad_slas()].into_iter().flatten().collect()
}

#[test]
fn an_error_names_the_rule_the_key_and_the_value() {
    for Bad { document, rule, key, value, reason } in table() {
        let error = Policy::from_yaml(&document).expect_err(&document);
        let message = error.to_string();
        assert_eq!((error.rule(), error.key(), error.value()), (rule, key, value), "{document}: {message}");
        assert!(message.contains(reason), "{document}: {message}");
        assert!(!message.contains('\n'), "{document}: {message}");
    }
}

#[test]
fn every_error_is_different() {
    let mut messages = HashSet::new();
    for Bad { document, .. } in table() {
        let message = Policy::from_yaml(&document).expect_err(&document).to_string();
        assert!(messages.insert(message.clone()), "{document}: {message}");
    }
    assert!(messages.len() >= 100, "{}", messages.len());
}

#[test]
fn serde_reports_the_same_errors() {
    // By default, the YAML library rejects `.inf` itself.
    let readable = |bad: &&Bad| bad.rule.is_some() && !bad.document.contains(".inf");
    for Bad { document, .. } in table().iter().filter(readable) {
        let message = Policy::from_yaml(document).expect_err(document).to_string();
        let by_serde = serde_saphyr::from_str::<Policy>(document).expect_err(document).to_string();
        assert!(by_serde.contains(&message), "{document}: {by_serde}");
    }
}
