//! How a tier is counted, as the numbers that the scripts read: [`Definition`]. Time is whole
//! microseconds, and fractions of one ([`Span`], [`Rate`]). Not which counter it is: see `key`.
//!
//! Invariant: every number is an integer below 2^53. Lua 5.1 has only doubles, which hold
//! those exactly.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    algorithm::gcd,
    backend::Charge,
    policy::{Consistency, Tier},
    quota::Algorithm,
    time::{Timestamp, nanos},
};

/// How a tier counts, and what a charge costs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Definition {
    pub(crate) algorithm: Algorithm,
    pub(crate) cost: u64,
    /// A bucket's rate. Of other tiers only the limit and the window count; of fixed
    /// windows also the period, which is how long after the epoch they begin.
    pub(crate) rate: Rate,
    /// How long the tier may delay the charge, in microseconds.
    pub(crate) longest_wait: u64,
    flags: u64,
    /// How far ahead of now a bucket's arrival time may be for the charge to
    /// conform.
    slack: Span,
    /// The most units that are missing without a reservation. A leaky bucket has only
    /// the next departure.
    most_used: u64,
    /// How far ahead of the clock the counter can be, in microseconds: the time of
    /// its capacity, and the longest wait.
    furthest: u64,
    /// The most units that a bucket admits at once.
    pub(crate) capacity: u64,
}

const NEVER_CONFORMS: u64 = 1;
const SMOOTH: u64 = 2;
const SETTLED_LATE: u64 = 4;
const MONTHS: u64 = 8;

impl Definition {
    pub(crate) fn new(context: &PlanContext, charge: &Charge<'_>, tier: &Tier, cost: u64) -> Self {
        let (quota, algorithm) = (tier.quota(), tier.quota().counted_by());
        let is_smooth = tier.machine.is_smooth();
        // Units that were charged ahead or here are given back while others are charged.
        let is_leased = charge.rule.options.consistency != Consistency::Exact;
        let is_settled_late = algorithm.has_burst() && (is_leased || charge.rule.is_settled_late());
        let longest_wait = context.longest_wait.load(Ordering::Relaxed).max(micros(charge.rule.max_wait.unwrap_or(0)));
        let plain = Self {
            algorithm,
            cost: exact(cost),
            rate: Rate {
                units: 1,
                period: if algorithm == Algorithm::FixedWindow { micros(quota.phase()) } else { 1 },
                limit: quota.limit().min(MAX_LIMIT),
                window: micros_up(nanos(quota.window())).clamp(1, MAX_MICROS),
            },
            // Reserved times are rounded up, so the bound on them is as well.
            longest_wait: micros(charge.max_wait).min(micros_up(tier.machine.longest_wait())),
            flags: if is_smooth { SMOOTH } else { 0 }
                | if is_settled_late { SETTLED_LATE } else { 0 }
                | if quota.is_month() { MONTHS } else { 0 },
            slack: Span::default(),
            most_used: 0,
            furthest: longest_wait,
            capacity: 0,
        };
        let windows = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => return plain.bucket(tier, cost),
            Algorithm::Concurrency => {
                let window = micros(nanos(context.lease)).max(1);
                return Self { rate: Rate { window, ..plain.rate }, ..plain.bounded_by(plain.rate.limit, cost) };
            }
            Algorithm::SlidingLog => 0,
            // Its time is the end of the next window.
            Algorithm::SlidingWindow => 2,
            Algorithm::FixedWindow | Algorithm::AnchoredWindow => 1,
        };
        let furthest = exact(longest_wait + windows * plain.rate.window);
        Self { furthest, ..plain.bounded_by(plain.rate.limit, cost) }
    }

    fn bounded_by(self, capacity: u64, cost: u64) -> Self {
        let never_conforms = cost > capacity || capacity == 0;
        Self { flags: self.flags | if never_conforms { NEVER_CONFORMS } else { 0 }, ..self }
    }

    fn bucket(self, tier: &Tier, cost: u64) -> Self {
        let quota = tier.quota();
        let rate = Rate::new(quota.limit(), quota.window());
        let capacity = if quota.limit() == 0 { 0 } else { quota.capacity().min(rate.max_units()).min(MAX_LIMIT) };
        let most_used = if self.algorithm == Algorithm::LeakyBucket { 0 } else { capacity };
        let time_for = |units| rate.time_for(units).unwrap_or_default();
        let slack = time_for(most_used.saturating_sub(cost));
        let furthest = exact(self.furthest + time_for(capacity).micros + 1);
        Self { rate, slack, most_used, furthest, capacity, ..self }.bounded_by(capacity, cost)
    }

    /// A charge of so many times the cost.
    pub(crate) fn repeated(&self, times: u64) -> Self {
        Self { cost: exact(self.cost.saturating_mul(times)), ..*self }
    }

    /// How long a bucket needs to refill so many units. A debt beyond the longest window is
    /// never paid back.
    pub(crate) fn time_for(&self, units: u64) -> Span {
        match self.algorithm.has_burst() {
            true => self.rate.time_for(units).unwrap_or(Span::MAX),
            false => Span::default(),
        }
    }

    /// Whether the units end with a window.
    pub(crate) fn ends_with_window(&self) -> bool {
        ends_with_window(self.algorithm)
    }

    /// Whether an admission holds units until they are released.
    pub(crate) fn holds_units(&self) -> bool {
        self.algorithm == Algorithm::Concurrency && self.cost > 0
    }

    /// The numbers that the scripts read, in their order.
    pub(crate) fn numbers(&self) -> [u64; 14] {
        let Rate { units, period, limit, window } = self.rate;
        let cost_time = if self.flags & NEVER_CONFORMS == 0 { self.time_for(self.cost) } else { Span::default() };
        [
            number(self.algorithm),
            self.cost,
            limit,
            window,
            self.flags,
            cost_time.micros,
            cost_time.parts,
            self.slack.micros,
            self.slack.parts,
            units,
            self.longest_wait,
            period,
            self.most_used,
            self.furthest,
        ]
    }
}

