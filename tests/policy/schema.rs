//! The JSON Schema of policy files: it accepts what the parser accepts, and both
//! reject unknown keys and values of the wrong type.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{LazyLock, Mutex},
};

use proptest::prelude::*;
use regex::Regex;
use serde_json::{Map, Value, json};
use tower_ratelimit::Policy;

fn generated() -> Value {
    serde_json::to_value(Policy::json_schema()).unwrap()
}

fn parsed(document: &Value) -> Result<Policy, String> {
    serde_json::from_value(document.clone()).map_err(|error| error.to_string())
}

/// Whether the value is valid, by the keywords that the schema uses. Any other
/// keyword fails the test.
fn accepts(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else { return *schema == json!(true) };
    let number = || value.as_f64();
    keywords.iter().all(|(keyword, argument)| match keyword.as_str() {
        "$schema" | "title" | "$defs" | "description" => true,
        "$ref" => accepts(root, root.pointer(&argument.as_str().unwrap()[1..]).unwrap(), value),
        "anyOf" => argument.as_array().unwrap().iter().any(|choice| accepts(root, choice, value)),
        "oneOf" => argument.as_array().unwrap().iter().filter(|choice| accepts(root, choice, value)).count() == 1,
        "type" => match argument.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "number" => value.is_number(),
            "integer" => value.is_u64() || value.is_i64(),
            other => panic!("unknown type {other}"),
        },
        "enum" => argument.as_array().unwrap().contains(value),
        "const" => value == argument,
        "minimum" => number().is_none_or(|number| number >= argument.as_f64().unwrap()),
        "maximum" => number().is_none_or(|number| number <= argument.as_f64().unwrap()),
        "pattern" => value.as_str().is_none_or(|text| is_like(argument.as_str().unwrap(), text)),
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| accepts(root, argument, item))),
        "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= argument.as_u64().unwrap()),
        "required" => value
            .as_object()
            .is_none_or(|map| argument.as_array().unwrap().iter().all(|key| map.contains_key(key.as_str().unwrap()))),
        "properties" => value.as_object().is_none_or(|map| {
            map.iter().all(|(key, value)| argument.get(key).is_none_or(|schema| accepts(root, schema, value)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|map| {
            let is_known = |key: &String| keywords.get("properties").is_some_and(|known| known.get(key).is_some());
            map.iter().all(|(key, value)| is_known(key) || accepts(root, argument, value))
        }),
        other => panic!("unknown keyword {other}"),
    })
}

fn is_like(pattern: &str, text: &str) -> bool {
    static COMPILED: Mutex<BTreeMap<String, Regex>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap();
    compiled.entry(pattern.into()).or_insert_with(|| Regex::new(pattern).unwrap()).is_match(text)
}

fn is_valid(document: &Value) -> bool {
    static SCHEMA: LazyLock<Value> = LazyLock::new(generated);
    accepts(&SCHEMA, &SCHEMA, document)
}

