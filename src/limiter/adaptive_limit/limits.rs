//! The adaptive concurrency limits of keys: [`AdaptiveLimits`], and how each is found: by the
//! gradient of latency, after Netflix's gradient and TCP Vegas, and by whether throughput
//! follows the requests in flight. Knows no requests and no clock.
//!
//! Invariants: a limit stays between the rule's minimum and maximum, whatever the latencies.
//! Memory is bounded, whatever keys come. A limit that is forgotten lives on in the requests
//! that it has admitted, and is lost with them.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::{
    backend::Charge,
    policy::{LimitBounds, LimitSteps},
    store::{Lock, Shards},
    time::Timestamp,
};

/// The adaptive limits of all keys.
#[derive(Debug)]
pub(in crate::limiter) struct AdaptiveLimits(Shards<Keys>);

type Keys = HashMap<u128, Known, RandomState>;

#[derive(Debug)]
struct Known {
    limit: Arc<KeyLimit>,
    used_at: Timestamp,
}

/// The limits that learn from a request: one nearly always.
pub(in crate::limiter) type FoundLimits = SmallVec<[Arc<KeyLimit>; 1]>;

/// The limit of one key. Admitted requests keep it, and are measured without a look-up.
#[derive(Debug)]
pub(in crate::limiter) struct KeyLimit {
    /// The rule's id.
    pub(super) rule: &'static str,
    /// That of `state`, in whole units: to be read without its lock.
    limit: AtomicU64,
    state: Lock<GradientState>,
}

const SHARDS: usize = 16;

/// The most keys of a shard: twice its part of 4,096, since chance spreads them. One takes
/// less than 1 KB.
const MOST_KEYS: usize = 2 * 4_096 / SHARDS;

/// A key that was not used for so long, in nanoseconds, starts again.
const KNOWN_FOR: u64 = 3_600_000_000_000;

impl Default for AdaptiveLimits {
    fn default() -> Self {
        Self(Shards::new(SHARDS))
    }
}

impl AdaptiveLimits {
    /// The limit of a charge's key. One that is not known is at its start.
    pub(super) fn of(&self, charge: &Charge<'_>, steps: &LimitSteps, now: Timestamp) -> Arc<KeyLimit> {
        let mut keys = self.0.lock(self.0.index_of(charge.key));
        if let Some(known) = keys.get_mut(&charge.fingerprint())
            && now.as_nanos().saturating_sub(known.used_at.as_nanos()) <= KNOWN_FOR
        {
            known.used_at = now;
            return Arc::clone(&known.limit);
        }
        let limit = Arc::new(KeyLimit::new(charge.rule.id, &steps.bounds));
        add(&mut keys, charge.fingerprint(), Known { limit: Arc::clone(&limit), used_at: now });
        limit
    }
}

impl KeyLimit {
    fn new(rule: &'static str, bounds: &LimitBounds) -> Self {
        let state = GradientState::new(bounds);
        Self { rule, limit: AtomicU64::new(whole(state.limit)), state: Lock::new(state) }
    }

    /// The index of the highest step that it reaches.
    pub(super) fn step(&self, steps: &LimitSteps) -> usize {
        steps.step(self.limit.load(Ordering::Relaxed))
    }

    pub(super) fn summary(&self) -> LimitSummary {
        self.state.lock().summary()
    }

    /// As [`GradientState::admitted`], under the bounds of the policy in force.
    pub(super) fn admitted(&self, bounds: &LimitBounds, cost: u64, in_flight: u64, most: u64) {
        let mut state = self.state.lock();
        state.bounds = *bounds;
        state.admitted(cost, in_flight, most);
    }