/// The number in `state.lua`, where a leaky bucket is one without slack.
fn number(algorithm: Algorithm) -> u64 {
    match algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => 1,
        Algorithm::FixedWindow => 2,
        Algorithm::AnchoredWindow => 3,
        Algorithm::SlidingWindow => 4,
        Algorithm::SlidingLog => 5,
        Algorithm::Concurrency => 6,
    }
}

fn ends_with_window(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::FixedWindow | Algorithm::AnchoredWindow)
}

/// Whether units may be reserved ahead. One that was reserved in a sliding window could
/// be used when that has moved on; one in flight is in use until it is released, and that
/// tells the store.
pub(crate) fn is_leasable(algorithm: Algorithm) -> bool {
    algorithm.has_burst() || ends_with_window(algorithm)
}

/// What all that a backend charges has in common.
#[derive(Debug)]
pub(crate) struct PlanContext {
    pub(crate) prefix: String,
    /// How long a unit in flight is held without renewal.
    pub(crate) lease: Duration,
    /// The longest wait that a request has allowed so far, in microseconds: not all
    /// rules bound it.
    pub(crate) longest_wait: AtomicU64,
    /// Whether the limiter's clock decides, instead of the server's.
    pub(crate) uses_limiter_time: bool,
    /// Whether one script call may name any keys: there is no cluster.
    pub(crate) is_single_slot: bool,
}

impl PlanContext {
    /// A time of the limiter in microseconds, where its clock decides.
    pub(super) fn limiter_time(&self, now: Timestamp) -> Option<u64> {
        self.uses_limiter_time.then(|| micros(now.as_nanos()))
    }

    /// A request may be delayed by so many microseconds.
    pub(super) fn record_wait(&self, longest: u64) {
        if longest > self.longest_wait.load(Ordering::Relaxed) {
            self.longest_wait.fetch_max(longest, Ordering::Relaxed);
        }
    }
}

/// 2^53 - 1: every integer up to this is exact as a double.
const MAX_EXACT: u64 = (1 << 53) - 1;

/// The longest window, and the longest time that a burst may take: 71 years.
const MAX_MICROS: u64 = 1 << 51;

/// Larger limits count as this one.
const MAX_LIMIT: u64 = 1 << 51;

/// Nanoseconds as microseconds, rounded up.
pub(super) fn micros_up(nanos: u64) -> u64 {
    nanos.div_ceil(1_000)
}

