//! Interleaved measurement: contestants alternate in one process for several
//! rounds, so that noise from the machine affects all of them.

use std::{
    pin::pin,
    sync::Barrier,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use crate::{alloc, table::Spread};

/// The length and number of each contestant's runs.
#[derive(Clone, Copy)]
pub struct Plan {
    pub rounds: usize,
    pub run: Duration,
}

/// Sums up the measured intervals.
#[derive(Clone, Copy, Default)]
pub struct Meter {
    elapsed: Duration,
    allocations: u64,
}

impl Meter {
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let allocations = alloc::allocations();
        let start = Instant::now();
        let result = work();
        self.elapsed += start.elapsed();
        self.allocations += alloc::allocations() - allocations;
        result
    }
}

/// Makes `calls` calls with the callers from `start` on, cyclically.
type Drive<K> = dyn Fn(&[K], usize, usize) -> Meter + Send + Sync;

pub struct Contestant<K> {
    pub name: &'static str,
    drive: Box<Drive<K>>,
}

impl<K> Contestant<K> {
    pub fn new(name: &'static str, drive: impl Fn(&[K], usize, usize) -> Meter + Send + Sync + 'static) -> Self {
        Self { name, drive: Box::new(drive) }
    }
}

pub struct Outcome {
    pub name: &'static str,
    pub allocations: f64,
    /// Nanoseconds a call and thread, one value for each round.
    rounds: Vec<f64>,
}

impl Outcome {
    pub fn nanos(&self) -> Spread {
        Spread::of(self.rounds.iter().copied())
    }

    /// The median of `compare` over the rounds of both. Comparing within a round
    /// cancels noise that slowed the whole round.
    pub fn paired(&self, other: &Self, compare: impl Fn(f64, f64) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(&other.rounds);
        Spread::of(pairs.map(|(own, other)| compare(*own, *other))).median
    }

    /// The difference to `floor`, for each round.
    pub fn above(&self, floor: &Self) -> Self {
        let pairs = self.rounds.iter().zip(&floor.rounds);
        Self { rounds: pairs.map(|(own, floor)| own - floor).collect(), ..*self }
    }
}

/// Races the contestants, one thread for each stream.
pub fn race<K: Sync>(contestants: &[Contestant<K>], streams: &[Vec<K>], plan: Plan) -> Vec<Outcome> {
    let calls: Vec<usize> = contestants.iter().map(|contestant| calls_in(plan.run, contestant, streams)).collect();
    let mut samples = vec![Vec::new(); contestants.len()];
    for round in 0..plan.rounds {
        for position in 0..contestants.len() {
            // Rotate the order, so that no contestant always follows the same one.
            let index = (position + round) % contestants.len();
            samples[index].push(run(&contestants[index], streams, round * calls[index], calls[index]));
        }
    }
    contestants
        .iter()
        .zip(samples)
        .map(|(contestant, rounds)| Outcome {
            name: contestant.name,
            allocations: allocations_per_call(contestant, &streams[0]),
            rounds,
        })
        .collect()
}

/// Touches every key, then returns the number of calls that take `duration`.
fn calls_in<K: Sync>(duration: Duration, contestant: &Contestant<K>, streams: &[Vec<K>]) -> usize {
    (contestant.drive)(&streams[0], 0, streams[0].len());
    let trial = streams[0].len().min(50_000);
    let nanos = run(contestant, streams, 0, trial);
    (duration.as_nanos() as f64 / nanos) as usize + 1
}

/// Nanoseconds a call, averaged over the threads.
fn run<K: Sync>(contestant: &Contestant<K>, streams: &[Vec<K>], start: usize, calls: usize) -> f64 {
    let barrier = Barrier::new(streams.len());
    let meters: Vec<Meter> = thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter()
            .map(|stream| {
                scope.spawn(|| {
                    barrier.wait();
                    (contestant.drive)(stream, start % stream.len(), calls)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a contestant panicked")).collect()
    });
    let total: Duration = meters.iter().map(|meter| meter.elapsed).sum();
    total.as_nanos() as f64 / (meters.len() * calls) as f64
}

fn allocations_per_call<K>(contestant: &Contestant<K>, stream: &[K]) -> f64 {
    const CALLS: usize = 10_000;
    let (meter, _) = alloc::counted(|| (contestant.drive)(stream, 0, CALLS));
    meter.allocations as f64 / CALLS as f64
}

/// The output of a future that is ready at once, as every local decision is.
pub fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a local decision waits for nothing"),
    }
}
