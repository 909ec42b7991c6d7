//! How an adaptive concurrency limit is found: by the gradient of latency, after Netflix's
//! gradient and TCP Vegas. Pure arithmetic, without locks or clocks.
//!
//! Invariant: a limit stays between the rule's minimum and maximum, whatever the latencies.

use std::{collections::VecDeque, mem};

use crate::policy::LimitBounds;

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
/// Latencies are collected in windows of a second that have at least 50; else a window goes
/// on, for at most 30 s. At its end its 90th percentile changes two averages: `recent`, and
/// the slower `baseline`, which falls with `recent` at once. The requests that queue in the
/// handler are about `limit * (1 - baseline / recent)`.
///
/// | these, in `log10(limit)` | the limit |
/// |---|---|
/// | at most 3, and it was nearly used up | grows by `log10(limit)`; until it first shrinks, by a half |
/// | from 3 to 6 | stays |
/// | more than 6 | shrinks by `log10(limit)` |
/// | any, it was used up, and throughput fell as requests in flight rose | shrinks likewise |
///
/// It is never more than five times the peak in flight. The growth by a half is that of TCP's
/// slow start: a restarted process does not reject healthy traffic for minutes. The first
/// decrease takes the last such step back.
#[derive(Clone, Debug, Default)]
pub(super) struct GradientState {
    limit: f64,
    window: Window,
    /// In nanoseconds; 0 before the first window has ended.
    baseline: f64,
    recent: f64,
    /// Of each of the latest windows: the mean in flight, and answers a second.
    history: VecDeque<(f64, f64)>,
    /// The limit before it grew by a half, while it grows so.
    grown_from: Option<f64>,
    has_shrunk: bool,
    samples: u64,
}

/// The shortest and the longest window, in nanoseconds.
const SHORTEST: u64 = 1_000_000_000;
const LONGEST: u64 = 30_000_000_000;

/// A window that is not the longest has at least so many latencies, and any at least a fifth.
const ENOUGH: u64 = 50;

/// So many windows weigh in the averages, and in the correlation.
const RECENT: f64 = 5.0;
const BASELINE: f64 = 10.0;
const CORRELATED: usize = 10;

/// The queue below which the limit grows, and above which it shrinks, in `log10(limit)`.
const SHORT_QUEUE: f64 = 3.0;
const LONG_QUEUE: f64 = 6.0;

/// From this part of the limit in flight on, it was nearly used up.
const NEARLY: f64 = 0.8;

/// The limit is at most so many times the peak in flight.
const MOST_UNUSED: f64 = 5.0;

/// The growth of a limit that has never shrunk.
const FIRST_GROWTH: f64 = 1.5;

impl GradientState {
    pub(super) fn new(bounds: &LimitBounds) -> Self {
        Self { limit: bounds.start, ..Self::default() }
    }

    /// The limit, in units in flight.
    pub(super) fn limit(&self) -> f64 {
        self.limit
    }

    pub(super) fn summary(&self) -> LimitSummary {
        LimitSummary { limit: self.limit, baseline: self.baseline, samples: self.samples }
    }

    /// Applies the bounds of the policy in force.
    pub(super) fn bind(&mut self, bounds: &LimitBounds) {
        self.limit = self.limit.clamp(bounds.min, bounds.max);
    }

    /// A request was admitted, and so many units are in flight with it, of the `most` that a
    /// request of its priority may find: all of the limit, or without what is reserved.
    pub(super) fn admitted(&mut self, in_flight: u64, most: u64) {
        let (in_flight, most) = (float(in_flight), float(most.max(1)));
        let window = &mut self.window;
        window.peak = window.peak.max(in_flight);
        window.used = window.used.max(in_flight / most);
        window.admitted += 1.0;
        window.in_flight += in_flight;
    }

    /// The head of a response has come, so many nanoseconds after its request was sent.
    /// Returns the window if that ends it.
    pub(super) fn answered(&mut self, bounds: &LimitBounds, latency: u64, now: u64) -> Option<Window> {
        self.samples = self.samples.saturating_add(1);
        self.window.add(latency, now);
        let passed = now.saturating_sub(self.window.started);
        let is_complete = passed >= SHORTEST && self.window.seen >= ENOUGH || passed >= LONGEST;
        if !is_complete {
            return None;
        }
        let mut window = mem::replace(&mut self.window, Window { started: now, ..Window::default() });
        self.end(bounds, &mut window, float(passed) / 1e9);
        Some(window)
    }

