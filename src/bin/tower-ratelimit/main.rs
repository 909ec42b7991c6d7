//! The program `tower-ratelimit`: checks policies, explains what they do, and replays logs.
//!
//! It decides nothing: the library does. Invariant: what it prints holds no control
//! character of a file or an argument, so that none reaches the terminal.

mod command;
mod replay;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use tower_ratelimit::{Descriptor, Priority, RateLimiter, tenant::named_or_address};

use self::command::{Failure, PolicyFile, pair, print, print_json, printable, usage};

/// Checks rate limit policies, explains what they do, and replays access logs under them
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(Check),
    Explain(Explain),
    Replay(replay::Arguments),
    /// Prints the JSON Schema of a policy file
    Schema,
}

/// Tested against the parser, and with the descriptions of `docs/policy.md`.
const SCHEMA: &str = include_str!("../../../docs/policy.schema.json").trim_ascii_end();

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let result = match arguments.command {
        Command::Check(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Schema => print(SCHEMA),
    };
    result.unwrap_or_else(|failure| {
        // If this fails, there is no other output to report it on.
        let _ = writeln!(io::stderr(), "{}", printable(&failure.message));
        ExitCode::from(failure.code)
    })
}

/// Checks a policy: prints what each rule does, and warnings. Exits with 1 if it is invalid
#[derive(Debug, clap::Args)]
struct Check {
    #[command(flatten)]
    policy: PolicyFile,
    /// Exits with 1 if there is a warning
    #[arg(long)]
    deny_warnings: bool,
}

impl Check {
    /// Reads the policy's own form, which names every setting that is not at its default.
    fn run(&self) -> Result<ExitCode, Failure> {
        let policy = self.policy.read()?;
        let written = serde_json::to_value(&policy).unwrap_or_default();
        let rules = written["rules"].as_array().into_iter().flatten().filter_map(Value::as_object);
        let mut lines: Vec<String> = rules.map(describe).collect();
        let warnings = policy.warnings();
        lines.extend(warnings.iter().map(|warning| format!("warning: {warning}")));
        lines.push(format!("{}: {} rules, {} warnings", self.policy.name(), policy.rules().len(), warnings.len()));
        let printed = print(&lines.join("\n"))?;
        Ok(if self.deny_warnings && !warnings.is_empty() { ExitCode::FAILURE } else { printed })
    }
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

/// Says which rules apply to a request, why the others do not, and where its tiers come from
#[derive(Debug, clap::Args)]
struct Explain {
    #[command(flatten)]
    policy: PolicyFile,
    /// The request's method
    #[arg(long, default_value = "GET")]
    method: String,
    /// The request's path
    #[arg(long)]
    path: String,
    /// The route that the router matched, for rules with `routes`
    #[arg(long)]
    route: Option<String>,
    /// The tenant. An IP address is a tenant that is identified by its address
    #[arg(long)]
    tenant: Option<String>,
    /// The tenant's plan
    #[arg(long)]
    plan: Option<String>,
    /// Another key of the request, such as `ip=192.0.2.7`; may be given several times
    #[arg(long = "key", value_name = "NAME=VALUE", value_parser = pair)]
    keys: Vec<(String, String)>,
    /// A header of the request, for rules with `headers`; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// How much the request matters: low, normal, high or critical
    #[arg(long)]
    priority: Option<Priority>,
    /// The request's cost in units
    #[arg(long, default_value_t = 1)]
    cost: u64,
    /// Prints JSON instead of lines
    #[arg(long)]
    json: bool,
}

impl Explain {
    /// Asks the library on counters that nothing has used, so nothing is charged.
    fn run(&self) -> Result<ExitCode, Failure> {
        let policy = self.policy.read()?;
        let invalid = |error: &dyn ToString| Failure::invalid(format!("{}: {}", self.policy.name(), error.to_string()));
        let limiter = RateLimiter::new(policy).map_err(|error| invalid(&error))?;
        let headers = self.headers.iter().cloned().collect::<HeaderMap>();
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| invalid(&error))?;
        let explanation = runtime.block_on(limiter.explain(&self.descriptor().headers(&headers)));
        if self.json { print_json(&explanation) } else { print(&explanation.to_string()) }
    }

    fn descriptor(&self) -> Descriptor<'_> {
        let path = self.path.split('?').next().unwrap_or_default();
        let mut descriptor = Descriptor::new(path).method(&self.method).cost(self.cost);
        if let Some(route) = &self.route {
            descriptor = descriptor.route(route);
        }
        if let Some(tenant) = &self.tenant {
            descriptor = descriptor.tenant(named_or_address(tenant));
        }
        if let Some(plan) = &self.plan {
            descriptor = descriptor.plan(plan);
        }
        if let Some(priority) = self.priority {
            descriptor = descriptor.priority(priority);
        }
        self.keys.iter().fold(descriptor, |descriptor, (name, value)| descriptor.key(name, named_or_address(value)))
    }
}

/// An argument such as `mcp-method: tools/call`.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), &'static str> {
    let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE")?;
    let name = name.parse().map_err(|_| "is not the name of a header")?;
    Ok((name, value.trim().parse().map_err(|_| "is not the value of a header")?))
}
