//! Which limits would have admitted a tenant's requests: [`Envelope`], and of all tenants of a
//! rule: [`recommend`].
//!
//! For a rate `r`, the least burst that admits all is the largest `A(s, t) - r (t - s)`, for the
//! `A(s, t)` requests from `s` to `t`. It is the highest level of a bucket that drains at `r`, and
//! so is known after one pass. Invariant: a rejection under another policy changes nothing here.

use serde::Serialize;

/// How many rates are tried: one a minute, and each twice the one before.
const RATES: usize = 22;

/// Sums of fractions are not exact.
const ROUNDING: f64 = 1e-6;

/// The bursts that a tenant needs at each rate.
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
    pub(super) fn add(&mut self, time: u64) {
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
