//! What the decisions on a log's requests add up to: [`Tally`], over time, [`Timeline`], and as
//! the limits that would have admitted a tenant's requests, [`Envelope`].
//!
//! It keeps no requests. Invariant: its memory is bounded by the number of rules and
//! [`MOST_TENANTS`], however long the log is. A rejection under another policy changes no
//! envelope.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::Serialize;
use tower_ratelimit::decision::Decision;

use super::record::Record;

/// The most tenants of a rule that are told apart: later ones only count in the rule.
const MOST_TENANTS: usize = 100_000;

/// All that is counted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) total: Counts,
    /// To which no rule applied.
    pub(super) unlimited: u64,
    /// That the server answered with 429.
    pub(super) logged_rejections: u64,
    /// Of which the server's status and the decision do not agree.
    pub(super) otherwise: u64,
    /// The times of the first and the last request.
    pub(super) span: Option<(u64, u64)>,
    pub(super) timeline: Timeline,
    pub(super) rules: Vec<RuleTally>,
    by_id: HashMap<String, usize, RandomState>,
    /// Whether envelopes are kept for a recommendation.
    recommends: bool,
}

#[derive(Debug, Default)]
pub(super) struct RuleTally {
    pub(super) id: String,
    pub(super) counts: Counts,
    pub(super) tenants: HashMap<Box<str>, TenantTally, RandomState>,
    /// Requests of tenants beyond [`MOST_TENANTS`].
    pub(super) others: u64,
}

#[derive(Debug, Default)]
pub(super) struct TenantTally {
    pub(super) counts: Counts,
    pub(super) envelope: Option<Box<Envelope>>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) rejected: u64,
    pub(super) delayed: u64,
    /// Nanoseconds, of all that were delayed.
    pub(super) waited: u64,
    pub(super) longest_wait: u64,
    pub(super) newly_rejected: u64,
    pub(super) newly_allowed: u64,
    /// The most requests in one second.
    pub(super) peak: u64,
    second: u64,
    in_second: u64,
}

/// What became of a request; under a rule, what the rule did.
#[derive(Clone, Copy, Debug)]
struct Change {
    time: u64,
    rejects: bool,
    wait: u64,
    /// Whether the other policy rejected it; `None` without one.
    rejected_before: Option<bool>,
}

impl Tally {
    /// `rules` are listed in this order, also where none applies.
    pub(super) fn new<'r>(rules: impl Iterator<Item = &'r str>, recommends: bool) -> Self {
        let rules: Vec<_> = rules.map(|id| RuleTally { id: id.into(), ..RuleTally::default() }).collect();
        let by_id = rules.iter().enumerate().map(|(index, rule)| (rule.id.clone(), index)).collect();
        Self { rules, by_id, recommends, ..Self::default() }
    }

    /// Counts a request, by its decision under the policy, and under the other one if there is one.
    pub(super) fn add(&mut self, record: &Record, decisions: &[Option<Decision>]) {
        let mut rejected = decisions.iter().map(|decision| !decision.as_ref().is_some_and(Decision::is_allowed));
        let (rejects, rejected_before) = (rejected.next().unwrap_or(true), rejected.next());
        let decision = decisions.first().and_then(Option::as_ref);
        let wait = decision.map_or(0, |decision| u64::try_from(decision.wait().as_nanos()).unwrap_or(u64::MAX));
        let change = Change { time: record.time, rejects, wait, rejected_before };
        self.total.add(change);
        let (first, last) = self.span.unwrap_or((record.time, record.time));
        self.span = Some((first.min(record.time), last.max(record.time)));
        self.timeline.add(record.time, rejects);
        if let Some(status) = record.status {
            self.logged_rejections += u64::from(status == 429);
            self.otherwise += u64::from((status == 429) != rejects);
        }
        let tiers = decision.map_or(&[][..], Decision::tiers);
        self.unlimited += u64::from(tiers.is_empty() && !rejects);
        let mut rest = tiers;
        while let [first, ..] = rest {
            let own = rest.iter().take_while(|tier| tier.rule() == first.rule()).count();
            let (tiers, others) = rest.split_at(own);
            let violated = tiers.iter().any(|tier| tier.is_violated());
            // A request is rejected, or delayed, by the rules whose tiers it violates.
            let wait = if violated { wait } else { 0 };
            self.add_to_rule(first.rule(), record, Change { rejects: rejects && violated, wait, ..change });
            rest = others;
        }
    }

    fn add_to_rule(&mut self, id: &str, record: &Record, change: Change) {
        let Some(rule) = self.by_id.get(id).map(|index| &mut self.rules[*index]) else { return };
        rule.counts.add(change);
        let name = record.tenant.as_deref().unwrap_or("anonymous");
        if !rule.tenants.contains_key(name) {
            if rule.tenants.len() >= MOST_TENANTS {
                rule.others += 1;
                return;
            }
            let envelope = self.recommends.then(Box::default);
            rule.tenants.insert(name.into(), TenantTally { envelope, ..TenantTally::default() });
        }
        if let Some(tenant) = rule.tenants.get_mut(name) {
            tenant.counts.add(change);
            if let Some(envelope) = &mut tenant.envelope {
                envelope.add(change.time);
            }
        }
    }
}

