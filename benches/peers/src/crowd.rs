//! 100,000 tasks that wait at the same time, each for one admission.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, sync::Notify, time::timeout};

use crate::{
    alloc, cpu,
    pacers::{Pace, Pacer},
    race::now,
    waits::runtime,
};

pub const WAITERS: usize = 100_000;

/// The last reservation is due after 2.5 s.
pub const ONE_KEY: Pace = Pace { interval: Duration::from_micros(25), keys: 1 };

/// Each key's first unit is taken before the measurement, spread over about a
/// second.
pub const KEY_EACH: Pace = Pace { interval: Duration::from_secs(3), keys: WAITERS };

/// The measurement gives up after this many times the schedule.
const PATIENCE: u32 = 4;

/// The result of one run.
pub struct Crowd {
    /// The time from the first due admission to the last actual one, and the same
    /// time by the schedule.
    pub took: Duration,
    pub scheduled: Duration,
    pub cpu: Duration,
    /// The lateness of each admission, in milliseconds. Negative is early.
    pub late: Vec<f64>,
}

/// The time of each admission, in nanoseconds; 0 while the task waits.
struct Admissions {
    start: Instant,
    times: Vec<AtomicU64>,
    waiting: AtomicUsize,
    all_admitted: Notify,
}

impl Admissions {
    fn new() -> Arc<Self> {
        let times = (0..WAITERS).map(|_| AtomicU64::new(0)).collect();
        let waiting = AtomicUsize::new(WAITERS);
        Arc::new(Self { start: Instant::now(), times, waiting, all_admitted: Notify::new() })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn record(&self, caller: usize) {
        self.times[caller].store(self.now(), Ordering::Relaxed);
        if self.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all_admitted.notify_one();
        }
    }
}

pub fn crowd<P: Pacer>(pacer: &Arc<P>, pace: Pace) -> Crowd {
    let admissions = Admissions::new();
    let primed = if pace.keys > 1 { prime(pacer, &admissions) } else { Vec::new() };
    let runtime = runtime();
    let start = cpu::time();
    rush(&runtime, pacer, &admissions, patience(pace));
    let cpu = cpu::time() - start;
    drop(runtime);

    let times = admissions.times.iter().map(|at| at.load(Ordering::Relaxed)).enumerate();
    let mut admitted: Vec<(usize, u64)> = times.filter(|(_, at)| *at > 0).collect();
    admitted.sort_unstable_by_key(|(_, at)| *at);
    let interval = pace.interval.as_nanos() as u64;
    let due = |position: usize, caller: usize| match primed.get(caller) {
        // With a key for each caller, its key's next unit.
        Some(primed) => primed + interval,
        // On one key, by position in the order of admission.
        None => admitted[0].1 + position as u64 * interval,
    };
    let late =
        admitted.iter().enumerate().map(|(position, &(caller, at))| (at as f64 - due(position, caller) as f64) / 1e6);
    let (first, last) = (due(0, 0), due(WAITERS - 1, WAITERS - 1));
    Crowd {
        took: Duration::from_nanos(admitted.last().map_or(0, |(_, at)| *at).saturating_sub(first)),
        scheduled: Duration::from_nanos(last - first),
        cpu,
        late: late.collect(),
    }
}

/// Peak memory in bytes for each waiter, tasks and timers included.
pub fn peak_bytes<P: Pacer>(pacer: &Arc<P>, pace: Pace) -> f64 {
    let admissions = Admissions::new();
    if pace.keys > 1 {
        prime(pacer, &admissions);
    }
    let runtime = runtime();
    let ((), bytes) = alloc::peak(|| rush(&runtime, pacer, &admissions, patience(pace)));
    bytes as f64 / WAITERS as f64
}

fn patience(pace: Pace) -> Duration {
    if pace.keys > 1 { pace.interval * PATIENCE } else { pace.interval * PATIENCE * WAITERS as u32 }
}

/// Takes each key's first unit, a hundred a millisecond. Returns the times.
fn prime<P: Pacer>(pacer: &Arc<P>, admissions: &Admissions) -> Vec<u64> {
    let mut primed = Vec::with_capacity(WAITERS);
    for caller in 0..WAITERS {
        if caller % 100 == 99 {
            thread::sleep(Duration::from_millis(1));
        }
        now(pacer.admit(caller));
        primed.push(admissions.now());
    }
    primed
}

fn rush<P: Pacer>(runtime: &Runtime, pacer: &Arc<P>, admissions: &Arc<Admissions>, patience: Duration) {
    runtime.block_on(async {
        for caller in 0..WAITERS {
            let (pacer, admissions) = (Arc::clone(pacer), Arc::clone(admissions));
            tokio::spawn(async move {
                pacer.admit(caller).await;
                admissions.record(caller);
            });
        }
        // Tasks that still wait afterwards have no recorded time.
        let _ = timeout(patience, admissions.all_admitted.notified()).await;
    });
}
