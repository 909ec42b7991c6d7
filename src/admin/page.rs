//! The report as HTML, rendered here, so that reading needs no scripts: [`page`].
//!
//! It computes nothing. Invariant: every text passes [`escaped`], and only the style and the
//! script of `page.html` may run.

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderValue;
use sha2::{Digest, Sha256};

use super::{
    escape::escaped,
    report::{BackendReport, OverrideReport, Report, RuleReport, SourceReport, TopReport},
    text::lines,
};
use crate::overload::{Readings, SignalReading};

const TEMPLATE: &str = include_str!("page.html");

/// The whole page, with the lines of an explanation, if one was asked for.
pub(super) fn page(report: &Report, explanation: &str) -> String {
    let (start, rest) = TEMPLATE.split_once("<!--report-->").unwrap_or_default();
    let (middle, end) = rest.split_once("<!--explanation-->").unwrap_or_default();
    let explanation = match explanation.is_empty() {
        true => String::new(),
        false => format!("<pre>{}</pre>", escaped(&lines(explanation).join("\n"))),
    };
    [start, &sections(report), middle, &explanation, end].concat()
}

fn sections(report: &Report) -> String {
    let age = report.policy.replaced_seconds_ago;
    let age = age.map_or_else(|| "as the limiter was built".to_owned(), |age| format!("in force for {age} s"));
    let sources = report.sources.iter().map(source).collect::<String>();
    let policy = format!("<p>{} rules, version {}, {age}.</p>{sources}", report.rules.len(), report.policy.version);
    [
        section("Policy", &policy),
        section("Rules", &rules(&report.rules)),
        section("Top tenants", &top_tenants(report.top_tenants.as_deref())),
        section("Requests since the start", &requests(&report.requests)),
        section("Backend", &backend(&report.backend)),
        report.overload.as_ref().map_or_else(String::new, |readings| section("Overload", &overload(readings))),
        section("Overrides and blocks", &overrides(&report.overrides)),
    ]
    .concat()
}

fn section(title: &str, content: &str) -> String {
    format!("<section><h2>{title}</h2>{content}</section>\n")
}

fn source(source: &SourceReport) -> String {
    let SourceReport { is_current, applied, rejected, unavailable, error } = source;
    let counts = format!("{applied} applied, {rejected} rejected, {unavailable} times unavailable");
    match error {
        Some(error) => format!("<p class=bad>The last reload failed ({counts}): {}</p>", escaped(error)),
        None if *is_current => format!("<p>Its source holds the same ({counts}).</p>"),
        None => "<p>Its source has not answered yet.</p>".to_owned(),
    }
}

fn requests(requests: &[(&str, u64)]) -> String {
    let header: Vec<_> = requests.iter().map(|(name, _)| name.replace('_', " ")).collect();
    let header: Vec<_> = header.iter().map(String::as_str).collect();
    table(&header, std::iter::once(requests.iter().map(|(_, count)| count.to_string())))
}

fn rules(rules: &[RuleReport]) -> String {
    let header = [
        "rule",
        "tiers",
        "allowed",
        "delayed",
        "rejected",
        "shadow: allowed",
        "rejected",
        "failed: open",
        "closed",
        "local",
    ];
    let row = |rule: &RuleReport| {
        let kind = if rule.kind.is_empty() { String::new() } else { format!(" ({})", rule.kind) };
        let names = [format!("{}{kind}", rule.rule), rule.tiers.join("; ")];
        names.into_iter().chain(rule.requests.iter().map(|(_, count)| count.to_string())).collect::<Vec<_>>()
    };
    table(&header, rules.iter().map(row))
}

fn top_tenants(top: Option<&[TopReport]>) -> String {
    let Some(top) = top else {
        return "<p>They are not counted: <code>builder().top_tenants(256)</code> asks for it.</p>".to_owned();
    };
    let row = |top: &TopReport| {
        let tenant = top.tenant.clone().unwrap_or_else(|| "(anonymous)".to_owned());
        let counts = [top.units, top.units_error, top.rejections, top.rejections_error];
        let least = format!("{:.0}%", top.least_remaining * 100.0);
        [top.rule.clone(), tenant].into_iter().chain(counts.map(|count| count.to_string())).chain([least])
    };
    let header = ["rule", "tenant", "units", "± at most", "rejections", "± at most", "least remaining"];
    let first = "<p>Of each rule, the ten with most units, with most rejections, and with least remaining. \
                 Counts are estimates, and are halved each minute.</p>";
    format!("{first}{}", table(&header, top.iter().map(row)))
}

fn backend(backend: &BackendReport) -> String {
    let facts = [
        ("type", backend.name.clone()),
        ("counters in this process", backend.counters.to_string()),
        ("counters of the fallback limiter", backend.fallback_counters.to_string()),
    ];
    let facts = facts.iter().chain(&backend.state);
    table(&[], facts.map(|(name, value)| [(*name).to_owned(), value.clone()]))
}

fn overload(overload: &Readings) -> String {
    let row = |signal: &SignalReading| {
        let value = signal.value.map_or_else(|| "fails".to_owned(), |value| format!("{value:.3}"));
        [signal.name.clone(), value, signal.threshold.to_string()]
    };
    let signals = table(&["signal", "value", "threshold"], overload.signals.iter().map(row));
    format!("<p>{:.1}% of requests are shed.</p>{signals}", overload.shed_fraction * 100.0)
}

fn overrides(overrides: &[OverrideReport]) -> String {
    if overrides.is_empty() {
        return "<p>None.</p>".to_owned();
    }
    let seconds = |seconds: Option<u64>| seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s"));
    let row = |own: &OverrideReport| {
        [own.tenant.clone(), own.tiers.join("; "), seconds(own.tiers_for_seconds), seconds(own.blocked_for_seconds)]
    };
    table(&["tenant", "tiers", "for", "blocked for"], overrides.iter().map(row))
}

/// Escapes every cell.
fn table<R: IntoIterator<Item = String>>(header: &[&str], rows: impl Iterator<Item = R>) -> String {
    let header: String = header.iter().map(|name| format!("<th>{name}")).collect();
    let row = |row: R| {
        let cells: String = row.into_iter().map(|text| format!("<td>{}", escaped(&text))).collect();
        format!("<tr>{cells}\n")
    };
    format!("<table><tr>{header}\n{}</table>", rows.map(row).collect::<String>())
}

/// Allows the style and the script of the template, by their hashes, and nothing else.
pub(super) fn content_security_policy() -> HeaderValue {
    static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
        let hash = |element: &str| {
            let after = TEMPLATE.split_once(&format!("<{element}>")).unwrap_or_default().1;
            let content = after.split_once(&format!("</{element}>")).unwrap_or_default().0;
            STANDARD.encode(Sha256::digest(content))
        };
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            hash("style"),
            hash("script")
        );
        HeaderValue::try_from(policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
    });
    POLICY.clone()
}
