//! What shows overload: [`LoadSignal`], the [`cpu`] in use, and how late timers fire,
//! [`scheduling_delay`].
//!
//! It compares nothing: see [`Overload`](super::Overload). Timers are measured by the standard
//! library's clock: Tokio's may be paused. Invariants: where the CPU cannot be measured, a policy
//! that asks for it is invalid; and the task of a signal ends with it.

#![allow(clippy::disallowed_methods, reason = "it measures, and decides nothing")]

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use tokio::runtime::Handle;

use super::ticks::Ticks;
use crate::sync::lock;

/// The names of the signals that a policy file can have.
pub(crate) const CPU: &str = "cpu";
pub(crate) const SCHEDULING_DELAY: &str = "scheduling_delay";

/// Something that grows as the process has too much to do.
///
/// A function without arguments is one: `|| queue.len() as f64`. It is called by a request
/// each 20 ms, so it must not block. A load that is no number (NaN), and a panic, are
/// ignored, with one warning (`RL013`).
///
/// ```
/// use tower_ratelimit::overload::LoadSignal;
///
/// struct Memory { used: u64, limit: u64 }
///
/// impl LoadSignal for Memory {
///     fn name(&self) -> &str {
///         "memory"
///     }
///
///     fn load(&self) -> f64 {
///         self.used as f64 / self.limit as f64
///     }
/// }
/// # assert_eq!(Memory { used: 1, limit: 2 }.load(), 0.5);
/// ```
#[doc(hidden)]
pub trait LoadSignal: Send + Sync + 'static {
    /// The load now, in the unit of its threshold.
    fn load(&self) -> f64;

    /// What the signal is called in the log and in errors.
    fn name(&self) -> &str {
        "signal"
    }

    /// The highest load that there can be.
    #[doc(hidden)]
    fn most(&self) -> f64 {
        f64::INFINITY
    }

    /// Why it cannot be measured here.
    ///
    /// # Errors
    ///
    /// The reason.
    #[doc(hidden)]
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

impl<F: Fn() -> f64 + Send + Sync + 'static> LoadSignal for F {
    fn load(&self) -> f64 {
        self()
    }
}

/// A signal with a name: what `load` returns.
pub fn named(name: impl Into<String>, load: impl Fn() -> f64 + Send + Sync + 'static) -> impl LoadSignal {
    Named { name: name.into(), load }
}

/// A signal with a name.
struct Named<F> {
    name: String,
    load: F,
}

impl<F: Fn() -> f64 + Send + Sync + 'static> LoadSignal for Named<F> {
    fn load(&self) -> f64 {
        (self.load)()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// How much of the CPU that this process may use is in use, over the last second: from 0
/// to 1. Of a control group with a limit (cgroup v2, `cpu.max`) what the group uses of that
/// limit, else what all processes use of the machine. On Linux only: elsewhere, the policy
/// is invalid.
pub fn cpu() -> impl LoadSignal {
    Cpu { source: Source::find(Path::new("/")), samples: Mutex::default() }
}

/// Over how long the use is averaged.
const SPAN: Duration = Duration::from_secs(1);

/// How often it is sampled at most: the system's files are slow to read.
const STEP: Duration = Duration::from_millis(100);

/// See [`cpu`].
#[derive(Debug)]
struct Cpu {
    source: Option<Source>,
    /// The last samples, and the load that they show.
    samples: Mutex<(VecDeque<(Instant, Sample)>, f64)>,
}

impl LoadSignal for Cpu {
    fn load(&self) -> f64 {
        let Some(source) = &self.source else { return f64::NAN };
        let now = Instant::now();
        let mut samples = lock(&self.samples);
        let (samples, load) = &mut *samples;
        if samples.back().is_some_and(|(at, _)| now.duration_since(*at) < STEP) {
            return *load;
        }
        let Some(sample) = source.sample(Path::new("/")) else { return f64::NAN };
        let now = (now, sample);
        // The last sample that is a second old stays, as the start of the span.
        while samples.get(1).is_some_and(|(at, _)| now.0.duration_since(*at) >= SPAN) {
            samples.pop_front();
        }
        *load = samples.front().map_or(0.0, |first| source.part(*first, now));
        samples.push_back(now);
        *load
    }

    fn name(&self) -> &str {
        CPU
    }

    fn most(&self) -> f64 {
        1.0
    }

    fn check(&self) -> Result<(), String> {
        let reason = "the CPU cannot be measured here: neither a control group nor `/proc/stat` can be read";
        self.source.as_ref().map(|_| ()).ok_or_else(|| reason.to_owned())
    }
}

/// Where the use is read.
#[derive(Clone, Debug, PartialEq)]
enum Source {
    /// A control group's folder, and the CPUs that it may use: 1.5 for one and a half.
    Group(PathBuf, f64),
    Machine,
}

/// What was used since some start, and what could have been; in the same unit. `None` for
/// a control group, which may use so much in each second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    used: f64,
    available: Option<f64>,
}

