//! A report as one HTML page without scripts and external resources: [`page`].
//!
//! It computes nothing but the size of bars. Invariant: every text of a log or a policy
//! passes [`text`].

#[path = "../../../admin/escape.rs"]
mod escape;

use std::fmt::Write;

use self::escape::escaped;
use super::{
    super::output::printable,
    envelope::{Bucket, Recommendation},
    report::{Numbers, Report, RuleReport, shortened},
    timeline::Timeline,
};

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76em; padding: 1em; color: #1c2733; background: #f6f8fa }
h1 { font-size: 1.5em; margin: 0 }
h2 { font-size: 1.1em; margin: 0 0 .5em }
section { background: #fff; border: 1px solid #d8dee4; border-radius: 8px; margin: 1em 0; padding: 1em; overflow-x: auto }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid #e7ebef; padding: .25em .6em; text-align: right }
th { color: #57606a; font-weight: 600 }
td:first-child, th:first-child { text-align: left; overflow-wrap: anywhere; min-width: 9em }
tr.rule { font-weight: 600; background: #f6f8fa }
.bar { width: 12em; min-width: 5em; text-align: left; white-space: nowrap }
.bar i { display: inline-block; height: .8em }
.bar .allowed, i.allowed { background: #7aa6d8 }
.bar .rejected, i.rejected { background: #c8323c }
svg { display: block; width: 100%; height: 12em; background: #f6f8fa }
svg .allowed { fill: #7aa6d8 }
svg .rejected { fill: #c8323c }
.axis { display: flex; justify-content: space-between; color: #57606a }
.axis i { display: inline-block; height: .8em; width: .8em }
";

const COLUMNS: [&str; 11] = [
    "rule and tenant",
    "",
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
    add(format!("<style>{STYLE}</style><h1>Replay</h1><section>"));
    let (from, to) = (report.from.as_deref().unwrap_or("-"), report.to.as_deref().unwrap_or("-"));
    add(format!("<p>{} lines, from {} to {}.", report.lines.read, text(from), text(to)));
    add(format!(
        "{} answered with 429 in the log; decided otherwise: {}. No rule applied to {}.</p>",
        report.logged_rejections, report.decided_otherwise, report.unlimited
    ));
    report.notes.iter().for_each(|note| add(format!("<p>Note: {}.</p>", text(note))));
    add("</section>".into());
    add(format!("<section><h2>Over time</h2>{}", chart(&report.timeline)));
    add(format!("<p class=\"axis\"><span>{}</span><span>{}</span></p></section>", text(from), text(to)));
    add("<section><h2>Rules, and their top tenants</h2><table>".into());
    add(cells("th", "", COLUMNS.map(str::to_owned)));
    add(row("all", &report.total, report.total.requests, true));
    for rule in &report.rules {
        add(row(&rule.rule, &rule.numbers, report.total.requests, true));
        let most = rule.top.iter().map(|tenant| tenant.numbers.requests).max().unwrap_or(0);
        rule.top.iter().for_each(|tenant| add(row(&tenant.tenant, &tenant.numbers, most, false)));
        if rule.of_other_tenants > 0 {
            let (requests, tenants) = (rule.of_other_tenants, rule.tenants);
            add(format!("<tr><td>and {requests} requests of tenants beyond the first {tenants}</td></tr>"));
        }
    }
    add("</table></section>".into());
    report.rules.iter().for_each(|rule| add(recommended(rule)));
    if report.lines.unreadable > 0 {
        add(format!("<section><h2>{} lines cannot be read</h2><ul>", report.lines.unreadable));
        report.lines.examples.iter().for_each(|example| add(format!("<li><code>{}</code></li>", text(example))));
        add("</ul></section>".into());
    }
    page
}

/// `most` requests fill the bar.
fn row(name: &str, numbers: &Numbers, most: u64, is_rule: bool) -> String {
    let first = [text(&shortened(name)), bar(&[("rejected", numbers.rejected), ("allowed", numbers.allowed)], most)];
    cells("td", if is_rule { " class=\"rule\"" } else { "" }, first.into_iter().chain(numbers.cells()))
}

/// A row of a table. The second column has bars.
fn cells(element: &str, class: &str, cells: impl IntoIterator<Item = String>) -> String {
    let mut row = format!("<tr{class}>");
    for (column, cell) in cells.into_iter().enumerate() {
        let class = if column == 1 { " class=\"bar\"" } else { "" };
        _ = write!(row, "<{element}{class}>{cell}</{element}>");
    }
    row + "</tr>"
}

fn bar(parts: &[(&str, u64)], most: u64) -> String {
    let part = |(class, number): &(&str, u64)| {
        format!("<i class=\"{class}\" style=\"width:{:.1}%\"></i>", percent(*number, most))
    };
    parts.iter().map(part).collect()
}

#[allow(clippy::cast_precision_loss, reason = "a length in a picture")]
fn percent(number: u64, most: u64) -> f64 {
    number as f64 * 100.0 / most.max(1) as f64
}

/// A bar for each bin, the rejected ones at the bottom, so that their shape is seen.
fn chart(timeline: &Timeline) -> String {
    let most = timeline.bins.iter().map(|[allowed, rejected]| allowed + rejected).max().unwrap_or(0);
    let mut bars = String::new();
    for (x, [allowed, rejected]) in timeline.bins.iter().enumerate() {
        let (allowed, rejected) = (percent(*allowed, most), percent(*rejected, most));
        let mut bar = |class: &str, top: f64, height: f64| {
            _ = write!(bars, "<rect class=\"{class}\" x=\"{x}\" y=\"{top:.2}\" width=\"0.9\" height=\"{height:.2}\"/>");
        };
        bar("rejected", 100.0 - rejected, rejected);
        bar("allowed", 100.0 - rejected - allowed, allowed);
    }
    format!(
        "<p class=\"axis\"><span><i class=\"rejected\"></i> rejected, <i class=\"allowed\"></i> allowed</span>\
         <span>a bar is {} s, the highest {most} requests</span></p>\
         <svg viewBox=\"0 0 {} 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"requests over time\">{bars}</svg>",
        timeline.bin_seconds,
        timeline.bins.len().max(1),
    )
}

/// The recommended tier of a rule, and the bursts that other rates need.
fn recommended(rule: &RuleReport) -> String {
    let Some(Recommendation { chosen, curve }) = &rule.recommendation else { return String::new() };
    let most = curve.iter().map(|bucket| bucket.burst).max().unwrap_or(0);
    let row = |bucket: &Bucket| {
        let class = if bucket == chosen { " class=\"rule\"" } else { "" };
        let bar = bar(&[("allowed", bucket.burst)], most);
        cells("td", class, [bucket.limit.to_string(), bar, bucket.burst.to_string()])
    };
    // Beyond it, higher rates need the same.
    let least = curve.last().map_or(0, |bucket| bucket.burst);
    let shown = curve.iter().position(|bucket| bucket.burst == least).map_or(curve.len(), |last| last + 1);
    format!(
        "<section><h2>Recommended for {}</h2><p><code>{}</code></p><table>{}{}</table></section>",
        text(&shortened(&rule.rule)),
        chosen.tier(),
        cells("th", "", ["requests a minute", "", "the burst that it needs"].map(str::to_owned)),
        curve.iter().take(shown).map(row).collect::<String>()
    )
}

/// As content of an element.
fn text(text: &str) -> String {
    escaped(&printable(text))
}