    /// As [`GradientState::answered`]. Also returns what is known after the window.
    pub(super) fn answered(&self, latency: u64, now: Timestamp) -> Option<(Window, LimitSummary)> {
        let mut state = self.state.lock();
        let window = state.answered(latency, now.as_nanos())?;
        self.limit.store(whole(state.limit), Ordering::Relaxed);
        Some((window, state.summary()))
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within the bounds")]
fn whole(limit: f64) -> u64 {
    limit as u64
}

/// Adds a key. In a full shard it drops the eighth of the keys that were not used for longest.
#[cold]
fn add(keys: &mut Keys, key: u128, known: Known) {
    if keys.len() >= MOST_KEYS {
        let mut used: Vec<_> = keys.iter().map(|(key, known)| (known.used_at, *key)).collect();
        let dropped = used.len() / 8;
        used.select_nth_unstable(dropped);
        used[..dropped].iter().for_each(|(_, key)| drop(keys.remove(key)));
    }
    keys.insert(key, known);
}

/// What is known of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::limiter) struct LimitSummary {
    /// In units in flight.
    pub(in crate::limiter) limit: f64,
    /// The latency without a queue, in nanoseconds; 0 while it is unknown.
    pub(in crate::limiter) baseline: f64,
    pub(in crate::limiter) samples: u64,
}

/// The limit of one key, and what it was found by.
///
/// Latencies are collected in windows of a second that have at least 50, and two for each
/// request in flight; else a window goes on, for at most 30 s. Until the limit first shrinks,
/// a fifth of a second is enough. At its end its mean changes two averages: `recent`, and
/// `baseline`, which falls with `recent` at once. By Little's law
/// `in_flight * (1 - baseline / recent)` requests queue in the handler. A 90th percentile does
/// not obey it: where one request in ten is slow, it jumps between the fast and the slow ones.
///
/// | the queue, in `sqrt(limit)` | the limit |
/// |---|---|
/// | at most 1, and it was nearly used up | grows by `sqrt(limit) / 2`; until it first shrinks, by a half |
/// | from 1 to 2 | stays |
/// | more than 2 | shrinks by `log10(limit)` |
/// | more than 1, and throughput falls as requests in flight rise | shrinks likewise |
///
/// The root is by how much requests in service vary by chance: a queue of `log10` is within
/// the noise of a limit of hundreds, which then only shrinks. The limit shrinks slowly, since
/// a handler that has become slower needs no lower one, and what it answers meanwhile shows
/// that.
///
/// While at least half of the limit is in use, `baseline` rises only by as much as throughput
/// has followed the requests in flight (`yield_per_unit`). A handler that has become slower
/// answers less as the limit shrinks, so its baseline rises; one that queues answers as much
/// as before, so its queue does not become the baseline. The first windows may be lucky: until
/// the limit first shrinks, `baseline` rises by all of what was compared, later by a quarter.
/// At the minimum nothing is compared, and `baseline` follows: a limit that cannot shrink would
/// never learn that what looks like a queue is none.
///
/// The limit is never more than five times the peak in flight. The growth by a half is that
/// of TCP's slow start: a restarted process does not reject healthy traffic for minutes. A
/// decrease right after such a step takes it back.
#[derive(Clone, Debug, Default)]
struct GradientState {
    /// Of the policy in force. The end of a window applies them.
    bounds: LimitBounds,
    /// In units in flight.
    limit: f64,
    window: Window,
    /// In nanoseconds; 0 before the first window has ended.
    baseline: f64,
    recent: f64,
    /// How many windows have ended.
    windows: f64,
    /// Of each of the latest windows in which the limit was in use: the logarithms of the mean
    /// in flight, and of the answers a second.
    history: VecDeque<(f64, f64)>,
    /// How much throughput follows the requests in flight: 1 without a queue, 0 with one,
    /// below 0 where more in flight gives fewer answers.
    yield_per_unit: f64,
    /// The limit before the latest window let it grow by a half.
    grown_from: Option<f64>,
    has_shrunk: bool,
    samples: u64,
}

/// The shortest window until the limit first shrinks, the shortest after that, and the
/// longest, in nanoseconds.
const FIRST_SHORTEST: u64 = 200_000_000;
const SHORTEST: u64 = 1_000_000_000;
const LONGEST: u64 = 30_000_000_000;

/// A window that is not the longest has at least so many latencies, and any at least a fifth.
const ENOUGH: u64 = 50;

/// It has so many for each request in flight: latencies of fewer are those of fast ones.
const TURNS: f64 = 2.0;

/// So many windows weigh in the averages, and so many are compared.
const AVERAGED: f64 = 4.0;
const COMPARED: usize = 8;

/// A latency counts as at most so many times the recent ones: one request that hangs must
/// not decide.
const OUTLIER: f64 = 10.0;

/// The queue above which the limit does not grow, and above which it shrinks, in `sqrt(limit)`.
const SHORT_QUEUE: f64 = 1.0;
const LONG_QUEUE: f64 = 2.0;

/// From this part of the limit in flight on, at its peak, it was nearly used up.
const NEARLY: f64 = 0.8;

/// From this part of the limit in flight on, on average, it was in use.
const IN_USE: f64 = 0.5;

/// The limit is at most so many times the peak in flight.
const MOST_UNUSED: f64 = 5.0;

/// The growth of a limit that has never shrunk, and of others, in `sqrt(limit)`.
const FIRST_GROWTH: f64 = 1.5;
const GROWTH: f64 = 0.5;

/// A change of the requests in flight by this part or less, each window, shows nothing.
const STILL: f64 = 0.05;

/// Below this throughput falls as requests in flight rise.
const FALLING: f64 = -0.25;

impl GradientState {
    fn new(bounds: &LimitBounds) -> Self {
        Self { bounds: *bounds, limit: bounds.start, yield_per_unit: 1.0, ..Self::default() }
    }