impl Source {
    /// Below this root, the limited control group of this process, else the machine.
    fn find(root: &Path) -> Option<Self> {
        let group = || {
            let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
            let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
            let folder = root.join("sys/fs/cgroup").join(own);
            let limit = fs::read_to_string(folder.join("cpu.max")).ok()?;
            let cpus = quota(&limit)?;
            let source = Self::Group(folder, cpus);
            source.sample(root).map(|_| source)
        };
        group().or_else(|| Self::Machine.sample(root).map(|_| Self::Machine))
    }

    fn sample(&self, root: &Path) -> Option<Sample> {
        match self {
            Self::Group(folder, _) => {
                let stat = fs::read_to_string(folder.join("cpu.stat")).ok()?;
                let used = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
                Some(Sample { used: used.trim().parse::<f64>().ok()? / 1e6, available: None })
            }
            Self::Machine => machine(&fs::read_to_string(root.join("proc/stat")).ok()?),
        }
    }

    /// The part that was used between two samples.
    fn part(&self, from: (Instant, Sample), to: (Instant, Sample)) -> f64 {
        let available = match (self, from.1.available, to.1.available) {
            (Self::Group(_, cpus), ..) => to.0.duration_since(from.0).as_secs_f64() * cpus,
            (Self::Machine, from, to) => to.unwrap_or(0.0) - from.unwrap_or(0.0),
        };
        if available > 0.0 { (to.1.used - from.1.used) / available } else { 0.0 }
    }
}

/// The CPUs of a `cpu.max`: `150000 100000` is 1.5, `max 100000` is no limit.
fn quota(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace().map(|word| word.parse::<f64>().ok());
    let (quota, period) = (words.next()??, words.next()??);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
fn machine(text: &str) -> Option<Sample> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Option<Vec<f64>> = line.split_whitespace().take(8).map(|word| word.parse().ok()).collect();
    let ticks = ticks.filter(|ticks| ticks.len() >= 5)?;
    let available: f64 = ticks.iter().sum();
    Some(Sample { used: available - ticks[3] - ticks[4], available: Some(available) })
}

/// How late timers of this runtime fire, in seconds: the least of the last 100 ms, so that a
/// burst is no overload. It shows an executor that is blocked or has too much to do, which
/// the CPU does not. A task of the runtime of the first request measures it, and ends with
/// the policy.
pub fn scheduling_delay() -> impl LoadSignal {
    SchedulingDelay::default()
}

/// See [`scheduling_delay`].
#[derive(Debug, Default)]
struct SchedulingDelay {
    /// `None` until the first request within a runtime.
    ticks: Mutex<Option<Arc<Mutex<Ticks>>>>,
}

impl LoadSignal for SchedulingDelay {
    fn load(&self) -> f64 {
        let mut ticks = lock(&self.ticks);
        if ticks.is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            let started = Arc::new(Mutex::new(Ticks::new(Instant::now())));
            runtime.spawn(tick(Arc::downgrade(&started)));
            *ticks = Some(started);
        }
        ticks.as_ref().map_or(0.0, |ticks| lock(ticks).delay(Instant::now()).as_secs_f64())
    }

    fn name(&self) -> &str {
        SCHEDULING_DELAY
    }
}

async fn tick(ticks: Weak<Mutex<Ticks>>) {
    while let Some(due) = ticks.upgrade().map(|ticks| lock(&ticks).due) {
        tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
        let Some(ticks) = ticks.upgrade() else { return };
        lock(&ticks).fire(Instant::now());
    }
}

#[cfg(test)]
mod tests;
