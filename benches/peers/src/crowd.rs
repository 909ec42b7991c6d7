//! Very many tasks that wait at once, each for one turn.

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

/// All have gone after 2.5 s.
pub const ONE_KEY: Pace = Pace { interval: Duration::from_micros(25), keys: 1 };

/// Each key has had its first turn, in the course of a second or so, before
/// all are waited for.
pub const KEY_EACH: Pace = Pace { interval: Duration::from_secs(3), keys: WAITERS };

/// Who takes this many times as long as the schedule is not waited for.
const PATIENCE: u32 = 4;

/// What became of a crowd.
pub struct Crowd {
    /// From the first that was due until the last had gone, and what that is
    /// by the schedule.
    pub took: Duration,
    pub scheduled: Duration,
    pub cpu: Duration,
    /// How late each went that did go, in milliseconds; negative is early.
    pub late: Vec<f64>,
}

/// When each has gone, in nanoseconds; 0 while it waits.
struct Departures {
    start: Instant,
    gone: Vec<AtomicU64>,
    left: AtomicUsize,
    all_gone: Notify,
}

impl Departures {
    fn new() -> Arc<Self> {
        let gone = (0..WAITERS).map(|_| AtomicU64::new(0)).collect();
        let left = AtomicUsize::new(WAITERS);
        Arc::new(Self { start: Instant::now(), gone, left, all_gone: Notify::new() })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn note(&self, who: usize) {
        self.gone[who].store(self.now(), Ordering::Relaxed);
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all_gone.notify_one();
        }
    }
}

pub fn crowd<P: Pacer>(pacer: &Arc<P>, pace: Pace) -> Crowd {
    let departures = Departures::new();
    let primed = if pace.keys > 1 { prime(pacer, &departures) } else { Vec::new() };
    let runtime = runtime();
    let start = cpu::time();
    rush(&runtime, pacer, &departures, patience(pace));
    let cpu = cpu::time() - start;
    drop(runtime);

    let gone: Vec<(usize, u64)> = departures.gone.iter().map(|at| at.load(Ordering::Relaxed)).enumerate().collect();
    let mut gone: Vec<(usize, u64)> = gone.into_iter().filter(|(_, at)| *at > 0).collect();
    gone.sort_unstable_by_key(|(_, at)| *at);
    let interval = pace.interval.as_nanos() as u64;
    let due = |place: usize, who: usize| match primed.get(who) {
        // Each by its own key.
        Some(primed) => primed + interval,
        // In the order in which they went, from the first of them on.
        None => gone[0].1 + place as u64 * interval,
    };
    let late = gone.iter().enumerate().map(|(place, &(who, at))| (at as f64 - due(place, who) as f64) / 1e6);
    let (first, last) = (due(0, 0), due(WAITERS - 1, WAITERS - 1));
    Crowd {
        took: Duration::from_nanos(gone.last().map_or(0, |(_, at)| *at).saturating_sub(first)),
        scheduled: Duration::from_nanos(last - first),
        cpu,
        late: late.collect(),
    }
}

/// The most bytes that it takes for them to wait, tasks and timers included.
pub fn peak_bytes<P: Pacer>(pacer: &Arc<P>, pace: Pace) -> f64 {
    let departures = Departures::new();
    if pace.keys > 1 {
        prime(pacer, &departures);
    }
    let runtime = runtime();
    let ((), bytes) = alloc::peak(|| rush(&runtime, pacer, &departures, patience(pace)));
    bytes as f64 / WAITERS as f64
}

fn patience(pace: Pace) -> Duration {
    if pace.keys > 1 { pace.interval * PATIENCE } else { pace.interval * PATIENCE * WAITERS as u32 }
}

/// Takes each key's first turn, a hundred a millisecond; returns when.
fn prime<P: Pacer>(pacer: &Arc<P>, departures: &Departures) -> Vec<u64> {
    let mut primed = Vec::with_capacity(WAITERS);
    for who in 0..WAITERS {
        if who % 100 == 99 {
            thread::sleep(Duration::from_millis(1));
        }
        now(pacer.turn(who));
        primed.push(departures.now());
    }
    primed
}

fn rush<P: Pacer>(runtime: &Runtime, pacer: &Arc<P>, departures: &Arc<Departures>, patience: Duration) {
    runtime.block_on(async {
        for who in 0..WAITERS {
            let (pacer, departures) = (Arc::clone(pacer), Arc::clone(departures));
            tokio::spawn(async move {
                pacer.turn(who).await;
                departures.note(who);
            });
        }
        // Who is not through by then shows in what has gone.
        let _ = timeout(patience, departures.all_gone.notified()).await;
    });
}
