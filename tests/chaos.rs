//! Random faults against each promise in turn, for as many seconds as
//! `CHAOS_SECONDS` says, from the seed `CHAOS_SEED`. Run it by `scripts/chaos`.
//!
//! A round is one promise, one seed and one figure, which must not exceed its bound.
//! A round in this process runs on virtual time or on threads of its own; one
//! over a store starts a Redis server of its own.
#![allow(clippy::unwrap_used)]

#[path = "chaos/clients.rs"]
mod clients;
#[path = "redis/cluster.rs"]
#[allow(dead_code, reason = "the tests of Redis use the rest")]
mod cluster;
#[path = "chaos/local.rs"]
mod local;
#[path = "redis/server.rs"]
#[allow(dead_code, reason = "the tests of Redis use the rest")]
mod server;
#[path = "chaos/store.rs"]
mod store;
#[path = "common/upstream.rs"]
mod upstream;

use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use self::server::until;

/// Numbers that a seed repeats (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number from `low` to `high`.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(crate) fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.within(low, high))
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.within(0, choices.len() as u64 - 1) as usize]
    }
}

/// The figure of a round, and what it may be at most.
pub(crate) struct Figure {
    pub(crate) figure: f64,
    pub(crate) bound: f64,
}

type Round = Pin<Box<dyn Future<Output = Figure>>>;

type Try = fn(Random) -> Round;

/// Real time in a round over a store, virtual time where the runtime's is paused.
pub(crate) async fn pause(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

/// What is promised, and how a round tries to break it.
const PROMISES: [(&str, Try); 16] = [
    ("seconds for which a key stays locked once its callers, on threads, have given up", |random| {
        Box::pin(async move { local::callers_give_up(random) })
    }),
    ("seconds for which a key is locked by a limit that was raised while requests waited", |random| {
        Box::pin(async move { local::limit_changes(random) })
    }),
    ("windows for which a sliding window stays locked once its waiters have left", |random| {
        Box::pin(async move { local::waiters_leave(random) })
    }),
    ("units over a limit whose policy is replaced under threads", |random| {
        Box::pin(async move { local::reloads(random) })
    }),
    ("units of a sliding log that stay charged although they were given back, in percent", |random| {
        Box::pin(async move { local::give_backs(random) })
    }),
    ("times as long that four times the rules, or waiters of a sliding log, take", |random| {
        Box::pin(async move { local::growth(random) })
    }),
    ("seconds that an adaptive rate needs after a dip", |random| Box::pin(async move { clients::dip(random) })),
    ("decisions that fail beside settlements, of a healthy store", |random| Box::pin(store::settlements(random))),
    ("units over a leased window, with connections killed and the store stalled", |random| {
        Box::pin(store::leased_window(random))
    }),
    ("units over a sliding log of a leased rule, by bursts of several instances", |random| {
        Box::pin(store::leased_log(random))
    }),
    ("units of a leased limit that are rejected while another pool of the instance has them", |random| {
        Box::pin(store::other_pools(random))
    }),
    ("part of a leased window that is lost to stalls of the store, in percent", |random| {
        Box::pin(store::lost_units(random))
    }),
    ("units in flight that are left, with connections killed", |random| Box::pin(store::in_flight(random))),
    ("kilobytes above the memory of a store that a flood of tenants fills", |random| Box::pin(store::flood(random))),
    ("decisions that fail on nodes beside a dead one", |random| Box::pin(store::dead_node(random))),
    ("store calls for each tenant with tiers of its own, of a leased rule", |random| {
        Box::pin(store::own_tiers(random))
    }),
];

#[derive(Default)]
struct Worst {
    rounds: u64,
    figure: f64,
    bound: f64,
    broken: Vec<u64>,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes of real time"]
async fn no_promise_is_broken() {
    let number = |name| env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().unwrap());
    let duration = Duration::from_secs(number("CHAOS_SECONDS").unwrap_or(600));
    let seed: u64 = number("CHAOS_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("seed {seed}");
    let (start, mut seeds, mut all) = (Instant::now(), Random(seed), BTreeMap::<_, Worst>::new());
    while start.elapsed() < duration {
        for (promise, round) in PROMISES {
            let seed = seeds.next();
            let Figure { figure, bound } = round(Random(seed)).await;
            let worst = all.entry(promise).or_default();
            worst.rounds += 1;
            if worst.rounds == 1 || figure - bound > worst.figure - worst.bound {
                (worst.figure, worst.bound) = (figure, bound);
            }
            if figure > bound {
                worst.broken.push(seed);
            }
        }
    }
    for (promise, Worst { rounds, figure, bound, broken }) in &all {
        let verdict = if broken.is_empty() { "kept" } else { "BROKEN" };
        println!("{verdict}: {promise}: {figure:.2} of at most {bound:.2}, {rounds} rounds, broken by {broken:?}");
    }
    assert!(all.values().all(|worst| worst.broken.is_empty()), "seed {seed}");
}
