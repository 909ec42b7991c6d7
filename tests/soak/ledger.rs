//! What was admitted, held against the limits by a naive leaky bucket.
//!
//! A bucket drains at the highest rate that was ever in force and is raised by
//! each admission. It may exceed the burst only by what a busy machine delays.
//! For two seconds after a fault of the store it is not checked, since the store
//! may have lost its data, or not know what instances admitted on their own.
//! The total is checked in the end, with a few bursts for each fault.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::SCHEDULING;

/// Longer than any request is in flight, and than the circuit breaker takes to
/// close.
const EXCUSED: Duration = Duration::from_secs(2);

/// A limit of the site, as its policy has it at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) rate: f64,
    pub(crate) burst: f64,
    /// Units that a fault of the store may admit beyond the limit.
    pub(crate) per_fault: f64,
}

#[derive(Debug)]
struct Bucket {
    limit: Limit,
    first: Instant,
    last: Instant,
    level: f64,
    highest: f64,
    admitted: u64,
    over: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    buckets: Mutex<BTreeMap<String, Bucket>>,
    in_flight: Mutex<InFlight>,
    faults: Mutex<Faults>,
}

#[derive(Debug, Default)]
struct InFlight {
    now: u64,
    highest: u64,
    over: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    count: u64,
    last: Option<Instant>,
}

impl Ledger {
    pub(crate) fn admitted(&self, key: String, limit: Limit) {
        let (now, is_excused) = (Instant::now(), self.is_excused());
        let mut buckets = self.buckets.lock().unwrap();
        let new = Bucket { limit, first: now, last: now, level: 0.0, highest: 0.0, admitted: 0, over: 0 };
        let bucket = buckets.entry(key).or_insert(new);
        let drained = limit.rate * now.duration_since(bucket.last).as_secs_f64();
        bucket.level = (bucket.level - drained).max(0.0) + 1.0;
        (bucket.last, bucket.admitted) = (now, bucket.admitted + 1);
        if is_excused {
            bucket.level = bucket.level.min(limit.burst);
        }
        bucket.highest = bucket.highest.max(bucket.level);
        bucket.over += u64::from(bucket.level > limit.burst + limit.rate * SCHEDULING.as_secs_f64());
    }

    /// Called when a fault begins, and when the store is back.
    pub(crate) fn fault(&self) {
        let mut faults = self.faults.lock().unwrap();
        *faults = Faults { count: faults.count + 1, last: Some(Instant::now()) };
    }

    fn is_excused(&self) -> bool {
        self.faults.lock().unwrap().last.is_some_and(|last| last.elapsed() < EXCUSED)
    }

    /// A request of the concurrency limit begins. What the store has lost may be
    /// handed out again while the requests that hold it are still running.
    pub(crate) fn begin(&self, limit: u64) {
        let limit = if self.is_excused() { 2 * limit } else { limit };
        let mut in_flight = self.in_flight.lock().unwrap();
        in_flight.now += 1;
        in_flight.highest = in_flight.highest.max(in_flight.now);
        in_flight.over += u64::from(in_flight.now > limit);
    }

    pub(crate) fn end(&self) {
        self.in_flight.lock().unwrap().now -= 1;
    }

    /// Prints every limit and returns the number of requests over one.
    pub(crate) fn report(&self) -> u64 {
        let faults = self.faults.lock().unwrap().count as f64;
        let mut sum = 0;
        for (key, bucket) in &*self.buckets.lock().unwrap() {
            let Bucket { limit: Limit { rate, burst, per_fault }, first, last, highest, admitted, over, .. } = *bucket;
            let most = rate * last.duration_since(first).as_secs_f64() + burst + per_fault * faults;
            let in_all = (admitted as f64 - most).max(0.0) as u64;
            println!("  {key}: {admitted} of {most:.0} admitted, bucket at most {highest:.1} of {burst}, {over} over");
            sum += over + in_all;
        }
        let InFlight { highest, over, .. } = *self.in_flight.lock().unwrap();
        println!("  in flight: at most {highest}, {over} over");
        sum + over
    }
}
