//! The circuit breaker: after failures it rejects calls at once, and closes
//! when a background probe succeeds. It does not run the probe: see `link`.
//!
//! | state | calls | next state |
//! |---|---|---|
//! | closed | run | open, after consecutive failures or one lost connection |
//! | open | rejected with a ready-made error | half-open, after a jittered delay |
//! | half-open | rejected with a ready-made error | closed if the probe succeeds; else open, for twice as long |
//!
//! Invariant: no request is ever the probe, and a report from before the last
//! opening changes nothing.

use std::{
    error::Error,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    backend::redis::sync::lock,
    error::BackendError,
    observe::StoreReport,
    time::{Clock, SystemClock, Timestamp},
};

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerSettings {
    /// So many consecutive failures open it; at least 1.
    pub(crate) failures: u32,
    /// The first delay before a probe.
    pub(crate) shortest: Duration,
    /// What the delay doubles up to.
    pub(crate) longest: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 5, shortest: Duration::from_millis(100), longest: Duration::from_secs(5) }
    }
}

/// What a failure does to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerEffect {
    /// Counts as one of the consecutive failures.
    Count,
    /// Opens it: another call cannot succeed.
    Open,
}

/// Permits one call, and the report of its result for as long as the breaker
/// has not opened since.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct CallPermit(u32);

#[derive(Debug)]
pub(crate) struct Breaker {
    word: AtomicU64,
    /// The error while it is not closed. Written only at transitions, so that
    /// reading it does not block for long.
    rejection: RwLock<BackendError>,
    timing: Mutex<Timing>,
    settings: BreakerSettings,
    opened: Notify,
    report: Arc<StoreReport>,
}

#[derive(Debug)]
struct Timing {
    /// The longest that the next delay can be.
    step: Duration,
    /// Until the next probe.
    delay: Duration,
    /// The last opening or closing.
    since: Instant,
    /// The last opening, for operators.
    opened_at: Timestamp,
    /// The start of the time by which log events are limited.
    origin: Instant,
}

/// State, consecutive failures, and the number of openings in one word, so that
/// a transition is one compare-and-swap.
#[derive(Clone, Copy)]
struct StateWord(u64);

/// Longer delays count as this one: the runtime's timers have a maximum.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const HALF_OPEN: u64 = 2;
const STATE: u64 = 0xff;
const FAILURES: u64 = 0xff_ffff;

impl StateWord {
    fn new(openings: u32, failures: u64, state: u64) -> Self {
        Self(u64::from(openings) << 32 | failures.min(FAILURES) << 8 | state)
    }

    fn openings(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn failures(self) -> u64 {
        self.0 >> 8 & FAILURES
    }

    fn state(self) -> u64 {
        self.0 & STATE
    }

    /// Whether a report on the permitted call still counts.
    fn accepts(self, permit: CallPermit) -> bool {
        self.state() == CLOSED && self.openings() == permit.0
    }
}

impl Breaker {
    pub(crate) fn closed(settings: BreakerSettings, report: Arc<StoreReport>) -> Self {
        Self::new(settings, report, CLOSED, BackendError::unavailable("never rejected"))
    }

    /// Its first probe is due at once.
    pub(crate) fn open(settings: BreakerSettings, report: Arc<StoreReport>, cause: BackendError) -> Self {
        Self::new(settings, report, OPEN, cause)
    }

    fn new(settings: BreakerSettings, report: Arc<StoreReport>, state: u64, rejection: BackendError) -> Self {
        let longest = settings.longest.min(LONGEST);
        let settings = BreakerSettings { longest, shortest: settings.shortest.min(longest), ..settings };
        let now = Instant::now();
        let timing = Timing {
            step: settings.shortest,
            delay: Duration::ZERO,
            since: now,
            opened_at: SystemClock::new().now(),
            origin: now,
        };
        report.starts(state != CLOSED);
        Self {
            word: AtomicU64::new(StateWord::new(0, 0, state).0),
            rejection: RwLock::new(rejection),
            timing: Mutex::new(timing),
            settings,
            opened: Notify::new(),
            report,
        }
    }

