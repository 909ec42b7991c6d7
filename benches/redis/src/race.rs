//! Interleaved measurement: contenders alternate on one server for several
//! rounds, so that noise from the machine affects all of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::{JoinSet, yield_now};

use crate::{AnyError, contenders::Contender};

/// The length and number of each contender's runs.
#[derive(Clone, Copy)]
pub struct Plan {
    pub rounds: usize,
    pub run: Duration,
}

/// What one run of a contender made.
#[derive(Clone, Copy)]
pub struct Run {
    /// Decisions a second.
    pub rate: f64,
    /// The time that all but one of a hundred decisions took at most, in microseconds.
    pub p99: f64,
}

/// How many decisions a task makes before it lets others run, as a server does that
/// goes to its sockets.
const BETWEEN_YIELDS: u64 = 64;

/// How long decisions took, in nanoseconds: eight buckets for each power of two.
pub struct Times([u64; 512]);

impl Times {
    pub fn new() -> Self {
        Self([0; 512])
    }

    pub fn add(&mut self, time: Duration) {
        let nanos = time.as_nanos().clamp(8, 1 << 60) as u64;
        let power = nanos.ilog2();
        let eighth = (nanos >> (power - 3)) as usize - 8;
        self.0[power as usize * 8 + eighth] += 1;
    }

    pub fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own += other);
    }

    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The time that all but one of so many take at most: the end of the bucket that it is in,
    /// in microseconds.
    pub fn all_but_one_of(&self, of: u64) -> f64 {
        let mut left = self.count() / of;
        let is_in = |(_, count): &(usize, &u64)| {
            let is_in = **count > left;
            left = left.saturating_sub(**count);
            is_in
        };
        let bucket = self.0.iter().enumerate().rev().find(is_in).map_or(0, |(bucket, _)| bucket);
        (bucket % 8 + 9) as f64 * 2_f64.powi((bucket / 8) as i32 - 3) / 1_000.0
    }
}

/// What each contender made, one value for each round.
pub async fn race(
    contenders: &[Arc<Contender>],
    keys: usize,
    at_once: usize,
    plan: Plan,
) -> Result<Vec<Vec<Run>>, AnyError> {
    let names: Arc<[String]> = (0..keys).map(|key| format!("tenant-{key:07}")).collect();
    for contender in contenders {
        // Warm up: create every key and connection.
        run(contender, &names, at_once, plan.run / 5).await?;
    }
    let mut rates = vec![Vec::new(); contenders.len()];
    for round in 0..plan.rounds {
        for position in 0..contenders.len() {
            // Rotate the order, so that no contender always follows the same one.
            let index = (position + round) % contenders.len();
            rates[index].push(run(&contenders[index], &names, at_once, plan.run).await?);
        }
    }
    Ok(rates)
}

/// Decisions a second with `at_once` tasks, each of which decides sequentially.
async fn run(
    contender: &Arc<Contender>,
    names: &Arc<[String]>,
    at_once: usize,
    duration: Duration,
) -> Result<Run, AnyError> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..at_once {
        let (contender, names) = (Arc::clone(contender), Arc::clone(names));
        tasks.spawn(async move {
            let (mut decisions, mut times, mut last) = (0_u64, Times::new(), Instant::now());
            let mut key = task;
            while last - start < duration {
                if !contender.is_admitted(&names[key % names.len()]).await {
                    return Err(format!("{}: rejected, or the store failed", contender.name()));
                }
                let now = Instant::now();
                times.add(now - last);
                last = now;
                decisions += 1;
                key += at_once;
                if decisions.is_multiple_of(BETWEEN_YIELDS) {
                    yield_now().await;
                    last = Instant::now();
                }
            }
            Ok((decisions, times))
        });
    }
    let (mut decisions, mut times) = (0, Times::new());
    while let Some(ended) = tasks.join_next().await {
        let (own, own_times) = ended??;
        decisions += own;
        times.add_all(&own_times);
    }
    Ok(Run { rate: decisions as f64 / start.elapsed().as_secs_f64(), p99: times.all_but_one_of(100) })
}
