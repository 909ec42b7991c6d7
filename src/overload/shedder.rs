//! What is shed while a limiter's process is overloaded: [`Shedder`], by a [`Controller`] of the
//! part that is shed and the [`Levels`] of the last requests.
//!
//! It outlives the policies of its limiter. Invariants: signals are read by one request at
//! a time, and no other waits for it; the requests that matter least are shed first.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{Overload, Watched};
use crate::{
    descriptor::{Priority, TenantId},
    jitter::draw,
    observe::{Mistake, Reported, log_shedding, report_shed_fraction},
    time::{Timestamp, nanos},
};

/// How often the signals are read.
const INTERVAL: Duration = Duration::from_millis(20);

/// The number of classes.
const CLASSES: usize = Priority::ALL.len();

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
        if self.controller.fraction > 0.0 {
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
        let shed_fraction = crate::sync::lock(&self.state).controller.fraction;
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
        let fraction = state.controller.fraction;
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

/// The largest part that is shed.
const MOST: f64 = 0.95;

/// What an error, the part by which a signal is above its threshold, adds at once.
const PROPORTIONAL: f64 = 0.3;

/// What it adds in a second.
const INTEGRAL: f64 = 0.5;

/// What an error below 0 takes away in a second: more, or recovery would take twice as long.
const FALL: f64 = 1.0;

/// Within so many seconds any integral falls to 0, while no signal is above its threshold.
const LONGEST_FALL: f64 = 10.0;

/// Which part of all requests is shed: a proportional-integral controller.
///
/// It controls the logarithm of the part that is admitted: a step admits so many times less.
/// One gain then holds at every load. A step of the part that is shed does not: from 90%,
/// two hundredths more take a fifth of what is admitted.
///
/// The integral stops where the sum reaches its most. A backlog needs that much for a moment,
/// and would leave behind an integral that the load does not need.
///
/// The gains are those that kept goodput, latency and critical requests best in the
/// simulations of `tests/sim/overload.rs`. The integral's is that of the first design.
///
/// The part is from 0 to [`MOST`], and back at 0 within ten seconds in which no signal is
/// above its threshold.
#[derive(Debug, Default)]
struct Controller {
    integral: f64,
    /// The part of all requests that is shed.
    fraction: f64,
}

impl Controller {
    /// `seconds` have passed since the last step; `error` is of the worst signal, 0 at its
    /// threshold.
    fn step(&mut self, error: f64, seconds: f64) {
        let most = -(1.0 - MOST).ln();
        let error = error.max(-1.0);
        let proportional = PROPORTIONAL * error;
        let change = if error > 0.0 { INTEGRAL * error } else { (FALL * error).min(-most / LONGEST_FALL) };
        // At the most, the integral stays.
        let highest = if error > 0.0 { most - proportional } else { most };
        if highest > self.integral || error <= 0.0 {
            self.integral = (self.integral + change * seconds).clamp(0.0, highest);
        }
        self.fraction = (1.0 - (-self.integral - proportional).exp()).clamp(0.0, MOST);
    }
}

/// The groups of tenants of one class.
const GROUPS: usize = 128;

const LEVELS: usize = CLASSES * GROUPS;

/// How many requests are remembered.
const SEEN: usize = 1_000;

/// How finely a level is cut.
const PARTS: u32 = 1_000;

/// How much the last requests mattered. A level is a class and, within it, one of 128 groups
/// of tenants. The lowest levels are cut off first, and of one level as much as is needed.
#[derive(Debug)]
struct Levels {
    /// One more than the level; 0 for none.
    seen: [AtomicU16; SEEN],
    next: AtomicUsize,
    counts: [AtomicU32; LEVELS],
    /// Spreads the requests of the level that is cut.
    turn: AtomicU32,
    /// Spreads the requests without a tenant over the groups.
    anonymous: AtomicUsize,
}

impl Default for Levels {
    fn default() -> Self {
        Self {
            seen: [const { AtomicU16::new(0) }; SEEN],
            next: AtomicUsize::new(0),
            counts: [const { AtomicU32::new(0) }; LEVELS],
            turn: AtomicU32::new(0),
            anonymous: AtomicUsize::new(0),
        }
    }
}

impl Levels {
    /// The level of a request. Those without a tenant have each in turn.
    fn of(&self, priority: Priority, tenant: Option<TenantId<'_>>, now: Timestamp) -> usize {
        match tenant {
            Some(tenant) => level(priority, tenant, now),
            // Far from the one before: 47 has no divisor in common with the groups.
            None => priority as usize * GROUPS + self.anonymous.fetch_add(47, Ordering::Relaxed) % GROUPS,
        }
    }

    fn record(&self, level: usize) {
        let place = &self.seen[self.next.fetch_add(1, Ordering::Relaxed) % SEEN];
        let before = place.swap(u16::try_from(level + 1).unwrap_or(0), Ordering::Relaxed);
        self.counts[level].fetch_add(1, Ordering::Relaxed);
        if let Some(before) = usize::from(before).checked_sub(1) {
            self.counts[before].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The cut below which this part of the requests that were seen lies.
    fn cut(&self, fraction: f64) -> u32 {
        let counts = self.counts.each_ref().map(|count| f64::from(count.load(Ordering::Relaxed)));
        let mut left = fraction * counts.iter().sum::<f64>();
        for (level, count) in counts.into_iter().enumerate() {
            if left < count {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to `PARTS`")]
                let part = (left / count * f64::from(PARTS)) as u32;
                return position(level) + part;
            }
            left -= count;
        }
        // Nothing was seen yet.
        0
    }

    /// Whether a request of this level lies below the cut.
    fn is_below(&self, level: usize, cut: u32) -> bool {
        let (start, end) = (position(level), position(level + 1));
        if !(start..end).contains(&cut) {
            return end <= cut;
        }
        // A step that has no divisor in common with the parts visits each once, far from
        // the one before.
        let turn = self.turn.fetch_add(617, Ordering::Relaxed) % PARTS;
        start + turn < cut
    }
}

/// The level of a tenant's requests. Instances agree on it.
fn level(priority: Priority, tenant: TenantId<'_>, now: Timestamp) -> usize {
    let mut hasher = DefaultHasher::new();
    (tenant, now.as_secs() / 3_600).hash(&mut hasher);
    // Fewer than 128.
    priority as usize * GROUPS + (hasher.finish() % GROUPS as u64) as usize
}

fn position(level: usize) -> u32 {
    u32::try_from(level).unwrap_or(0) * PARTS
}

#[cfg(test)]
mod tests;