/// A valid document with every key.
fn full() -> Value {
    let rate = |limit: u64| json!({ "limit": limit, "window": "1s" });
    let both = json!([{ "limit": 5, "window": "1h 30m", "burst": 2, "algorithm": "token-bucket" }]);
    json!({
        "ignore_case": false,
        "instances": 4,
        "overload": { "cpu": "85%", "scheduling_delay": "20ms" },
        "defaults": { "on_backend_failure": "closed" },
        "rules": [
            {
                "id": "every-key",
                "match": { "methods": ["GET"], "paths": ["/v1/{org}"], "priority": ["low", "normal"], "headers": { "mcp-method": ["tools/call"] } },
                "tenant_from": "{org}",
                "adaptive_rate": {
                    "floor": rate(1), "ceiling": rate(9), "start": rate(3), "increase": 0.5, "decrease": 0.5
                },
                "exempt": false,
                "tiers": [
                    { "limit": 5, "window": "1s", "algorithm": "fixed-window", "offset": "250ms" },
                    { "limit": 5, "window": "month" }
                ],
                "per": ["tenant", "ip"],
                "max_wait": "250ms",
                "smooth": true,
                "cost": 1,
                "unit": "tokens",
                "settle": true,
                "unsettled": "refund",
                "charge_on": [401, "5xx"],
                "refund_on": [503],
                "per_message": "both",
                "plans": { "pro": both.clone(), "staff": "unlimited", "free": { "priority": "low", "tiers": both.clone() } },
                "tenants": { "acme": both, "internal": "unlimited" },
                "fallback": false,
                "on_missing_key": "reject",
                "fair": false,
                "shadow": false,
                "upstream_feedback": true,
                "enabled": true,
                "status": 503,
                "consistency": "leased",
                "sync_interval": "50ms",
                "on_backend_failure": "local",
                "local_share": 0.5,
            },
            {
                "id": "routes", "match": { "routes": ["/x"] }, "tiers": [{ "concurrent": 3 }],
                "unit": "content-bytes", "per_byte": "response",
                "reserve": { "normal": "5%", "high": "12.5%", "critical": "20%" },
            },
            { "id": "found", "tiers": [{ "concurrent": { "min": 10, "max": 500, "start": 20 } }] },
            { "id": "alias", "match": { "paths": ["/{org}"] }, "tenant": "{org}", "tiers": [{ "concurrent": 3 }] },
        ],
        "slas": [{
            "id": "sla", "enabled": true, "match": { "methods": ["GET"], "pathPattern": "/y" },
            "tiers": [{ "period": 10, "threshold": 100 }],
        }],
    })
}

/// The keys of all objects in a schema.
fn described(schema: &Value, keys: &mut Vec<String>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        keys.extend(properties.keys().cloned());
    }
    match schema {
        Value::Object(map) => map.values().for_each(|value| described(value, keys)),
        Value::Array(items) => items.iter().for_each(|item| described(item, keys)),
        _ => {}
    }
}

fn used(value: &Value, keys: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            keys.push(key.clone());
            used(value, keys);
        }),
        Value::Array(items) => items.iter().for_each(|item| used(item, keys)),
        _ => {}
    }
}

/// The pointers of all values below `value`.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut visit = |key: &str, value: &Value| {
        let at = format!("{at}/{key}");
        pointers(value, &at, found);
        found.push(at);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| visit(key, value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(index, value)| visit(&index.to_string(), value)),
        _ => {}
    }
}

/// The generated schema, whose keys have what the guide says of them as their
/// descriptions: editors show them.
fn described_by_the_guide() -> Value {
    let mut schema = generated();
    let mut places: &[&str] = &[];
    let pages = concat!(include_str!("../../docs/reference.md"), include_str!("../../docs/migrating.md"));
    for line in pages.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            places = match heading {
                "Top level" => &[""],
                "Rule" | "Counters" | "Tiers" | "Waiting" | "Outcome" | "Client side" | "Fleet" => &["/$defs/rule"],
                "Match" => &["/$defs/match"],
                "Tier" => &["/$defs/tier"],
                "Adaptive rate" => &["/$defs/adaptive_rate"],
                "Adaptive concurrency" => &["/$defs/adaptive_concurrency"],
                "SLAs" => &["/$defs/sla"],
                _ => &[],
            };
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let ["", key, _, default, meaning, ..] = cells[..] else { continue };
        let key = key.trim_matches('`');
        for place in places {
            let key = format!("{place}/properties/{key}");
            let Some(Value::Object(found)) = schema.pointer_mut(&key) else { continue };
            let default = if default.is_empty() { String::new() } else { format!(" Default: {default}.") };
            found.insert("description".into(), plain(&format!("{meaning}.{default}")).into());
        }
    }
    schema
}

/// Text without the links and code marks of Markdown.
fn plain(markdown: &str) -> String {
    static LINK: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\[([^\]]*)\](\[[^\]]*\]|\([^)]*\))").unwrap());
    LINK.replace_all(markdown, "$1").replace('`', "")
}

#[test]
fn the_checked_in_schema_is_the_generated_one() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policy.schema.json");
    let generated = described_by_the_guide();
    if std::env::var_os("BLESS").is_some() {
        fs::write(&file, format!("{generated:#}\n")).unwrap();
    }
    let advice = "write it with `BLESS=1 cargo test --features full,test-util --test policy the_checked_in_schema`";
    let checked_in: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(checked_in == generated, "docs/policy.schema.json is outdated: {advice}");
}