    fn summary(&self) -> LimitSummary {
        LimitSummary { limit: self.limit, baseline: self.baseline, samples: self.samples }
    }

    fn bind(&mut self) {
        self.limit = self.limit.clamp(self.bounds.min, self.bounds.max);
    }

    /// A request of that cost was admitted, and so many units are in flight with it, of the
    /// `most` that a request of its priority may find: all of the limit, or without what is
    /// reserved.
    fn admitted(&mut self, cost: u64, in_flight: u64, most: u64) {
        let used = float(in_flight) / float(most.max(1));
        let window = &mut self.window;
        window.peak = window.peak.max(in_flight);
        window.used = window.used.max(used);
        window.mean_used += used;
        window.admitted += 1;
        window.costs = window.costs.saturating_add(cost);
        window.in_flight = window.in_flight.saturating_add(in_flight);
    }

    /// The head of a response has come, so many nanoseconds after its request was sent.
    /// Returns the window if that ends it.
    fn answered(&mut self, latency: u64, now: u64) -> Option<Window> {
        self.samples = self.samples.saturating_add(1);
        let latency = float(latency.max(1));
        let most = if self.windows > 0.0 { self.recent * OUTLIER } else { latency };
        self.window.add(latency.min(most), now);
        let passed = now.saturating_sub(self.window.started);
        let shortest = if self.has_shrunk { SHORTEST } else { FIRST_SHORTEST };
        let is_complete = passed >= shortest && self.window.has_enough() || passed >= LONGEST;
        if !is_complete {
            return None;
        }
        let window = mem::replace(&mut self.window, Window { started: now, ..Window::default() });
        if window.seen >= ENOUGH / 5 {
            self.end(&window, float(passed) / 1e9);
        }
        Some(window)
    }

    fn end(&mut self, window: &Window, seconds: f64) {
        self.bind();
        let (seen, in_flight) = (float(window.seen), window.mean_in_flight());
        let is_in_use = window.mean_used / float(window.admitted.max(1)) >= IN_USE;
        self.compare(is_in_use && self.limit > self.bounds.min, in_flight, seen / seconds);
        self.average(window.latencies / seen);
        let (step, unit) = (self.limit.log10().max(1.0), self.limit.sqrt());
        let queue = in_flight * (1.0 - self.baseline / self.recent) / unit;
        let falls = self.yield_per_unit < FALLING && queue > SHORT_QUEUE;
        let grown_from = self.grown_from.take();
        if queue > LONG_QUEUE || falls {
            self.has_shrunk = true;
            self.limit = grown_from.unwrap_or(self.limit - step);
        } else if queue <= SHORT_QUEUE && window.used >= NEARLY {
            self.grown_from = (!self.has_shrunk).then_some(self.limit);
            self.limit = if self.has_shrunk { self.limit + unit * GROWTH } else { self.limit * FIRST_GROWTH };
        }
        if window.admitted > 0 {
            self.limit = self.limit.min(window.peak() * MOST_UNUSED);
        }
        self.bind();
    }