/// Nanoseconds as microseconds, rounded down and capped to what is exact.
pub(crate) fn micros(nanos: u64) -> u64 {
    exact(nanos / 1_000)
}

/// A number, capped to what is exact.
pub(super) fn exact(number: u64) -> u64 {
    number.min(MAX_EXACT)
}

/// Microseconds, and fractions of one: its [`Rate`] says how many make a
/// microsecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Span {
    pub(crate) micros: u64,
    pub(crate) parts: u64,
}

impl Span {
    /// Longer than any window.
    const MAX: Self = Self { micros: MAX_MICROS, parts: 0 };
}

/// One unit takes `period / units` microseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) units: u64,
    pub(crate) period: u64,
    /// `limit` units in each `window` identify the limit that a counter was
    /// written under.
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

impl Rate {
    /// Exact where the fraction needs at most 32 bits; else slower, by less
    /// than one part in 2^31 and as much again for each unit per microsecond.
    /// A unit that takes more than 71 years counts as that.
    fn new(limit: u64, window: Duration) -> Self {
        let window = nanos(window).max(1);
        let limit = limit.min(MAX_LIMIT / 1_000);
        let (limit, window) = match window % 1_000 {
            0 => (limit, (window / 1_000).min(MAX_MICROS)),
            // In thousandths of a unit, so that the window is a whole number.
            _ if window <= MAX_MICROS => (limit * 1_000, window),
            _ => (limit, micros_up(window).min(MAX_MICROS)),
        };
        // A limit of zero admits nothing, whatever its rate.
        let divisor = gcd(limit.max(1), window);
        let (mut units, mut period) = (limit.max(1) / divisor, window / divisor);
        let excess = (u64::BITS - units.leading_zeros()).saturating_sub(32);
        if excess > 0 {
            (units, period) = (units >> excess, period.div_ceil(1 << excess).max(1));
        }
        Self { units, period, limit, window }
    }

    /// How long `cost` units take; `None` where that is more than 71 years.
    fn time_for(&self, cost: u64) -> Option<Span> {
        let span = self.span(u128::from(cost) * u128::from(self.period))?;
        (span.micros <= MAX_MICROS).then_some(span)
    }

    /// The most units that take at most 71 years.
    fn max_units(&self) -> u64 {
        u64::try_from(u128::from(MAX_MICROS) * u128::from(self.units) / u128::from(self.period)).unwrap_or(u64::MAX)
    }

    /// How many units take `span`, rounded up.
    pub(crate) fn units_in(&self, span: Span) -> u64 {
        div_ceil(self.parts(span), self.period)
    }

    /// Nanoseconds, rounded up.
    pub(crate) fn nanos(&self, span: Span) -> u64 {
        div_ceil(self.parts(span) * 1_000, self.units)
    }

    /// `span` less the time that `cost` units take.
    pub(crate) fn minus(&self, span: Span, cost: u64) -> Span {
        let parts = self.parts(span).saturating_sub(u128::from(cost) * u128::from(self.period));
        self.span(parts).unwrap_or_default()
    }

    fn parts(&self, span: Span) -> u128 {
        u128::from(span.micros) * u128::from(self.units) + u128::from(span.parts)
    }

    fn span(&self, parts: u128) -> Option<Span> {
        let (micros, parts) = divide(parts, self.units);
        Some(Span { micros: u64::try_from(micros).ok()?, parts })
    }
}

/// Rounded up, and capped.
fn div_ceil(number: u128, divisor: u64) -> u64 {
    let (whole, rest) = divide(number, divisor);
    u64::try_from(whole + u128::from(rest > 0)).unwrap_or(u64::MAX)
}

/// Quotient and remainder. Nearly all numbers fit into one word, which needs no call of a
/// library to be divided.
#[allow(clippy::cast_possible_truncation, reason = "a remainder of a u64")]
fn divide(number: u128, divisor: u64) -> (u128, u64) {
    match u64::try_from(number) {
        Ok(number) => (u128::from(number / divisor), number % divisor),
        Err(_) => (number / u128::from(divisor), (number % u128::from(divisor)) as u64),
    }
}

#[cfg(test)]
mod tests;
