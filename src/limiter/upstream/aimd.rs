//! How an adaptive rate is found: additive increase, multiplicative decrease.
//! Pure arithmetic, without locks or clocks.
//!
//! Invariant: a rate stays between the rule's floor and ceiling.

use crate::{
    policy::{RateBounds, RateSteps},
    time::Timestamp,
};

/// When a request was decided, and when it was sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Times {
    pub(in crate::limiter) decided: Timestamp,
    pub(in crate::limiter) sent: Timestamp,
}

/// Additive increase, multiplicative decrease (AIMD), with a memory of the rate
/// at which the upstream last rejected.
///
/// | the rate | grows, per second's worth of units that succeed, by |
/// |---|---|
/// | was never rejected | as many units: 2.7-fold |
/// | is below 0.97 of the remembered rate | 10 % |
/// | is near the remembered rate | `increase` of that |
/// | is above 1.03 of it | also a fifth of the excess: the upstream's limit has changed |
/// | has dipped, or is below a proven rate, and nothing was rejected for a second's worth | 2.7-fold, up to 0.97 of the last good rate |
///
/// | a rejection | lowers the rate by the factor | and remembers |
/// |---|---|---|
/// | before any success | 0.7, or `decrease` if less | nothing: others used the upstream up |
/// | the first | 0.7, or `decrease` if less | 0.95 of the rate: it has overshot |
/// | near the remembered rate, or above | `decrease` | the rate |
/// | on the way there | `decrease`; cubed for the third in a row, then to the fourth | 0.93 of the rate |
///
/// The last good rate is one that succeeded near the remembered rate, or at the ceiling.
/// One that succeeded for five seconds is proven: no lower rate takes its place, however
/// short a dip. After a dip the rate is there again within seconds, as by TCP's slow start.
/// If that is rejected, the rate is again where the try began; the next one comes after
/// twice as many units, and grows more slowly. After three tries the upstream's limit has
/// changed, and the good rate is forgotten.
///
/// The rate grows by what succeeds and not by time: a client that sends less
/// than its rate learns nothing about it. Units that take more than a second to
/// send count as a second's worth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AimdState {
    rate: f64,
    /// The rate at which the upstream last rejected.
    rejected_at: Option<f64>,
    /// When it was last decreased, in nanoseconds.
    decreased: Option<u64>,
    /// Decreases in a row, without having arrived at the remembered rate.
    row: u32,
    rejections: u64,
    /// The last good rate, until it was tried too often in vain.
    good: Option<f64>,
    is_proven: bool,
    /// How often that was tried in vain, and from which rate it is being tried.
    failed_tries: u32,
    tried_from: Option<f64>,
    /// How many seconds' worth of units has succeeded since the last decrease, or the end
    /// of the fast growth.
    calm: f64,
    /// When the latest request that succeeded was sent, zero before the first,
    /// and how many units were outstanding then, if they drain at [`USED`] of the
    /// rate.
    latest: u64,
    out: f64,
}

/// The share of its rate that a client has to use for it to grow.
const USED: f64 = 0.8;

/// The share of a request's units that have to be outstanding when it is sent.
const PRESSED: f64 = 0.1;

/// Between these shares of the remembered rate, the rate grows slowly.
const NEAR: f64 = 0.97;
const BEYOND: f64 = 1.03;

/// Growth per second on the way to the remembered rate.
const RECOVERY: f64 = 0.1;

/// Growth per second beyond the remembered rate, as a share of the excess.
const BEYOND_GROWTH: f64 = 0.2;

/// At most this factor remains of a rate that grew exponentially.
const FIRST_DECREASE: f64 = 0.7;

/// The share that is remembered of a rate that was rejected while growing fast.
const OVERSHOT: f64 = 0.95;

/// The same of a rate that was rejected on the way back: it overshoots still.
const OVERSHOT_AGAIN: f64 = 0.93;

/// From this share of the remembered rate on, a rejection is near it. Above
/// `NEAR`, to which the rate recovers.
const ARRIVED: f64 = 0.975;

/// At most so many factors are applied for decreases in a row.
const FARTHEST: u32 = 4;

/// A rate near the remembered one is good after so many seconds' worth of units without a
/// rejection, and proven after these: a full bucket or a new window lets a higher rate pass
/// for a while.
const ARRIVES: f64 = 0.5;
const PROVEN: f64 = 5.0;

/// After so many decreases in a row the rate has dipped from one that is not proven.
const DIPPED: u32 = 2;

