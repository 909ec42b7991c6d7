//! A report as one HTML page without scripts and external resources: [`page`].
//!
//! It computes nothing. Invariant: every text of a log or a policy passes [`Escaped`].

#[path = "../../../admin/escape.rs"]
mod escape;

use std::fmt;

use askama::{Template, filters::Escaper};

use self::escape::escaped;
use super::{
    super::command::printable,
    envelope::{Bucket, Recommendation},
    report::{Report, RuleReport, shortened},
};

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'r> {
    report: &'r Report,
    from: &'r str,
    to: &'r str,
    /// The most requests of a bin.
    highest: u64,
}

/// The escaper of the template.
#[derive(Clone, Copy)]
struct Escaped;

impl Escaper for Escaped {
    fn write_escaped_str<W: fmt::Write>(&self, mut page: W, text: &str) -> fmt::Result {
        page.write_str(&escaped(&printable(text)))
    }
}

/// The whole page.
pub(super) fn page(report: &Report) -> Result<String, askama::Error> {
    let (from, to) = (report.from.as_deref().unwrap_or("-"), report.to.as_deref().unwrap_or("-"));
    let highest = report.timeline.bins.iter().map(|[allowed, rejected]| allowed + rejected).max();
    Page { report, from, to, highest: highest.unwrap_or(0) }.render()
}

impl RuleReport {
    /// The most requests of a tenant that is listed.
    fn most(&self) -> u64 {
        self.top.iter().map(|tenant| tenant.numbers.requests).max().unwrap_or(1)
    }
}

impl Recommendation {
    /// The rates up to the one beyond which higher ones need the same burst.
    fn shown(&self) -> &[Bucket] {
        let least = self.curve.last().map(|bucket| bucket.burst);
        let last = self.curve.iter().position(|bucket| Some(bucket.burst) == least);
        &self.curve[..last.map_or(0, |last| last + 1)]
    }

    fn most(&self) -> u64 {
        self.curve.iter().map(|bucket| bucket.burst).max().unwrap_or(1)
    }
}