impl Counts {
    fn add(&mut self, change: Change) {
        self.requests += 1;
        self.rejected += u64::from(change.rejects);
        if change.wait > 0 && !change.rejects {
            self.delayed += 1;
            self.waited = self.waited.saturating_add(change.wait);
            self.longest_wait = self.longest_wait.max(change.wait);
        }
        self.newly_rejected += u64::from(change.rejects && change.rejected_before == Some(false));
        self.newly_allowed += u64::from(!change.rejects && change.rejected_before == Some(true));
        let second = change.time / 1_000_000_000;
        // Those that waited may come late: they do not start a second again.
        if second > self.second || self.requests == 1 {
            (self.second, self.in_second) = (second, 0);
        }
        self.in_second += u64::from(second == self.second);
        self.peak = self.peak.max(self.in_second);
    }
}

/// The most bins.
const BINS: usize = 240;

/// Allowed and rejected requests over time, in at most [`BINS`] bins of one length. Where the
/// log is longer, they are joined in pairs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Timeline {
    /// Seconds since the Unix epoch.
    pub(super) start: u64,
    pub(super) bin_seconds: u64,
    /// Pairs of requests that were allowed and rejected.
    pub(super) bins: Vec<[u64; 2]>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { start: 0, bin_seconds: 1, bins: Vec::new() }
    }
}

impl Timeline {
    /// `time` is in nanoseconds. One before the first counts as the first.
    fn add(&mut self, time: u64, is_rejected: bool) {
        let second = time / 1_000_000_000;
        if self.bins.is_empty() {
            self.start = second;
        }
        let mut bin = second.saturating_sub(self.start) / self.bin_seconds;
        while bin >= BINS as u64 {
            let joined =
                self.bins.chunks(2).map(|pair| pair.iter().fold([0, 0], |sum, bin| [sum[0] + bin[0], sum[1] + bin[1]]));
            self.bins = joined.collect();
            self.bin_seconds *= 2;
            bin = second.saturating_sub(self.start) / self.bin_seconds;
        }
        let bin = usize::try_from(bin).unwrap_or(BINS - 1);
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, [0, 0]);
        }
        self.bins[bin][usize::from(is_rejected)] += 1;
    }
}

/// How many rates are tried: one a minute, and each twice the one before.
const RATES: usize = 22;

/// Sums of fractions are not exact.
const ROUNDING: f64 = 1e-6;

/// The bursts that a tenant needs at each rate. For a rate `r`, the least burst that admits all
/// is the largest `A(s, t) - r (t - s)`, for the `A(s, t)` requests from `s` to `t`. It is the
/// highest level of a bucket that drains at `r`, and so is known after one pass.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    last: u64,
    /// Pairs of a bucket's level, and of its highest so far.
    levels: [(f64, f64); RATES],
}

impl Default for Envelope {
    fn default() -> Self {
        Self { last: 0, levels: [(0.0, 0.0); RATES] }
    }
}

impl Envelope {
    /// A request at a time in nanoseconds.
    #[allow(clippy::cast_precision_loss, reason = "a time between requests")]
    fn add(&mut self, time: u64) {
        let minutes = time.saturating_sub(self.last) as f64 / 60e9;
        self.last = self.last.max(time);
        let mut rate = 1.0;
        for (level, highest) in &mut self.levels {
            *level = (*level - minutes * rate).max(0.0) + 1.0;
            *highest = highest.max(*level);
            rate *= 2.0;
        }
    }
}

/// A token bucket: `limit` requests a minute, `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Bucket {
    pub(super) limit: u64,
    pub(super) burst: u64,
}

/// Limits of a rule that would have rejected at most so many tenants.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Recommendation {
    /// The lowest rate that admits no more at once than in a minute.
    pub(super) chosen: Bucket,
    /// Each rate, and the burst that it needs.
    pub(super) curve: Vec<Bucket>,
}

/// `percent` of the tenants may have been rejected.
pub(super) fn recommend<'e>(envelopes: impl Iterator<Item = &'e Envelope>, percent: f64) -> Option<Recommendation> {
    let envelopes: Vec<_> = envelopes.collect();
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a number of tenants"
    )]
    let rejected = (envelopes.len() as f64 * percent / 100.0) as usize;
    let curve: Vec<Bucket> = (0..RATES)
        .filter_map(|rate| {
            let mut bursts: Vec<f64> = envelopes.iter().map(|envelope| envelope.levels[rate].1).collect();
            bursts.sort_unstable_by(|one, other| other.total_cmp(one));
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of requests")]
            let burst = (bursts.get(rejected.min(bursts.len().checked_sub(1)?))? - ROUNDING).ceil() as u64;
            Some(Bucket { limit: 1 << rate, burst })
        })
        .collect();
    let chosen = curve.iter().find(|bucket| bucket.burst <= bucket.limit).or(curve.last())?;
    Some(Recommendation { chosen: *chosen, curve })
}
