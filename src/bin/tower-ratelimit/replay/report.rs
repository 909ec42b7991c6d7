//! What a replay says, [`Report`]: as data, as lines for a person, and as one HTML page without
//! scripts and external resources.
//!
//! It counts nothing. Invariants: it says all that it leaves out, such as tenants beyond the
//! first; on the page, every text of a log or a policy passes [`Escaped`].

#[path = "../../../admin/escape.rs"]
mod escape;

use std::fmt;

use askama::{Template, filters::Escaper};
use serde::Serialize;
use tower_ratelimit::time::Timestamp;

use self::escape::escaped;
use super::{
    super::command::printable,
    tally::{Bucket, Counts, Recommendation, RuleTally, Tally, TenantTally, Timeline, recommend},
};

/// The lines of the log.
#[derive(Debug, Default, Serialize)]
pub(super) struct LogLines {
    pub(super) read: u64,
    pub(super) unreadable: u64,
    /// The first of these, each with its reason.
    pub(super) examples: Vec<String>,
}

/// `Display` writes lines for a person.
#[derive(Debug, Serialize, Template)]
#[template(path = "report.txt")]
pub(super) struct Report {
    lines: LogLines,
    /// Of the first and the last request.
    from: Option<String>,
    to: Option<String>,
    total: Numbers,
    /// To which no rule applied.
    unlimited: u64,
    /// That the server answered with 429, and whose status differs from the replay.
    logged_rejections: u64,
    decided_otherwise: u64,
    rules: Vec<RuleReport>,
    timeline: Timeline,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RuleReport {
    rule: String,
    #[serde(flatten)]
    numbers: Numbers,
    tenants: usize,
    /// Requests of tenants that were too many to tell apart.
    of_other_tenants: u64,
    /// Those with most rejections, then with most requests.
    top: Vec<TenantReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recommendation: Option<Recommendation>,
}

#[derive(Debug, Serialize)]
struct TenantReport {
    tenant: String,
    #[serde(flatten)]
    numbers: Numbers,
}

#[derive(Debug, Serialize)]
struct Numbers {
    requests: u64,
    allowed: u64,
    rejected: u64,
    delayed: u64,
    mean_wait_ms: u64,
    longest_wait_ms: u64,
    peak_per_second: u64,
    /// Against the other policy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    newly_rejected: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    newly_allowed: Option<u64>,
}

/// What a report has beside the numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The most tenants that are listed of a rule.
    pub(super) top: usize,
    pub(super) is_compared: bool,
    pub(super) recommend: Option<f64>,
}

impl Report {
    pub(super) fn new(tally: &Tally, lines: LogLines, notes: Vec<String>, shape: Shape) -> Self {
        let time = |time: u64| Timestamp::from_nanos(time).to_string();
        Self {
            lines,
            from: tally.span.map(|(first, _)| time(first)),
            to: tally.span.map(|(_, last)| time(last)),
            total: Numbers::new(&tally.total, shape),
            unlimited: tally.unlimited,
            logged_rejections: tally.logged_rejections,
            decided_otherwise: tally.otherwise,
            rules: tally.rules.iter().map(|rule| RuleReport::new(rule, shape)).collect(),
            timeline: tally.timeline.clone(),
            notes,
        }
    }

    /// The whole page.
    pub(super) fn page(&self) -> Result<String, askama::Error> {
        let (from, to) = (self.from.as_deref().unwrap_or("-"), self.to.as_deref().unwrap_or("-"));
        let highest = self.timeline.bins.iter().map(|[allowed, rejected]| allowed + rejected).max();
        Page { report: self, from, to, highest: highest.unwrap_or(0) }.render()
    }
}

impl Bucket {
    /// As in a policy file.
    fn tier(&self) -> String {
        format!("{{ limit: {}, window: 1m, burst: {} }}", self.limit, self.burst)
    }
}

impl RuleReport {
    fn new(rule: &RuleTally, shape: Shape) -> Self {
        let mut tenants: Vec<_> = rule.tenants.iter().map(|(name, tenant)| (&**name, tenant)).collect();
        let rank = |counts: &Counts| (counts.rejected, counts.requests);
        tenants.sort_unstable_by(|(one, left), (other, right)| {
            rank(&right.counts).cmp(&rank(&left.counts)).then_with(|| one.cmp(other))
        });
        let envelopes = || rule.tenants.values().filter_map(|tenant| tenant.envelope.as_deref());
        let report = |(name, tenant): &(&str, &TenantTally)| TenantReport {
            tenant: (*name).to_owned(),
            numbers: Numbers::new(&tenant.counts, shape),
        };
        Self {
            rule: rule.id.clone(),
            numbers: Numbers::new(&rule.counts, shape),
            tenants: tenants.len(),
            of_other_tenants: rule.others,
            top: tenants.iter().take(shape.top).map(report).collect(),
            recommendation: shape.recommend.and_then(|percent| recommend(envelopes(), percent)),
        }
    }

    /// The most requests of a tenant that is listed.
    fn most(&self) -> u64 {
        self.top.iter().map(|tenant| tenant.numbers.requests).max().unwrap_or(1)
    }
}

impl Numbers {
    fn new(counts: &Counts, shape: Shape) -> Self {
        let compared = |number: u64| shape.is_compared.then_some(number);
        Self {
            requests: counts.requests,
            allowed: counts.requests - counts.rejected,
            rejected: counts.rejected,
            delayed: counts.delayed,
            mean_wait_ms: counts.waited.checked_div(counts.delayed).unwrap_or(0) / 1_000_000,
            longest_wait_ms: counts.longest_wait / 1_000_000,
            peak_per_second: counts.peak,
            newly_rejected: compared(counts.newly_rejected),
            newly_allowed: compared(counts.newly_allowed),
        }
    }

    /// The numbers in the order of the tables' columns.
    fn cells(&self) -> [String; 9] {
        let compared = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        [
            self.requests.to_string(),
            self.allowed.to_string(),
            self.rejected.to_string(),
            self.delayed.to_string(),
            format!("{}ms", self.mean_wait_ms),
            format!("{}ms", self.longest_wait_ms),
            self.peak_per_second.to_string(),
            compared(self.newly_rejected),
            compared(self.newly_allowed),
        ]
    }
}

/// A name, in one line, of which no more is shown than the line holds.
pub(super) fn shortened(name: &str) -> String {
    const MOST: usize = 100;
    let name = name.replace('\n', "\\n");
    let cut = name.chars().count() > MOST;
    name.chars().take(MOST).chain(cut.then_some('…')).collect()
}

/// The page of a report.
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
