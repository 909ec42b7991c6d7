//! Contestants run in turns, several rounds, in one process: what the machine
//! does meanwhile falls on all of them alike.

use std::{
    pin::pin,
    sync::Barrier,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use crate::{alloc, table::Spread};

/// How long and how often each contestant runs.
#[derive(Clone, Copy)]
pub struct Plan {
    pub rounds: usize,
    pub turn: Duration,
}

/// Adds up the stretches between `start` and `stop`.
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

/// Makes `calls` calls with the callers from `start` on, round and round.
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
    /// Nanoseconds a call on each thread, round by round.
    rounds: Vec<f64>,
}

impl Outcome {
    pub fn nanos(&self) -> Spread {
        Spread::of(self.rounds.iter().copied())
    }

    /// The median of what `compare` makes of each round of both: a round that
    /// the machine slowed was slow for both.
    pub fn paired(&self, other: &Self, compare: impl Fn(f64, f64) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(&other.rounds);
        Spread::of(pairs.map(|(own, other)| compare(*own, *other))).median
    }

    /// This outcome over `floor`, round by round.
    pub fn above(&self, floor: &Self) -> Self {
        let pairs = self.rounds.iter().zip(&floor.rounds);
        Self { rounds: pairs.map(|(own, floor)| own - floor).collect(), ..*self }
    }
}

/// Races the contestants, one thread for each stream.
pub fn race<K: Sync>(contestants: &[Contestant<K>], streams: &[Vec<K>], plan: Plan) -> Vec<Outcome> {
    let calls: Vec<usize> = contestants.iter().map(|contestant| calls_in(plan.turn, contestant, streams)).collect();
    let mut samples = vec![Vec::new(); contestants.len()];
    for round in 0..plan.rounds {
        for turn in 0..contestants.len() {
            // Nobody always runs after the same neighbour.
            let who = (turn + round) % contestants.len();
            samples[who].push(run(&contestants[who], streams, round * calls[who], calls[who]));
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

/// Touches every key, then finds how many calls fill a turn.
fn calls_in<K: Sync>(turn: Duration, contestant: &Contestant<K>, streams: &[Vec<K>]) -> usize {
    (contestant.drive)(&streams[0], 0, streams[0].len());
    let trial = streams[0].len().min(50_000);
    let nanos = run(contestant, streams, 0, trial);
    (turn.as_nanos() as f64 / nanos) as usize + 1
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
