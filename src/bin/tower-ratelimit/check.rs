//! `check`: what each rule of a policy does, and what can hardly be meant as written.
//!
//! It reads the policy's own form, which names every setting that is not at its default.
//! Invariant: only a valid policy is described.

use std::process::ExitCode;

use serde_json::{Map, Value};

use super::{
    output::{Failure, print},
    policy_file::PolicyFile,
};

/// Checks a policy: prints what each rule does, and warnings. Exits with 1 if it is invalid
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    policy: PolicyFile,
    /// Exits with 1 if there is a warning
    #[arg(long)]
    deny_warnings: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let policy = arguments.policy.read()?;
    let written = serde_json::to_value(&policy).unwrap_or_default();
    let rules = written["rules"].as_array().into_iter().flatten().filter_map(Value::as_object);
    let mut lines: Vec<String> = rules.map(describe).collect();
    let warnings = policy.warnings();
    lines.extend(warnings.iter().map(|warning| format!("warning: {warning}")));
    lines.push(format!("{}: {} rules, {} warnings", arguments.policy.name(), policy.rules().len(), warnings.len()));
    let printed = print(&lines.join("\n"))?;
    Ok(if arguments.deny_warnings && !warnings.is_empty() { ExitCode::FAILURE } else { printed })
}

fn describe(rule: &Map<String, Value>) -> String {
    let setting = |key| rule.get(key).unwrap_or(&Value::Null);
    let matched = |key| words(&setting("match")[key], ", ");
    let or = |text: &str, default: &str| if text.trim().is_empty() { default.into() } else { text.trim().to_owned() };
    let methods = or(&matched("methods"), "any method,");
    let patterns = or(&[matched("paths"), matched("routes")].join(" "), "any path");
    let mut lines = vec![format!("{}: {methods} {patterns}", words(setting("id"), ""))];
    for key in ["priority", "headers"] {
        let matched = matched(key);
        lines.extend((!matched.is_empty()).then(|| format!("only {key}: {matched}")));
    }
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
