//! What is shed while a limiter's process is overloaded: [`Shedder`].
//!
//! It outlives the policies of its limiter. Invariant: signals are read by one request at
//! a time, and no other waits for it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{CLASSES, INTERVAL, Overload, Watched, controller::Controller, levels::Levels};
use crate::{
    descriptor::{Priority, TenantId},
    jitter::draw,
    observe::{Mistake, Reported, log_shedding, report_shed_fraction},
    time::{Timestamp, nanos},
};

/// Of each class, every so many of its requests pass.
const PASSING: u32 = 100;

/// After such a pause without requests, or without overload in the policy, what was before
/// does not count.
const LONGEST_MEMORY: Duration = Duration::from_secs(10);

/// A signal that is above its threshold, and was not read for longer, was so for this long.
const LONGEST_STEP: Duration = Duration::from_millis(200);

/// For how long, in nanoseconds, a thread may be held up after it has read the clock.
const RACE: u64 = 1_000_000_000;

/// After which time a shed request may come again, to which up to as much is added.
const RETRY_AFTER: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct Shedder {
    levels: Levels,
    /// Below it, requests are shed; 0 while none are.
    cut: AtomicU32,
    /// When the signals were read, in nanoseconds.
    read_at: AtomicU64,
    state: Mutex<State>,
    /// Requests of each class below the cut.
    below: [AtomicU32; CLASSES],
    reported: Reported,
}

#[derive(Debug, Default)]
struct State {
    controller: Controller,
    /// For how long nothing was shed since the log said that shedding starts; `None` before.
    quiet: Option<Duration>,
}

impl State {
    /// Whether shedding starts (`true`) or ends now. A signal near its threshold is above it
    /// many times a second; that is one overload.
    fn change(&mut self, passed: Duration) -> Option<bool> {
        if self.controller.fraction() > 0.0 {
            return self.quiet.replace(Duration::ZERO).is_none().then_some(true);
        }
        let quiet = self.quiet? + passed;
        self.quiet = (quiet < LONGEST_MEMORY).then_some(quiet);
        self.quiet.is_none().then_some(false)
    }
}

/// What operators see of it.
#[cfg(feature = "admin")]
#[derive(Debug, serde::Serialize)]
pub(crate) struct Readings {
    /// The part of the requests that is shed.
    pub(crate) shed_fraction: f64,
    pub(crate) signals: Vec<SignalReading>,
}

#[cfg(feature = "admin")]
#[derive(Debug, serde::Serialize)]
pub(crate) struct SignalReading {
    pub(crate) name: String,
    /// `None` of one that fails.
    pub(crate) value: Option<f64>,
    pub(crate) threshold: f64,
}

impl Shedder {
    /// Counts a request. If it is to be shed, returns after how many nanoseconds it may come
    /// again.
    pub(crate) fn shed(
        &self,
        overload: &Overload,
        priority: Priority,
        tenant: Option<TenantId<'_>>,
        now: Timestamp,
    ) -> Option<u64> {
        self.read(overload, now);
        let level = self.levels.of(priority, tenant, now);
        self.levels.record(level);
        let cut = self.cut.load(Ordering::Relaxed);
        if cut == 0 || !self.levels.is_below(level, cut) {
            return None;
        }
        let below = self.below[priority as usize].fetch_add(1, Ordering::Relaxed);
        (below % PASSING != PASSING - 1).then(|| RETRY_AFTER + draw(RETRY_AFTER))
    }

    /// What the signals say now.
    #[cfg(feature = "admin")]
    pub(crate) fn readings(&self, overload: &Overload) -> Readings {
        let shed_fraction = crate::sync::lock(&self.state).controller.fraction();
        let read = |watched: &Watched| {
            let Watched { signal, threshold } = watched;
            SignalReading { name: signal.name().to_owned(), value: self.load_of(watched), threshold: *threshold }
        };
        Readings { shed_fraction, signals: overload.signals.iter().map(read).collect() }
    }

    /// Reads the signals, if it is time and no other thread does.
    fn read(&self, overload: &Overload, now: Timestamp) {
        let (now, last) = (now.as_nanos(), self.read_at.load(Ordering::Relaxed));
        // Another thread may have read the clock a little later; further back, the clock was set.
        let passed = now.checked_sub(last).unwrap_or_else(|| if last - now < RACE { 0 } else { nanos(INTERVAL) });
        let passed = Duration::from_nanos(passed);
        if passed < INTERVAL {
            return;
        }
        let Ok(mut state) = self.state.try_lock() else { return };
        self.read_at.store(now, Ordering::Relaxed);
        let read = overload.signals.iter().filter_map(|watched| {
            let load = self.load_of(watched)?;
            Some((watched.error(load), load, watched))
        });
        let worst = read.max_by(|one, other| one.0.total_cmp(&other.0));
        // Where none works, it is as if all were at their thresholds.
        let error = worst.map_or(0.0, |(error, ..)| error);
        if passed > LONGEST_MEMORY {
            state.controller = Controller::default();
        }
        // How long a signal was above its threshold is not known after a pause without requests.
        let step = if error > 0.0 { passed.min(LONGEST_STEP) } else { passed };
        state.controller.step(error, step.as_secs_f64());
        let fraction = state.controller.fraction();
        report_shed_fraction(fraction);
        if let Some(starts) = state.change(passed) {
            let (name, load, threshold) =
                worst.map_or(("none", 0.0, 0.0), |(_, load, worst)| (worst.signal.name(), load, worst.threshold));
            log_shedding(starts, name, load, threshold);
        }
        self.cut.store(if fraction > 0.0 { self.levels.cut(fraction) } else { 0 }, Ordering::Relaxed);
    }

    /// The load of a signal; `None` if it fails.
    fn load_of(&self, watched: &Watched) -> Option<f64> {
        let signal = &watched.signal;
        let load = catch_unwind(AssertUnwindSafe(|| signal.load())).ok().filter(|load| !load.is_nan());
        if load.is_none() {
            self.reported.report(Mistake::FailedSignal, &format_args!("signal `{}`", signal.name()));
        }
        load
    }
}