/// So many tries are in vain before a good rate is forgotten.
const MOST_TRIES: u32 = 3;

/// A dip lowers the rate at most to this share of the last good one: a rate of almost
/// nothing would not notice its end.
const DEEPEST: f64 = 1.0 / 256.0;

/// How long a decrease takes to have an effect, in nanoseconds: a request that
/// was decided earlier is rejected for the same reason.
const SETTLES: u64 = 200_000_000;

impl AimdState {
    pub(super) fn new(bounds: &RateBounds) -> Self {
        Self { rate: bounds.start, ..Self::default() }
    }

    /// Units per second.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// All rejections, also those that did not change the rate.
    pub(super) fn rejections(&self) -> u64 {
        self.rejections
    }

    /// Applies the bounds of the policy in force.
    pub(super) fn bind(&mut self, bounds: &RateBounds) {
        self.rate = self.rate.clamp(bounds.floor, bounds.ceiling);
        self.good = self.good.map(|good| good.min(bounds.ceiling));
    }

    /// A request of so many units, admitted at `decided` and sent at `sent`,
    /// succeeded.
    pub(super) fn succeeded(&mut self, bounds: &RateBounds, (decided, sent): (u64, u64), units: f64) {
        let pressed = self.count(sent, units);
        if self.is_before(decided) || !pressed {
            return;
        }
        let seconds = (units / self.rate).min(1.0);
        self.calm += seconds;
        let rate = match (self.resumes(), self.rejected_at) {
            (Some(good), _) => self.resumed(good, seconds),
            (None, None) => {
                if self.rate < bounds.ceiling {
                    self.calm = 0.0;
                }
                self.rate * seconds.exp()
            }
            (None, Some(rejected_at)) if self.rate < rejected_at * NEAR => {
                (self.rate * (1.0 + RECOVERY * seconds)).min(rejected_at * NEAR)
            }
            (None, Some(rejected_at)) => {
                let beyond = (self.rate - rejected_at * BEYOND).max(0.0);
                self.rate + (bounds.increase * rejected_at + BEYOND_GROWTH * beyond) * seconds
            }
        };
        self.rate = rate.clamp(bounds.floor, bounds.ceiling);
        let near = self.rejected_at.map_or(f64::MAX, |rejected_at| rejected_at * NEAR);
        if self.rate >= near.min(bounds.ceiling) && self.calm >= ARRIVES && self.resumes().is_none() {
            self.arrive();
        }
    }

    /// A dip, if there was one, is over. The rate is good, unless a better one is proven.
    fn arrive(&mut self) {
        let is_proven = self.calm >= PROVEN;
        self.row = 0;
        if is_proven || !self.is_proven {
            (self.failed_tries, self.tried_from, self.good, self.is_proven) = (0, None, Some(self.rate), is_proven);
        }
    }

    /// The last good rate, if the rate is below it and nothing is rejected any more.
    fn resumes(&self) -> Option<f64> {
        let has_dipped = self.is_proven || self.row >= DIPPED;
        let is_calm = self.calm >= f64::from(1 << self.failed_tries);
        self.good.filter(|good| has_dipped && is_calm && self.rate < good * NEAR)
    }

    /// The rate on its way back to the last good one.
    fn resumed(&mut self, good: f64, seconds: f64) -> f64 {
        self.tried_from.get_or_insert(self.rate);
        // More carefully after each try in vain.
        let growth = seconds / f64::from(1 + self.failed_tries);
        let (rate, most) = (self.rate * growth.exp(), good * NEAR);
        if rate >= most {
            self.rejected_at = Some(good);
        }
        rate.min(most)
    }

    /// A request that was admitted at `decided` was rejected at `now`. Returns
    /// whether the rate changed: a request that was admitted before the last
    /// decrease took effect does not change it.
    pub(super) fn rejected(&mut self, bounds: &RateBounds, decided: u64, now: u64) -> bool {
        self.rejections = self.rejections.saturating_add(1);
        if self.is_before(decided) {
            return false;
        }
        // Otherwise the client has not used the upstream yet: another one has, or
        // this one before a restart.
        let has_succeeded = self.latest > 0;
        let tried_from = self.tried_from.take();
        if tried_from.is_some() {
            self.failed_tries += 1;
            if self.failed_tries == MOST_TRIES {
                (self.good, self.is_proven) = (None, false);
            }
        }
        self.row = self.row.saturating_add(u32::from(has_succeeded));
        let times = self.row.saturating_mul(2).saturating_sub(3).clamp(1, FARTHEST);
        let factor = (0..times).fold(1.0, |factor, _| factor * bounds.decrease);
        let (factor, remembered) = match self.rejected_at {
            None => (factor.min(FIRST_DECREASE), OVERSHOT),
            Some(rejected_at) if self.rate < rejected_at * ARRIVED => (factor, OVERSHOT_AGAIN),
            Some(_) => (factor, 1.0),
        };
        self.rejected_at = has_succeeded.then_some(self.rate * remembered);
        (self.decreased, self.calm) = (Some(now), 0.0);
        let deepest = self.good.map_or(0.0, |good| good * DEEPEST).min(self.rate);
        let lowered = (self.rate * factor).min(tried_from.unwrap_or(f64::MAX));
        self.rate = lowered.max(deepest).clamp(bounds.floor, bounds.ceiling);
        true
    }

