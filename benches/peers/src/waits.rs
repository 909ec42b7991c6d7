//! The cost of waiting for admission, in real time, on two worker threads.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::runtime::{Builder, Runtime};

use crate::{
    alloc, cpu,
    crowd::{Crowd, KEY_EACH, ONE_KEY, WAITERS, crowd, peak_bytes},
    pacers::{Governor, LeakyBucket, Pace, Pacer, Sleep, Tower},
    table::{Spread, Table, figure, times},
};

/// Longer than a timer's lateness, so that every admission is a wait.
const ONE_WAITER: Pace = Pace { interval: Duration::from_millis(5), keys: 1 };

const ADMISSIONS: u32 = 100;

struct Contestant {
    name: &'static str,
    keyed: bool,
    wait: fn() -> Wait,
    crowd: fn(Pace) -> Crowd,
    peak: fn(Pace) -> f64,
}

/// The cost of each of one waiter's admissions.
struct Wait {
    cpu_micros: f64,
    millis: f64,
    allocations: f64,
}

/// Ratios refer to the first contestant.
fn contestants() -> Vec<Contestant> {
    macro_rules! contestant {
        ($name:expr, $pacer:ty, $keyed:expr) => {
            Contestant {
                name: $name,
                keyed: $keyed,
                wait: || wait(<$pacer>::new(ONE_WAITER)),
                crowd: |pace| crowd(&Arc::new(<$pacer>::new(pace)), pace),
                peak: |pace| peak_bytes(&Arc::new(<$pacer>::new(pace)), pace),
            }
        };
    }
    vec![
        contestant!("tokio::time::sleep", Sleep, true),
        contestant!("leaky-bucket", LeakyBucket, false),
        contestant!("governor", Governor, true),
        contestant!("tower::limit", Tower, false),
        #[cfg(feature = "ours")]
        contestant!("tower-ratelimit", crate::ours::Pacing, true),
    ]
}

pub fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime")
}

pub fn section(rounds: usize, crowd_rounds: usize) {
    let contestants = contestants();
    one_waiter(&contestants, rounds);
    println!("\nOne task in a loop, one unit every 5 ms. The cost above the timer's own is the limiter's.");
    crowds(&contestants, ONE_KEY, crowd_rounds, "on one key");
    println!(
        "\nOne unit every 25 us. `leaky-bucket` and `tower::limit` refill 40 units a millisecond, the timer's \
         resolution, so they may be a millisecond early. `tower::limit` has one owner and is shared behind a \
         lock. `governor` has no queue: all waiters wake for each unit, and one gets it."
    );
    let keyed: Vec<Contestant> = contestants.into_iter().filter(|contestant| contestant.keyed).collect();
    crowds(&keyed, KEY_EACH, crowd_rounds, "each on its own key");
    println!("\nEach task waits 2 to 3 s, and all are due within about a second. The other two have no keys.");
}

/// Runs the contestants interleaved. Returns the samples of each.
fn rounds<T>(contestants: &[Contestant], rounds: usize, run: impl Fn(&Contestant) -> T) -> Vec<Vec<T>> {
    let mut samples: Vec<Vec<T>> = contestants.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for position in 0..contestants.len() {
            let index = (position + round) % contestants.len();
            samples[index].push(run(&contestants[index]));
        }
    }
    samples
}

fn one_waiter(contestants: &[Contestant], count: usize) {
    let mut table = Table::new(
        "One waiter",
        ["crate", "CPU us a wait", "of the timer's", "ms between admissions", "allocations a wait"],
    );
    let samples = rounds(contestants, count, |contestant| (contestant.wait)());
    for (contestant, waits) in contestants.iter().zip(&samples) {
        let ratios = waits.iter().zip(&samples[0]).map(|(own, timer)| own.cpu_micros / timer.cpu_micros);
        let (counted, _) = alloc::counted(contestant.wait);
        table.row([
            contestant.name.to_owned(),
            Spread::of(waits.iter().map(|wait| wait.cpu_micros)).to_string(),
            times(Spread::of(ratios).median),
            Spread::of(waits.iter().map(|wait| wait.millis)).to_string(),
            figure(counted.allocations),
        ]);
    }
    table.print();
}

fn wait(pacer: impl Pacer) -> Wait {
    let waits = async move {
        // The first unit is available at once.
        pacer.admit(0).await;
        let (start, cpu, allocations) = (Instant::now(), cpu::time(), alloc::allocations());
        for _ in 0..ADMISSIONS {
            pacer.admit(0).await;
        }
        let allocations = alloc::allocations() - allocations;
        (start.elapsed(), cpu::time() - cpu, allocations)
    };
    let runtime = runtime();
    let (elapsed, cpu, allocations) = runtime.block_on(runtime.spawn(waits)).expect("a waiter panicked");
    let admissions = f64::from(ADMISSIONS);
    Wait {
        cpu_micros: cpu.as_secs_f64() * 1e6 / admissions,
        millis: elapsed.as_secs_f64() * 1e3 / admissions,
        allocations: allocations as f64 / admissions,
    }
}

fn crowds(contestants: &[Contestant], pace: Pace, count: usize, keys: &str) {
    let mut table = Table::new(
        format!("100,000 waiters at once, {keys}"),
        [
            "crate",
            "s until all were admitted",
            "of the schedule's",
            "CPU us a waiter",
            "bytes a waiter, at the peak",
            "ms late, median (least..most)",
        ],
    );
    let samples = rounds(contestants, count, |contestant| (contestant.crowd)(pace));
    for (contestant, crowds) in contestants.iter().zip(&samples) {
        let admitted = crowds.iter().map(|crowd| crowd.late.len()).min().unwrap_or(0);
        let took = |crowd: &Crowd| crowd.took.as_secs_f64();
        let ratios = crowds.iter().map(|crowd| took(crowd) / crowd.scheduled.as_secs_f64());
        let [took, ratio] = match admitted {
            WAITERS => [Spread::of(crowds.iter().map(took)).to_string(), times(Spread::of(ratios).median)],
            // The run gave up before all were admitted.
            _ => [format!("{:.0}% were not", 100.0 * (1.0 - admitted as f64 / WAITERS as f64)), String::new()],
        };
        let late = crowds.iter().flat_map(|crowd| crowd.late.iter().copied());
        table.row([
            contestant.name.to_owned(),
            took,
            ratio,
            Spread::of(crowds.iter().map(|crowd| crowd.cpu.as_secs_f64() * 1e6 / WAITERS as f64)).to_string(),
            figure((contestant.peak)(pace)),
            Spread::of(late).to_string(),
        ]);
    }
    table.print();
}
