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
    controller: Mutex<Controller>,
    /// Requests of each class below the cut.
    below: [AtomicU32; CLASSES],
    reported: Reported,
}

/// What operators see of it.
#[cfg(feature = "admin")]
#[derive(Debug)]
pub(crate) struct Readings {
    /// The part of the requests that is shed.
    pub(crate) fraction: f64,
    /// The name, threshold and value of each signal; no value of one that fails.
    pub(crate) signals: Vec<(String, f64, Option<f64>)>,
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
        let fraction = self.controller.lock().unwrap_or_else(std::sync::PoisonError::into_inner).fraction();
        let read = |watched: &Watched| {
            let Watched { signal, threshold } = watched;
            let value = self.error_of(watched).map(|(error, _)| (error + 1.0) * threshold);
            (signal.name().to_owned(), *threshold, value)
        };
        Readings { fraction, signals: overload.signals.iter().map(read).collect() }
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
        let Ok(mut controller) = self.controller.try_lock() else { return };
        self.read_at.store(now, Ordering::Relaxed);
        let worst = overload.signals.iter().filter_map(|watched| self.error_of(watched));
        let worst = worst.max_by(|one, other| one.0.total_cmp(&other.0));
        // Where none works, it is as if all were at their thresholds.
        let error = worst.map_or(0.0, |(error, _)| error);
        let was_shedding = controller.fraction() > 0.0;
        if passed > LONGEST_MEMORY {
            *controller = Controller::default();
        }
        // How long a signal was above its threshold is not known after a pause without requests.
        let passed = if error > 0.0 { passed.min(2 * INTERVAL) } else { passed };
        controller.step(error, passed.as_secs_f64());
        let fraction = controller.fraction();
        report_shed_fraction(fraction);
        if was_shedding != (fraction > 0.0) {
            let (name, threshold) = worst.map_or(("none", 0.0), |(_, worst)| (worst.signal.name(), worst.threshold));
            log_shedding(fraction > 0.0, name, (error + 1.0) * threshold, threshold);
        }
        self.cut.store(if fraction > 0.0 { self.levels.cut(fraction) } else { 0 }, Ordering::Relaxed);
    }

    /// By which part a signal is above its threshold; `None` if it fails.
    fn error_of<'o>(&self, watched: &'o Watched) -> Option<(f64, &'o Watched)> {
        let load = catch_unwind(AssertUnwindSafe(|| watched.signal.load())).ok().filter(|load| !load.is_nan());
        if load.is_none() {
            self.reported.report(Mistake::FailedSignal, &format_args!("signal `{}`", watched.signal.name()));
        }
        Some((load? / watched.threshold - 1.0, watched))
    }
}