    fn is_before(&self, decided: u64) -> bool {
        self.decreased.is_some_and(|decreased| decided <= decreased.saturating_add(SETTLES))
    }

    /// Whether the client uses its rate up.
    #[allow(clippy::cast_precision_loss, reason = "an interval")]
    fn count(&mut self, sent: u64, units: f64) -> bool {
        let passed = sent.saturating_sub(self.latest) as f64 / 1e9;
        self.latest = self.latest.max(sent);
        let out = (self.out - passed * self.rate * USED).max(0.0);
        self.out = (out + units).min(2.0 * units);
        out >= PRESSED * units
    }
}

/// How long a rate is known after its last feedback, in nanoseconds: an hour.
pub(super) const KNOWN_FOR: u64 = 3_600_000_000_000;

/// The adaptive rate of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRate {
    /// As it was found.
    pub(super) state: AimdState,
    /// The rate in force: that of the state, or slightly behind it.
    pub(super) applied: f64,
    /// Units that have succeeded since the rate in force changed.
    since: f64,
    /// In nanoseconds.
    pub(super) last_feedback: u64,
    /// Whether the upstream ever had something left after a request.
    has_left: bool,
}

impl KeyRate {
    pub(super) fn new(bounds: &RateBounds) -> Self {
        let state = AimdState::new(bounds);
        Self { applied: state.rate(), state, since: 0.0, last_feedback: 0, has_left: false }
    }

    pub(super) fn is_known(&self, now: Timestamp) -> bool {
        now.as_nanos().saturating_sub(self.last_feedback) <= KNOWN_FOR
    }

    /// The same under other bounds.
    pub(super) fn within(mut self, bounds: &RateBounds) -> Self {
        self.state.bind(bounds);
        self.applied = self.applied.clamp(bounds.floor, bounds.ceiling);
        self
    }

    /// A request of that cost, sent by `now`, succeeded, and the upstream has
    /// something left or not. Whether another step is in force as a result.
    #[allow(clippy::cast_precision_loss, reason = "a cost")]
    pub(super) fn succeeded(
        &mut self,
        rate_steps: &RateSteps,
        Times { decided, sent }: Times,
        (cost, has_left): (u64, bool),
        now: Timestamp,
    ) -> bool {
        self.state.bind(&rate_steps.bounds);
        self.has_left |= has_left;
        if self.has_left && !has_left {
            return false;
        }
        let sent = sent.min(now).as_nanos();
        self.state.succeeded(&rate_steps.bounds, (decided.as_nanos(), sent), cost as f64);
        self.since += cost as f64;
        self.apply(rate_steps)
    }

    /// A request that was admitted at `decided` was rejected. The new rate, if it
    /// changed.
    pub(super) fn rejected(&mut self, rate_steps: &RateSteps, decided: Timestamp, now: Timestamp) -> Option<f64> {
        self.state.bind(&rate_steps.bounds);
        let changed = self.state.rejected(&rate_steps.bounds, decided.as_nanos(), now.as_nanos());
        self.apply(rate_steps);
        changed.then(|| self.state.rate())
    }

    /// Puts the rate in force that was found, if that is another step. A counter
    /// whose limit changes rounds to whole units and may lose one, so a higher
    /// limit has to be worth a unit.
    fn apply(&mut self, rate_steps: &RateSteps) -> bool {
        let (from, to) = (rate_steps.step(self.applied), rate_steps.step(self.state.rate()));
        if from == to || from < to && (self.state.rate() / self.applied - 1.0) * self.since < 1.0 {
            return false;
        }
        self.applied = self.state.rate();
        self.since = 0.0;
        true
    }
}

#[cfg(test)]
mod tests;