    /// Permits a call, or returns the reason why not.
    #[inline]
    pub(crate) fn permit(&self) -> Result<CallPermit, BackendError> {
        let word = self.word();
        match word.state() {
            CLOSED => Ok(CallPermit(word.openings())),
            _ => Err(self.rejection.read().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }

    /// Why calls are rejected; `None` while it is closed.
    #[inline]
    pub(crate) fn rejection(&self) -> Option<BackendError> {
        self.permit().err()
    }

    /// The call succeeded.
    #[inline]
    pub(crate) fn succeeded(&self, permit: CallPermit) {
        loop {
            let word = self.word();
            let reset = StateWord::new(word.openings(), 0, CLOSED);
            if !word.accepts(permit) || word.failures() == 0 || self.swap(word, reset) {
                return;
            }
        }
    }

    /// The call failed.
    pub(crate) fn failed(&self, permit: CallPermit, effect: BreakerEffect, cause: &BackendError) {
        loop {
            let word = self.word();
            if !word.accepts(permit) {
                return;
            }
            let failures = word.failures() + 1;
            if effect == BreakerEffect::Open || failures >= u64::from(self.settings.failures) {
                if self.trip(word, StateWord::new(word.openings().wrapping_add(1), 0, OPEN), failures, cause) {
                    self.opened.notify_one();
                    return;
                }
            } else if self.swap(word, StateWord::new(word.openings(), failures, CLOSED)) {
                return;
            }
        }
    }

    /// Waits until it is not closed.
    pub(crate) async fn opened(&self) {
        while self.word().state() == CLOSED {
            self.opened.notified().await;
        }
    }

    /// The time until the next probe.
    pub(crate) fn delay(&self) -> Duration {
        lock(&self.timing).delay
    }

    /// A probe starts. Only the one prober calls this, `close` and `reopen`.
    pub(crate) fn half_open(&self) {
        let word = self.word();
        if word.state() == OPEN && self.swap(word, StateWord::new(word.openings(), 0, HALF_OPEN)) {
            self.report.half_opened();
        }
    }

    /// The probe succeeded.
    pub(crate) fn close(&self) {
        let word = self.word();
        let mut timing = lock(&self.timing);
        if word.state() == CLOSED || !self.swap(word, StateWord::new(word.openings(), 0, CLOSED)) {
            return;
        }
        let now = Instant::now();
        let lasted = now - timing.since;
        timing.since = now;
        self.report.closed(lasted);
    }

    /// The probe failed.
    pub(crate) fn reopen(&self, cause: &BackendError) {
        let word = self.word();
        if word.state() == HALF_OPEN {
            self.trip(word, StateWord::new(word.openings(), 0, OPEN), 1, cause);
        }
    }

    /// Opens it, unless the word has changed.
    fn trip(&self, from: StateWord, to: StateWord, failures: u64, cause: &BackendError) -> bool {
        // Locked over the swap: a thread that sees it open finds the cause.
        let mut rejection = self.rejection.write().unwrap_or_else(PoisonError::into_inner);
        if !self.swap(from, to) {
            return false;
        }
        let mut timing = lock(&self.timing);
        let now = Instant::now();
        if from.state() == CLOSED {
            if now - timing.since >= self.settings.longest {
                timing.step = self.settings.shortest;
            }
            timing.since = now;
            timing.opened_at = SystemClock::new().now();
        }
        timing.draw_delay(self.settings.longest);
        *rejection = rejection_of(cause, timing.opened_at);
        let log_time = Timestamp::UNIX_EPOCH.saturating_add(now - timing.origin);
        drop((timing, rejection));
        self.report.opened(cause, failures, log_time);
        true
    }

    fn word(&self) -> StateWord {
        StateWord(self.word.load(Ordering::Relaxed))
    }

    fn swap(&self, from: StateWord, to: StateWord) -> bool {
        self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Timing {
    /// Draws the next delay from half of the step to all of it, and doubles the
    /// step.
    fn draw_delay(&mut self, longest: Duration) {
        // Instances that lost the store together must not probe it together.
        let random = RandomState::new().build_hasher().finish() >> 32;
        let half = self.step / 2;
        self.delay = half + half.mul_f64(random as f64 / f64::from(u32::MAX));
        self.step = self.step.saturating_mul(2).min(longest);
    }
}

fn rejection_of(cause: &BackendError, opened_at: Timestamp) -> BackendError {
    let why = cause.source().map_or_else(|| cause.to_string(), ToString::to_string);
    let millis = opened_at.as_nanos() / 1_000_000;
    let text = format!("circuit breaker open since {}.{:03} (Unix time): {why}", millis / 1000, millis % 1000);
    BackendError::new(cause.rejection_kind(), text)
}

#[cfg(test)]
mod tests;
