//! Failures, and the circuit breaker that counts them: what an error of the driver means for
//! the caller and for the breaker; and the breaker, which after failures rejects calls at once,
//! and closes when a background probe succeeds. It does not run the probe: see `upkeep`.
//!
//! | state | calls | next state |
//! |---|---|---|
//! | closed | run | open, after consecutive failures, one connection lost during a call, or one that cannot be opened |
//! | open | rejected with a ready-made error | half-open, after a jittered delay |
//! | half-open | rejected with a ready-made error | closed if the probe succeeds; else open, for twice as long |
//!
//! Invariant: no request is ever the probe, and a report from before the last opening changes
//! nothing. An error that a script raises never opens the breaker, since the server works.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::time::Instant;

use crate::{
    error::{BackendError, BackendErrorKind},
    jitter::shorten,
    observe::StoreReport,
    sync::lock,
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

/// Permits one call, and the report of its result for as long as the breaker
/// has not opened since.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct CallPermit(u32);

#[derive(Debug)]
pub(crate) struct Breaker {
    /// Counts openings and closings, so it is closed while the count is even.
    /// Written under the lock of `state`.
    changes: AtomicU32,
    state: Mutex<State>,
    settings: BreakerSettings,
    report: Arc<StoreReport>,
}

#[derive(Debug)]
struct State {
    /// Consecutive failures while it is closed.
    failures: u32,
    /// The error while it is not closed.
    rejection: BackendError,
    /// The longest that the next delay can be.
    step: Duration,
    /// When the next probe is due.
    probe_at: Instant,
    /// The last opening or closing.
    since: Instant,
    /// The last opening, for operators.
    opened_at: Timestamp,
}

/// A connection that lasted for so many of the shortest delays was not lost at once.
const FLAPPING: u32 = 5;

/// Longer delays count as this one: the runtime's timers have a maximum.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

impl Breaker {
    /// Closed, or open for the reason in `rejection`; then the first probe is due
    /// at once.
    pub(crate) fn new(settings: BreakerSettings, report: Arc<StoreReport>, rejection: Option<BackendError>) -> Self {
        let longest = settings.longest.min(LONGEST);
        let settings = BreakerSettings { longest, shortest: settings.shortest.min(longest), ..settings };
        let now = Instant::now();
        report.starts(rejection.is_some());
        if rejection.is_some() {
            report.counts(true);
        }
        let changes = AtomicU32::new(u32::from(rejection.is_some()));
        let state = State {
            failures: 0,
            rejection: rejection.unwrap_or_else(|| BackendError::unavailable("never rejected")),
            step: settings.shortest,
            probe_at: now,
            since: now,
            opened_at: SystemClock::new().now(),
        };
        Self { changes, state: Mutex::new(state), settings, report }
    }

    /// Permits a call, or returns the reason why not.
    pub(crate) fn permit(&self) -> Result<CallPermit, BackendError> {
        let changes = self.changes.load(Ordering::Acquire);
        if changes.is_multiple_of(2) { Ok(CallPermit(changes)) } else { Err(lock(&self.state).rejection.clone()) }
    }

    /// Why calls are rejected; `None` while it is closed.
    pub(crate) fn rejection(&self) -> Option<BackendError> {
        self.permit().err()
    }

    /// The call succeeded.
    pub(crate) fn succeeded(&self, permit: CallPermit) {
        let mut state = lock(&self.state);
        if self.accepts(permit) {
            state.failures = 0;
        }
    }

    /// The call failed.
    pub(crate) fn failed(&self, permit: CallPermit, effect: BreakerEffect, cause: &BackendError) {
        let mut state = lock(&self.state);
        if !self.accepts(permit) {
            return;
        }
        state.failures = state.failures.saturating_add(1);
        if effect == BreakerEffect::Count && state.failures < self.settings.failures {
            return;
        }
        self.open(&mut state, effect);
        self.schedule_probe(state, cause);
    }

    /// It is closed, and opens.
    fn open(&self, state: &mut State, effect: BreakerEffect) {
        self.changes.fetch_add(1, Ordering::Release);
        self.report.counts(true);
        let now = Instant::now();
        // Timeouts show an overloaded store, which needs time. A single connection is
        // lost for other reasons, and one that is often lost must not keep the store away.
        let soon = state.step.min(self.settings.shortest.saturating_mul(FLAPPING));
        let lasting = if effect == BreakerEffect::Open { soon } else { self.settings.longest };
        if now - state.since >= lasting {
            state.step = self.settings.shortest;
        }
        (state.since, state.opened_at) = (now, SystemClock::new().now());
    }

    /// The time until the next probe.
    pub(crate) fn delay(&self) -> Duration {
        lock(&self.state).probe_at.saturating_duration_since(Instant::now())
    }

    /// A probe starts. Only the one prober calls this, `close` and `reopen`.
    pub(crate) fn half_open(&self) {
        self.report.half_opened();
    }

    /// The probe succeeded. Nothing happens if it is closed already.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        if self.is_closed() {
            return;
        }
        self.report.counts(false);
        let lasted = state.since.elapsed();
        (state.since, state.failures) = (Instant::now(), 0);
        self.changes.fetch_add(1, Ordering::Release);
        drop(state);
        self.report.closed(lasted);
    }

    /// The probe failed, or no connection could be opened in place of one that has ended.
    pub(crate) fn reopen(&self, cause: &BackendError) {
        let mut state = lock(&self.state);
        if self.is_closed() {
            self.open(&mut state, BreakerEffect::Open);
        }
        state.failures = 1;
        self.schedule_probe(state, cause);
    }

    /// Draws the next delay, and doubles the step.
    fn schedule_probe(&self, mut state: MutexGuard<'_, State>, cause: &BackendError) {
        state.probe_at = Instant::now() + shorten(state.step);
        state.step = state.step.saturating_mul(2).min(self.settings.longest);
        let since = Timestamp::from_nanos(state.opened_at.as_secs() * 1_000_000_000);
        let text = format!("circuit breaker open since {since}: {}", reason(cause));
        state.rejection = BackendError::new(cause.rejection_kind(), text);
        let failures = u64::from(state.failures);
        drop(state);
        self.report.opened(cause, failures);
    }

    fn is_closed(&self) -> bool {
        self.changes.load(Ordering::Acquire).is_multiple_of(2)
    }

    /// Whether a report on the permitted call still counts.
    fn accepts(&self, permit: CallPermit) -> bool {
        self.changes.load(Ordering::Relaxed) == permit.0
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        if !self.is_closed() {
            self.report.counts(false);
        }
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

/// An error of the driver, classified.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: BackendError,
    /// `None` where the server works and only this call failed.
    pub(crate) effect: Option<BreakerEffect>,
    /// Where the call is to be sent instead: it has not run.
    pub(crate) redirect: Option<Redirect>,
}

