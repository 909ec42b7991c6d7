//! Leaves a store alone that does not answer.
//!
//! | state | requests | leaves it by |
//! |---|---|---|
//! | closed | ask the store | failures in a row, or one lost connection: open |
//! | open | get a ready-made error | the end of a jittered delay: half-open |
//! | half-open | get a ready-made error | a probe in the background: closed, or open for twice as long |
//!
//! So no request ever pays for finding out whether the store is back.

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
    error::BackendError,
    observe::StoreReport,
    time::{Clock, SystemClock, Timestamp},
};

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerSettings {
    /// So many failures in a row open it; at least 1.
    pub(crate) failures: u32,
    /// The first delay before a probe.
    pub(crate) shortest: Duration,
    /// What it doubles up to.
    pub(crate) longest: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 5, shortest: Duration::from_millis(100), longest: Duration::from_secs(5) }
    }
}

/// How much a failure weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// One of those in a row.
    One,
    /// Opens the breaker by itself: asking again cannot help.
    Opens,
}

/// The right to ask the store, and to report what came of it: for as long as
/// the breaker has not opened since.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Pass(u32);

#[derive(Debug)]
pub(crate) struct Breaker {
    word: AtomicU64,
    /// What requests are told while it is open. Written only at transitions,
    /// so reading it never waits for long.
    rejection: RwLock<BackendError>,
    timing: Mutex<Timing>,
    settings: BreakerSettings,
    opened: Notify,
    report: Arc<StoreReport>,
}

#[derive(Debug)]
struct Timing {
    /// What the next delay is drawn from.
    step: Duration,
    /// Until the next probe.
    delay: Duration,
    /// Of the last opening or closing.
    since: Instant,
    /// Of the last opening, for people.
    opened_at: Timestamp,
    /// For the gate before the log.
    origin: Instant,
}

/// The state, the failures in a row, and how often it has opened: in one word,
/// so that a transition is one compare-and-swap.
#[derive(Clone, Copy)]
struct Word(u64);

/// Who sets more than that means for ever; timers do not reach so far.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

const CLOSED: u64 = 0;
const OPEN: u64 = 1;
const HALF_OPEN: u64 = 2;
const STATE: u64 = 0xff;
const FAILURES: u64 = 0xff_ffff;

impl Word {
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

    /// Whether what `pass` reports is of this time.
    fn admits(self, pass: Pass) -> bool {
        self.state() == CLOSED && self.openings() == pass.0
    }
}

impl Breaker {
    /// One that lets requests through.
    pub(crate) fn closed(settings: BreakerSettings, report: Arc<StoreReport>) -> Self {
        Self::new(settings, report, CLOSED, BackendError::unavailable("never rejected"))
    }