    fn end(&mut self, bounds: &LimitBounds, window: &mut Window, seconds: f64) {
        if window.seen < ENOUGH / 5 {
            return;
        }
        let latency = window.percentile();
        match self.baseline > 0.0 {
            true => {
                self.recent += (latency - self.recent) / RECENT;
                self.baseline = (self.baseline + (self.recent - self.baseline) / BASELINE).min(self.recent);
            }
            false => (self.recent, self.baseline) = (latency, latency),
        }
        if self.history.len() == CORRELATED {
            self.history.pop_front();
        }
        self.history.push_back((window.in_flight / window.admitted.max(1.0), float(window.seen) / seconds));
        let step = self.limit.log10().max(1.0);
        let queue = self.limit * (1.0 - self.baseline / self.recent);
        let is_saturated = window.used >= 1.0 && self.correlation().is_some_and(|correlation| correlation < 0.0);
        if queue > LONG_QUEUE * step || is_saturated {
            self.shrink(step);
        } else if queue <= SHORT_QUEUE * step && window.used >= NEARLY {
            self.grow(step);
        }
        if window.admitted > 0.0 {
            self.limit = self.limit.min(window.peak * MOST_UNUSED);
        }
        self.bind(bounds);
    }

    fn shrink(&mut self, step: f64) {
        self.has_shrunk = true;
        self.limit = self.grown_from.take().unwrap_or(self.limit - step);
    }

    fn grow(&mut self, step: f64) {
        self.grown_from = (!self.has_shrunk).then_some(self.limit);
        self.limit = if self.has_shrunk { self.limit + step } else { self.limit * FIRST_GROWTH };
    }

    /// Whether throughput rises with the requests in flight (up to 1), or falls as they rise
    /// (down to -1). `None` with too few windows, or where either has not changed.
    fn correlation(&self) -> Option<f64> {
        let count = self.history.len();
        if count < CORRELATED {
            return None;
        }
        let mean = |part: fn(&(f64, f64)) -> f64| self.history.iter().map(part).sum::<f64>() / float(count as u64);
        let (in_flight, throughput) = (mean(|window| window.0), mean(|window| window.1));
        let (mut both, mut first, mut second) = (0.0, 0.0, 0.0);
        for window in &self.history {
            let (dx, dy) = (window.0 - in_flight, window.1 - throughput);
            (both, first, second) = (both + dx * dy, first + dx * dx, second + dy * dy);
        }
        let spread = (first * second).sqrt();
        (spread > 0.0).then(|| both / spread)
    }
}

/// What was measured since the last change of the limit.
#[derive(Clone, Debug, Default)]
pub(in crate::limiter) struct Window {
    started: u64,
    /// Of many latencies every second, fourth and so on, so that memory is bounded.
    latencies: Vec<u64>,
    every: u64,
    pub(in crate::limiter) seen: u64,
    /// The most in flight, and the most of what a request may find.
    pub(in crate::limiter) peak: f64,
    used: f64,
    /// Requests that were admitted, and the sum of what was in flight with each.
    admitted: f64,
    in_flight: f64,
}

/// The most latencies of a window that are kept.
const KEPT: usize = 512;

impl Window {
    fn add(&mut self, latency: u64, now: u64) {
        // A clock that was set back must not make it endless.
        if self.seen == 0 && self.started == 0 || now < self.started {
            self.started = now;
        }
        if self.latencies.len() == KEPT {
            let mut is_kept = false;
            self.latencies.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.every *= 2;
        }
        self.every = self.every.max(1);
        if self.seen.is_multiple_of(self.every) {
            self.latencies.push(latency);
        }
        self.seen += 1;
    }

    /// The 90th percentile of its latencies, at least a nanosecond.
    fn percentile(&mut self) -> f64 {
        let rank = self.latencies.len() * 9 / 10;
        let (_, latency, _) = self.latencies.select_nth_unstable(rank);
        float((*latency).max(1))
    }
}

#[allow(clippy::cast_precision_loss, reason = "the law is approximate")]
fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests;
