//! Checks a policy file: prints what each rule does, and a warning for what can
//! never act as written. Exits with 1 if the policy is invalid.
//!
//! `cargo run --example check_policy --features serde -- policy.yaml`

use std::{env, fs, process::ExitCode};

use serde_json::{Map, Value};
use tower_ratelimit::Policy;

fn main() -> ExitCode {
    let Some(file) = env::args().nth(1) else {
        eprintln!("usage: check_policy POLICY");
        return ExitCode::FAILURE;
    };
    let read = fs::read_to_string(&file).map_err(|error| error.to_string());
    let policy = match read.and_then(|text| Policy::from_yaml(&text).map_err(|error| error.to_string())) {
        Ok(policy) => policy,
        Err(error) => {
            eprintln!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    };
    // The native form of a file names every setting that is not at its default.
    let written = serde_json::to_value(&policy).unwrap_or_default();
    for rule in written["rules"].as_array().into_iter().flatten().filter_map(Value::as_object) {
        println!("{}", describe(rule));
    }
    let warnings = policy.warnings();
    for warning in &warnings {
        println!("warning: {warning}");
    }
    println!("{file}: {} rules, {} warnings", policy.rules().len(), warnings.len());
    ExitCode::SUCCESS
}

fn describe(rule: &Map<String, Value>) -> String {
    let setting = |key| rule.get(key).unwrap_or(&Value::Null);
    let matched = |key| words(&setting("match")[key], ", ");
    let or = |text: &str, default: &str| if text.trim().is_empty() { default.into() } else { text.trim().to_owned() };
    let methods = or(&matched("methods"), "any method,");
    let patterns = or(&[matched("paths"), matched("routes")].join(" "), "any path");
    let mut lines = vec![format!("{}: {methods} {patterns}", words(setting("id"), ""))];
    if !rule.contains_key("exempt") {
        let tenant = or(&words(setting("tenant_from"), ""), "tenant");
        let keys = match setting("per") {
            Value::Array(keys) if keys.is_empty() => "nothing: all requests share one counter".into(),
            Value::Null => format!("{tenant}, and each path and method that it names"),
            keys => words(keys, ", "),
        };
        lines.push(format!("counts by: {keys}"));
    }
    for (key, value) in rule {
        match (key.as_str(), value) {
            ("id" | "match" | "per" | "tenant_from", _) => {}
            ("plans" | "tenants", Value::Object(entries)) => {
                let kind = key.trim_end_matches('s');
                lines.extend(entries.iter().map(|(name, tiers)| format!("{kind} {name}: {}", words(tiers, " and "))));
            }
            _ => lines.push(format!("{key}: {}", words(value, " and "))),
        }
    }
    lines.join("\n    ")
}

/// A value in a line; a tier is `10 in 1s` and its other settings.
fn words(value: &Value, separator: &str) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(|item| words(item, ", ")).collect::<Vec<_>>().join(separator),
        Value::Object(map) => {
            let rate = map.get("limit").map(|limit| format!("{limit} in {}", words(&map["window"], "")));
            let others = map.iter().filter(|(key, _)| !matches!(key.as_str(), "limit" | "window"));
            let others = others.map(|(key, value)| format!("{key} {}", words(value, ", ")));
            rate.into_iter().chain(others).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}