#[test]
fn documents_with_every_key_are_valid() {
    assert_eq!(parsed(&full()).map(drop), Ok(()));
    assert!(is_valid(&full()));
    let (mut described_keys, mut used_keys) = (Vec::new(), Vec::new());
    described(&generated(), &mut described_keys);
    used(&full(), &mut used_keys);
    let missing: Vec<_> = described_keys.iter().filter(|key| !used_keys.contains(key)).collect();
    assert_eq!(missing, [""; 0]);
    for document in [include_str!("../../examples/policy.yaml"), super::NATIVE, super::SLAS] {
        assert!(is_valid(&serde_saphyr::from_str::<Value>(document).unwrap()), "{document}");
    }
    for policy in [super::native(), super::full()] {
        assert!(is_valid(&serde_json::to_value(&policy).unwrap()), "{policy:?}");
    }
}

#[test]
fn both_reject_unknown_keys_and_missing_ones() {
    let mut places = vec![String::new()];
    pointers(&full(), "", &mut places);
    let mut unknown = 0;
    for place in &places {
        let mut document = full();
        let Some(map) = document.pointer_mut(place).and_then(Value::as_object_mut) else { continue };
        map.insert("unknown".into(), json!("unlimited"));
        let is_read = parsed(&document).is_ok();
        assert_eq!(is_valid(&document), is_read, "an unknown key in {place}");
        unknown += usize::from(!is_read);
        let keys: Vec<String> = full().pointer(place).unwrap().as_object().unwrap().keys().cloned().collect();
        for key in keys {
            let mut document = full();
            document.pointer_mut(place).and_then(Value::as_object_mut).map(|map| map.remove(&key));
            // The parser also knows which settings need another one.
            let is_missing = parsed(&document).is_err_and(|error| error.ends_with("is missing"));
            assert_eq!(is_valid(&document), !is_missing, "{place} without {key}");
        }
    }
    assert!(unknown > 10, "{unknown}");
}

#[test]
fn both_reject_values_of_another_type() {
    let mut places = Vec::new();
    pointers(&full(), "", &mut places);
    let others = [json!(null), json!(true), json!(7), json!(-7), json!(7.5), json!("?"), json!([]), json!({})];
    for place in &places {
        for other in &others {
            let mut document = full();
            let value = document.pointer_mut(place).unwrap();
            let is_other_type = std::mem::discriminant(value) != std::mem::discriminant(other);
            *value = other.clone();
            let (read, is_valid) = (parsed(&document), is_valid(&document));
            assert!(read.is_err() || is_valid, "only the schema rejects {other} at {place}");
            if is_other_type {
                assert_eq!(is_valid, read.is_ok(), "{other} at {place}: {read:?}");
            }
        }
    }
}

#[test]
fn both_need_rules_tiers_and_values() {
    for document in [json!({}), json!({ "ignore_case": true }), json!([]), json!(null)] {
        assert!(!is_valid(&document) && parsed(&document).is_err(), "{document}");
    }
    for tiers in [json!([]), json!(null)] {
        let document = json!({ "rules": [{ "id": "a", "tiers": tiers }] });
        assert!(!is_valid(&document) && parsed(&document).is_err(), "{document}");
    }
    let no_value = json!({ "rules": [{ "id": "a", "exempt": true, "match": { "headers": { "b": [] } } }] });
    assert!(!is_valid(&no_value) && parsed(&no_value).is_err());
    let exempt = json!({ "rules": [{ "id": "a", "exempt": true }] });
    assert!(is_valid(&exempt) && parsed(&exempt).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_duration_that_is_read_is_valid(text in "[ 0-9.]{0,4}[a-z\u{b5}]{0,3} ?[0-9]{0,2}(ms|s|h|min)?") {
        let mut tier = Map::new();
        tier.extend([("limit".into(), json!(1)), ("window".into(), json!(text))]);
        let document = json!({ "rules": [{ "id": "a", "tiers": [tier] }] });
        prop_assert!(is_valid(&document) || parsed(&document).is_err());
    }
}