    /// Finds how much throughput follows the requests in flight, by their slope over the
    /// latest windows in which the limit was in use and not at its minimum. Where those hardly
    /// differ, it stays what it was.
    fn compare(&mut self, is_limiting: bool, in_flight: f64, throughput: f64) {
        if !is_limiting {
            // Whatever comes then, it is no queue, or none that the limit can change.
            self.history.clear();
            self.yield_per_unit = 1.0;
            return;
        }
        if self.history.len() == COMPARED {
            self.history.pop_front();
        }
        // Zero has no logarithm: nothing in flight that costs, or nothing answered.
        self.history.push_back((in_flight.max(1.0).ln(), throughput.max(f64::MIN_POSITIVE).ln()));
        let count = float(self.history.len() as u64);
        let mean = |part: fn(&(f64, f64)) -> f64| self.history.iter().map(part).sum::<f64>() / count;
        let (in_flight, throughput) = (mean(|window| window.0), mean(|window| window.1));
        let still = count * STILL * STILL;
        let (mut both, mut spread) = (self.yield_per_unit * still, still);
        for window in &self.history {
            let (dx, dy) = (window.0 - in_flight, window.1 - throughput);
            (both, spread) = (both + dx * dy, spread + dx * dx);
        }
        self.yield_per_unit = both / spread;
    }

    /// The first windows weigh alike, so that a lucky one is not the baseline for long.
    fn average(&mut self, latency: f64) {
        if self.windows == 0.0 {
            self.baseline = latency;
        }
        self.windows += 1.0;
        let weight = 1.0 / self.windows.min(AVERAGED);
        self.recent += (latency - self.recent) * weight;
        // The square makes little of the noise around 0.
        let follows = self.yield_per_unit.clamp(0.0, 1.0).powi(2);
        let follows = if self.has_shrunk || self.history.len() < 2 { follows * weight } else { follows };
        self.baseline = (self.baseline + (self.recent - self.baseline) * follows).min(self.recent);
    }
}

/// What was measured since the last change of the limit.
#[derive(Clone, Debug, Default)]
pub(in crate::limiter) struct Window {
    started: u64,
    /// Their sum, in nanoseconds.
    latencies: f64,
    pub(in crate::limiter) seen: u64,
    /// The most in flight, and the most of what a request may find.
    peak: u64,
    used: f64,
    /// The sum, over those admitted, of the part that was in use.
    mean_used: f64,
    /// Requests that were admitted, and the sums of their costs and of what was in flight with
    /// each.
    admitted: u64,
    costs: u64,
    in_flight: u64,
}

impl Window {
    fn add(&mut self, latency: f64, now: u64) {
        // A clock that was set back must not make it endless.
        if self.seen == 0 && self.started == 0 || now < self.started {
            self.started = now;
        }
        self.latencies += latency;
        self.seen += 1;
    }

    /// The most in flight.
    pub(in crate::limiter) fn peak(&self) -> f64 {
        float(self.peak)
    }

    fn mean_in_flight(&self) -> f64 {
        float(self.in_flight) / float(self.admitted.max(1))
    }

    fn has_enough(&self) -> bool {
        let requests = float(self.in_flight) / float(self.costs.max(1));
        self.seen >= ENOUGH && float(self.seen) >= requests * TURNS
    }
}

#[allow(clippy::cast_precision_loss, reason = "the law is approximate")]
fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests;
