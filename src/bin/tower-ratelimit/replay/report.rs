//! What a replay says: [`Report`], as data and as lines for a person.
//!
//! It counts nothing. Invariant: it says all that it leaves out, such as tenants beyond the
//! first.

use askama::Template;
use serde::Serialize;
use tower_ratelimit::time::Timestamp;

use super::{
    envelope::{Bucket, Recommendation, recommend},
    tally::{Counts, RuleTally, Tally, TenantTally},
    timeline::Timeline,
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
    pub(super) lines: LogLines,
    /// Of the first and the last request.
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) total: Numbers,
    /// To which no rule applied.
    pub(super) unlimited: u64,
    /// That the server answered with 429, and whose status differs from the replay.
    pub(super) logged_rejections: u64,
    pub(super) decided_otherwise: u64,
    pub(super) rules: Vec<RuleReport>,
    pub(super) timeline: Timeline,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct RuleReport {
    pub(super) rule: String,
    #[serde(flatten)]
    pub(super) numbers: Numbers,
    pub(super) tenants: usize,
    /// Requests of tenants that were too many to tell apart.
    pub(super) of_other_tenants: u64,
    /// Those with most rejections, then with most requests.
    pub(super) top: Vec<TenantReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recommendation: Option<Recommendation>,
}

#[derive(Debug, Serialize)]
pub(super) struct TenantReport {
    pub(super) tenant: String,
    #[serde(flatten)]
    pub(super) numbers: Numbers,
}

#[derive(Debug, Serialize)]
pub(super) struct Numbers {
    pub(super) requests: u64,
    pub(super) allowed: u64,
    pub(super) rejected: u64,
    pub(super) delayed: u64,
    pub(super) mean_wait_ms: u64,
    pub(super) longest_wait_ms: u64,
    pub(super) peak_per_second: u64,
    /// Against the other policy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) newly_rejected: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) newly_allowed: Option<u64>,
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
}

impl Bucket {
    /// As in a policy file.
    pub(super) fn tier(&self) -> String {
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
    pub(super) fn cells(&self) -> [String; 9] {
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
