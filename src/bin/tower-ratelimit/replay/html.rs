//! A report as one HTML page without scripts and external resources: [`page`].
//!
//! It computes nothing but the height of bars. Invariant: every text of a log or a policy
//! passes [`escape`].

use std::fmt::Write;

use super::report::{Numbers, Report, TimelineReport, shortened};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:76em;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0;width:100%}td,th{padding:.25em .6em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left;word-break:break-all}tr.rule{font-weight:600;background:#f4f6f8}\
svg{width:100%;height:12em;background:#fafafa}.allowed{fill:#7aa6d8}.rejected{fill:#d1495b}code{background:#f0f0f0}";

const COLUMNS: [&str; 9] = [
    "requests",
    "allowed",
    "rejected",
    "delayed",
    "mean wait",
    "longest wait",
    "peak per second",
    "newly rejected",
    "newly allowed",
];

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let mut page = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Replay</title>");
    // Writing to a string cannot fail.
    let mut add = |html: String| _ = writeln!(page, "{html}");
    add(format!("<style>{STYLE}</style><h1>Replay</h1>"));
    let span = |time: &Option<String>| escape(time.as_deref().unwrap_or("-"));
    add(format!("<p>{} lines, from {} to {}.", report.lines.read, span(&report.from), span(&report.to)));
    add(format!(
        "{} answered with 429 in the log; decided otherwise: {}. No rule applied to {}.</p>",
        report.logged_rejections, report.decided_otherwise, report.unlimited
    ));
    report.notes.iter().for_each(|note| add(format!("<p>Note: {}.</p>", escape(note))));
    add(chart(&report.timeline));
    let columns: Vec<_> = COLUMNS.iter().map(|column| format!("<th>{column}</th>")).collect();
    add(format!("<table><tr><th>rule and tenant</th>{}</tr>", columns.concat()));
    add(row("all", &report.total, true));
    for rule in &report.rules {
        add(row(&rule.rule, &rule.numbers, true));
        rule.top.iter().for_each(|tenant| add(row(&tenant.tenant, &tenant.numbers, false)));
    }
    add("</table>".into());
    for rule in &report.rules {
        if let Some(recommendation) = &rule.recommendation {
            add(format!(
                "<h2>Recommended for {}</h2><p><code>{}</code></p>",
                escape(&rule.rule),
                recommendation.chosen.tier()
            ));
            add("<table><tr><th>requests a minute</th><th>burst</th></tr>".into());
            recommendation
                .curve
                .iter()
                .for_each(|bucket| add(format!("<tr><td>{}</td><td>{}</td></tr>", bucket.limit, bucket.burst)));
            add("</table>".into());
        }
    }
    if report.lines.unreadable > 0 {
        add(format!("<h2>{} lines cannot be read</h2><ul>", report.lines.unreadable));
        report.lines.examples.iter().for_each(|example| add(format!("<li><code>{}</code></li>", escape(example))));
        add("</ul>".into());
    }
    page
}

fn row(name: &str, numbers: &Numbers, is_rule: bool) -> String {
    let cells: Vec<_> = numbers.cells().iter().map(|cell| format!("<td>{cell}</td>")).collect();
    let class = if is_rule { " class=\"rule\"" } else { "" };
    format!("<tr{class}><td>{}</td>{}</tr>", escape(&shortened(name)), cells.concat())
}

/// A bar for each bin, the rejected ones on top.
fn chart(timeline: &TimelineReport) -> String {
    let most = timeline.bins.iter().map(|[allowed, rejected]| allowed + rejected).max().unwrap_or(0).max(1);
    let mut bars = String::new();
    for (x, [allowed, rejected]) in timeline.bins.iter().enumerate() {
        #[allow(clippy::cast_precision_loss, reason = "a height in a picture")]
        let height = |number: u64| number as f64 * 100.0 / most as f64;
        let (allowed, rejected) = (height(*allowed), height(*rejected));
        let mut bar = |class: &str, top: f64, height: f64| {
            _ = write!(bars, "<rect class=\"{class}\" x=\"{x}\" y=\"{top:.2}\" width=\"0.9\" height=\"{height:.2}\"/>");
        };
        bar("allowed", 100.0 - allowed, allowed);
        bar("rejected", 100.0 - allowed - rejected, rejected);
    }
    format!(
        "<h2>Over time</h2><svg viewBox=\"0 0 {} 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"requests over time\">{bars}</svg>\
         <p>Allowed (blue) and rejected (red); a bar is {} s, the highest {most} requests.</p>",
        timeline.bins.len().max(1),
        timeline.bin_seconds
    )
}

/// As text or an attribute's value. Control characters are shown by their number.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            control if control.is_control() => escaped.extend(control.escape_unicode()),
            other => escaped.push(other),
        }
    }
    escaped
}