/// A node of a cluster named another one.
#[derive(Debug)]
pub(crate) struct Redirect {
    pub(crate) address: String,
    /// Whether the hash slot is only about to move there.
    pub(crate) is_asking: bool,
}

/// Error codes of a server that denies access.
const FORBIDDEN: [&str; 3] = ["NOAUTH", "WRONGPASS", "NOPERM"];

/// Error codes of a server that cannot run the call at present.
const UNABLE: [&str; 6] = ["LOADING", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "MISCONF", "NOREPLICAS"];

/// Parts of general errors of a server that denies scripts.
const FORBIDDEN_WORDS: [&str; 4] =
    ["ACL failure in script", "can't run this command", "unknown command", "has no permissions"];

impl Failure {
    pub(super) fn of(error: &RedisError) -> Self {
        let text = message(error);
        let (kind, effect) = classify(error, &text);
        let is_asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        let redirect = error.redirect_node();
        let redirect = redirect.map(|(address, _)| Redirect { address: address.to_owned(), is_asking });
        Self { error: BackendError::new(kind, text), effect, redirect }
    }

    /// A call that was not sent: no server has failed by it.
    pub(crate) fn unsent(error: BackendError) -> Self {
        Self { error, effect: None, redirect: None }
    }

    pub(crate) fn timeout(text: String) -> Self {
        Self { error: BackendError::timeout(text), effect: Some(BreakerEffect::Count), redirect: None }
    }

    /// Whether another call over the same connection cannot succeed.
    pub(crate) fn is_lost(&self) -> bool {
        self.effect == Some(BreakerEffect::Open)
    }
}

/// An error with the address of the server that it is of.
pub(super) fn at(address: &dyn fmt::Display, error: &BackendError) -> BackendError {
    BackendError::new(error.kind(), format!("redis at {address}: {}", reason(error)))
}

/// Why it failed, without its kind.
fn reason(error: &BackendError) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The server's message, if it sent one.
fn message(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => error.to_string(),
    }
}

fn classify(error: &RedisError, text: &str) -> (BackendErrorKind, Option<BreakerEffect>) {
    use BackendErrorKind::{Misconfigured, OutOfMemory, Timeout, Unavailable};
    if let Some(code) = error.code() {
        let forbidden =
            FORBIDDEN.contains(&code) || code == "ERR" && FORBIDDEN_WORDS.iter().any(|words| text.contains(words));
        return match code {
            // Before version 7 a script's error has the code `ERR`.
            "OOM" | "ERR" if code == "OOM" || text.contains("OOM command not allowed") => {
                (OutOfMemory, Some(BreakerEffect::Count))
            }
            _ if forbidden => (Misconfigured, Some(BreakerEffect::Count)),
            // The server is a replica now, so this connection cannot recover.
            "READONLY" => (Unavailable, Some(BreakerEffect::Open)),
            code if UNABLE.contains(&code) => (Unavailable, Some(BreakerEffect::Count)),
            "MOVED" | "ASK" | "TRYAGAIN" => (Unavailable, None),
            // Raised by a script, or by a key of another type.
            _ => (Misconfigured, None),
        };
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => (Misconfigured, Some(BreakerEffect::Count)),
        _ if error.is_timeout() => (Timeout, Some(BreakerEffect::Count)),
        _ if text.contains("invalid peer certificate") => (Misconfigured, Some(BreakerEffect::Count)),
        ErrorKind::UnexpectedReturnType | ErrorKind::Client => (Misconfigured, None),
        _ => (Unavailable, Some(BreakerEffect::Open)),
    }
}

#[cfg(test)]
mod tests;