    /// One that waits for its first probe, which is due at once.
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
            word: AtomicU64::new(Word::new(0, 0, state).0),
            rejection: RwLock::new(rejection),
            timing: Mutex::new(timing),
            settings,
            opened: Notify::new(),
            report,
        }
    }

    fn word(&self) -> Word {
        Word(self.word.load(Ordering::Relaxed))
    }

    fn swap(&self, from: Word, to: Word) -> bool {
        self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Lets a request through, or says why not.
    #[inline]
    pub(crate) fn pass(&self) -> Result<Pass, BackendError> {
        let word = self.word();
        match word.state() {
            CLOSED => Ok(Pass(word.openings())),
            _ => Err(self.rejection.read().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }

    /// Why no request is let through; `None` where they are.
    #[inline]
    pub(crate) fn rejects(&self) -> Option<BackendError> {
        self.pass().err()
    }

    /// The store answered.
    #[inline]
    pub(crate) fn succeeded(&self, pass: Pass) {
        loop {
            let word = self.word();
            let forgiven = Word::new(word.openings(), 0, CLOSED);
            if !word.admits(pass) || word.failures() == 0 || self.swap(word, forgiven) {
                return;
            }
        }
    }

    /// The store failed.
    pub(crate) fn failed(&self, pass: Pass, weight: Weight, cause: &BackendError) {
        loop {
            let word = self.word();
            if !word.admits(pass) {
                return;
            }
            let failures = word.failures() + 1;
            if weight == Weight::One && failures < u64::from(self.settings.failures) {
                if self.swap(word, Word::new(word.openings(), failures, CLOSED)) {
                    return;
                }
                continue;
            }
            // Held over the swap, so that whoever sees it open finds the cause.
            let mut rejection = self.rejection.write().unwrap_or_else(PoisonError::into_inner);
            if self.swap(word, Word::new(word.openings().wrapping_add(1), 0, OPEN)) {
                let since_start = self.reckon_opening();
                *rejection = rejection_of(cause, since_start.1);
                drop(rejection);
                self.report.opened(cause, since_start.0);
                self.opened.notify_one();
                return;
            }
        }
    }

    /// Sets the delay of an opening; says when it is, for the log's gate and
    /// for people.
    fn reckon_opening(&self) -> (Timestamp, Timestamp) {
        let mut timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now - timing.since >= self.settings.longest {
            timing.step = self.settings.shortest;
        }
        timing.since = now;
        timing.opened_at = SystemClock::new().now();
        timing.draw(self.settings.longest);
        (timing.gate_time(now), timing.opened_at)
    }

    /// Waits until it is open.
    pub(crate) async fn opened(&self) {
        while self.word().state() == CLOSED {
            self.opened.notified().await;
        }
    }

    /// How long to wait before the next probe.
    pub(crate) fn delay(&self) -> Duration {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner).delay
    }

    /// A probe sets out. Only its one prober may call this and what follows.
    pub(crate) fn half_open(&self) {
        let word = self.word();
        if word.state() == OPEN && self.swap(word, Word::new(word.openings(), 0, HALF_OPEN)) {
            self.report.half_opened();
        }
    }

    /// The probe came back well.
    pub(crate) fn close(&self) {
        let word = self.word();
        let mut timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        if word.state() == CLOSED || !self.swap(word, Word::new(word.openings(), 0, CLOSED)) {
            return;
        }
        let now = Instant::now();
        let lasted = now - timing.since;
        timing.since = now;
        self.report.closed(lasted);
    }

    /// The probe failed.
    pub(crate) fn reopen(&self, cause: &BackendError) {
        let mut rejection = self.rejection.write().unwrap_or_else(PoisonError::into_inner);
        let word = self.word();
        if word.state() != HALF_OPEN || !self.swap(word, Word::new(word.openings(), 0, OPEN)) {
            return;
        }
        let mut timing = self.timing.lock().unwrap_or_else(PoisonError::into_inner);
        timing.draw(self.settings.longest);
        *rejection = rejection_of(cause, timing.opened_at);
        let now = timing.gate_time(Instant::now());
        drop((timing, rejection));
        self.report.opened(cause, now);
    }
}

impl Timing {
    /// Draws the next delay, and doubles what the one after it is drawn from.
    fn draw(&mut self, longest: Duration) {
        // Instances that lost the store together must not come back together.
        let random = RandomState::new().build_hasher().finish() >> 32;
        let half = self.step / 2;
        self.delay = half + half.mul_f64(random as f64 / f64::from(u32::MAX));
        self.step = self.step.saturating_mul(2).min(longest);
    }

    fn gate_time(&self, now: Instant) -> Timestamp {
        Timestamp::UNIX_EPOCH.saturating_add(now - self.origin)
    }
}

fn rejection_of(cause: &BackendError, opened_at: Timestamp) -> BackendError {
    let why = cause.source().map_or_else(|| cause.to_string(), ToString::to_string);
    let millis = opened_at.as_nanos() / 1_000_000;
    let text = format!("not asked since {}.{:03} (Unix time): {why}", millis / 1000, millis % 1000);
    BackendError::new(cause.rejection_kind(), text)
}

#[cfg(test)]
mod tests;
