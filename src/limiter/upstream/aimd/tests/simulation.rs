//! The law against upstreams that are simulated, on a stepped clock: who sends
//! next, and when an answer is there, are events in one queue.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a simulation"
)]

use std::{cmp::Reverse, collections::BinaryHeap};

use super::super::AimdState;
use crate::policy::{AdaptiveRate, RateBounds};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

const BOUNDS: RateBounds = RateBounds {
    floor: 1.0,
    ceiling: 2_000.0,
    start: 20.0,
    increase: AdaptiveRate::INCREASE,
    decrease: AdaptiveRate::DECREASE,
};

#[derive(Clone, Copy, Debug)]
enum Limit {
    Bucket {
        rate: f64,
        burst: f64,
    },
    /// So many in each second of the clock.
    Window(u64),
}

struct Upstream {
    limit: Limit,
    tokens: f64,
    at: u64,
    counted: u64,
}

impl Upstream {
    fn new(limit: Limit) -> Self {
        let tokens = if let Limit::Bucket { burst, .. } = limit { burst } else { 0.0 };
        Self { limit, tokens, at: 0, counted: 0 }
    }

    fn admits(&mut self, now: u64) -> bool {
        let before = std::mem::replace(&mut self.at, now);
        match self.limit {
            Limit::Bucket { rate, burst } => {
                self.tokens = (self.tokens + (now - before) as f64 / 1e9 * rate).min(burst);
                let admits = self.tokens >= 1.0 - 1e-9;
                self.tokens -= f64::from(u8::from(admits));
                admits
            }
            Limit::Window(limit) => {
                if before / SECOND != now / SECOND {
                    self.counted = 0;
                }
                let admits = self.counted < limit;
                self.counted += u64::from(admits);
                admits
            }
        }
    }
}

/// A client with so many workers, each of which sends as soon as it may.
struct Client {
    law: AimdState,
    free: usize,
    /// When its bucket has all units back, in nanoseconds.
    full: f64,
    cools_until: u64,
    admitted: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Sends,
    Arrives { decided: u64 },
    Answered { decided: u64, rejected: bool },
}

struct Scenario {
    limit: Limit,
    /// From when on it is another, in order.
    then: Vec<(u64, Limit)>,
    round_trip: u64,
    /// Whether a rejection says to come back after a second.
    cools_down: bool,
    clients: usize,
    workers: usize,
    seconds: u64,
    /// What draws the jitter of cooldowns.
    seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        let limit = Limit::Bucket { rate: 200.0, burst: 20.0 };
        Self {
            limit,
            then: Vec::new(),
            round_trip: MS,
            cools_down: false,
            clients: 1,
            workers: 64,
            seconds: 125,
            seed: 12_345,
        }
    }
}

/// What was admitted and rejected in each second, and by whom.
struct Seen {
    admitted: Vec<u64>,
    rejected: Vec<u64>,
    by_client: Vec<Vec<u64>>,
    lowest: f64,
    highest: f64,
}

impl Seen {
    /// The share of the allowance that was used in these seconds, and of the
    /// requests that were rejected.
    fn share(&self, seconds: std::ops::Range<usize>, rate: f64) -> (f64, f64) {
        let sum = |counts: &[u64]| counts[seconds.clone()].iter().sum::<u64>() as f64;
        let (admitted, rejected) = (sum(&self.admitted), sum(&self.rejected));
        (admitted / (rate * seconds.len() as f64), rejected / (admitted + rejected).max(1.0))
    }
}

impl Scenario {
    fn run(&self) -> Seen {
        let seconds = self.seconds as usize;
        let client = || Client {
            law: AimdState::new(&BOUNDS),
            free: self.workers,
            full: 0.0,
            cools_until: 0,
            admitted: vec![0; seconds],
        };
        let mut clients: Vec<Client> = (0..self.clients).map(|_| client()).collect();
        let mut upstream = Upstream::new(self.limit);
        let mut then = self.then.iter().copied().peekable();
        let mut seen = Seen {
            admitted: vec![0; seconds],
            rejected: vec![0; seconds],
            by_client: Vec::new(),
            lowest: f64::MAX,
            highest: 0.0,
        };
        let (mut queue, mut number, mut random) = (BinaryHeap::new(), 0_u64, self.seed);
        let mut push = |queue: &mut BinaryHeap<_>, at: u64, client: usize, event: Event| {
            number += 1;
            queue.push(Reverse((at, number, client, event)));
        };
        (0..self.clients).for_each(|index| push(&mut queue, 0, index, Event::Sends));
        while let Some(Reverse((now, _, index, event))) = queue.pop() {
            let second = (now / SECOND) as usize;
            if second >= seconds {
                break;
            }
            if let Some((_, limit)) = then.next_if(|(at, _)| now >= *at) {
                upstream = Upstream { limit, tokens: 0.0, at: now, counted: 0 };
            }
            let client = &mut clients[index];
            match event {
                Event::Sends if client.free == 0 => {}
                Event::Sends => {
                    let rate = client.law.rate();
                    let (unit, burst) = (1e9 / rate, (rate * 0.005).floor().max(1.0));
                    let at = (client.full - (burst - 1.0) * unit).ceil().max(client.cools_until as f64) as u64;
                    if at > now {
                        push(&mut queue, at, index, Event::Sends);
                        continue;
                    }
                    client.full = client.full.max(now as f64) + unit;
                    client.free -= 1;
                    push(&mut queue, now + self.round_trip / 2, index, Event::Arrives { decided: now });
                    push(&mut queue, now, index, Event::Sends);
                }
                Event::Arrives { decided } => {
                    let rejected = !upstream.admits(now);
                    let counts = if rejected { &mut seen.rejected } else { &mut seen.admitted };
                    counts[second] += 1;
                    client.admitted[second] += u64::from(!rejected);
                    push(&mut queue, now + self.round_trip / 2, index, Event::Answered { decided, rejected });
                }
                Event::Answered { decided, rejected } => {
                    match rejected {
                        true => _ = client.law.rejected(&BOUNDS, decided, now),
                        false => client.law.succeeded(&BOUNDS, (decided, decided), 1.0),
                    }
                    if rejected && self.cools_down {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let jitter = (random >> 33) % (SECOND / 4);
                        client.cools_until = client.cools_until.max(now + SECOND + jitter);
                    }
                    seen.lowest = seen.lowest.min(client.law.rate());
                    seen.highest = seen.highest.max(client.law.rate());
                    client.free += 1;
                    if client.free == 1 {
                        push(&mut queue, now, index, Event::Sends);
                    }
                }
            }
        }
        seen.by_client = clients.into_iter().map(|client| client.admitted).collect();
        seen
    }
}

const LIMITS: [(&str, Limit); 4] = [
    ("bucket of 1", Limit::Bucket { rate: 200.0, burst: 1.0 }),
    ("bucket of 20", Limit::Bucket { rate: 200.0, burst: 20.0 }),
    ("bucket of 200", Limit::Bucket { rate: 200.0, burst: 200.0 }),
    ("window", Limit::Window(200)),
];

/// All four kinds at 200 a second, with and without a cooldown.
#[test]
fn a_rate_uses_nine_tenths_of_the_limit_with_few_rejections() {
    println!(
        "| upstream of 200/s | round trip | cooldown | from 5 s to 65 s | rejected | the minute after | rejected |"
    );
    println!("|---|---|---|---|---|---|---|");
    for cools_down in [false, true] {
        for round_trip in [MS, 100 * MS] {
            for (name, limit) in LIMITS {
                let seen = Scenario { limit, round_trip, cools_down, ..Scenario::default() }.run();
                let ((first, rejected), (later, rejected_later)) =
                    (seen.share(5..65, 200.0), seen.share(65..125, 200.0));
                println!(
                    "| {name} | {} ms | {} | {:.1} % | {:.2} % | {:.1} % | {:.2} % |",
                    round_trip / MS,
                    if cools_down { "1 to 1.25 s" } else { "no" },
                    first * 100.0,
                    rejected * 100.0,
                    later * 100.0,
                    rejected_later * 100.0
                );
                // A window that is full by the middle of its second, and then
                // a cooldown of a second: what it takes to learn that
                // costs more, once.
                let hard = cools_down && round_trip > MS && matches!(limit, Limit::Window(_));
                let (least, most) = if hard { (0.8, 0.025) } else { (0.9, 0.02) };
                assert!(first >= least && rejected < most, "{name}: {first:.3}, {rejected:.4}");
                assert!(later >= 0.9 && rejected_later < 0.01, "{name} later: {later:.3}, {rejected_later:.4}");
                assert!(seen.lowest >= BOUNDS.floor && seen.highest <= BOUNDS.ceiling);
            }
        }
    }
}

#[test]
fn a_rate_follows_an_upstream_that_allows_a_tenth() {
    println!("| 1,000/s, then 100/s | cooldown | before | the first 5 s | rejected | after that | rejected |");
    println!("|---|---|---|---|---|---|---|");
    for (round_trip, cools_down) in [(MS, false), (100 * MS, false), (MS, true), (100 * MS, true)] {
        let limit = Limit::Bucket { rate: 1_000.0, burst: 100.0 };
        let then = vec![(60 * SECOND, Limit::Bucket { rate: 100.0, burst: 100.0 })];
        let seen = Scenario { limit, then, round_trip, cools_down, workers: 128, ..Scenario::default() }.run();
        let (before, falls, after) =
            (seen.share(15..60, 1_000.0), seen.share(60..65, 100.0), seen.share(65..125, 100.0));
        println!(
            "| {} ms | {cools_down} | {:.1} % | {:.1} % | {:.1} % | {:.1} % | {:.2} % |",
            round_trip / MS,
            before.0 * 100.0,
            falls.0 * 100.0,
            falls.1 * 100.0,
            after.0 * 100.0,
            after.1 * 100.0
        );
        assert!(before.0 >= 0.9 && after.0 >= 0.9 && after.1 < 0.025, "{before:?}, {after:?}");
    }
}

#[test]
fn a_rate_finds_an_upstream_that_allows_more() {
    let limit = Limit::Bucket { rate: 100.0, burst: 20.0 };
    let then = vec![(60 * SECOND, Limit::Bucket { rate: 400.0, burst: 20.0 })];
    let seen = Scenario { limit, then, seconds: 240, ..Scenario::default() }.run();
    let (later, _) = seen.share(180..240, 400.0);
    assert!(later >= 0.9, "{later:.3}");
}

/// The upstream admits nothing for some seconds, or a twentieth.
#[test]
fn a_rate_recovers_from_a_dip_within_seconds() {
    let mut longest = (0, 0);
    for (round_trip, cools_down) in [(MS, false), (100 * MS, false), (MS, true), (100 * MS, true)] {
        for (limit, left) in [(LIMITS[0].1, 0.0), (LIMITS[1].1, 0.0), (LIMITS[1].1, 10.0), (LIMITS[2].1, 0.0)] {
            for (dip, seed) in [(1, 1), (2, 2), (3, 3), (5, 4), (5, 5)] {
                let from = 60 + seed;
                let dipped = Limit::Bucket { rate: left, burst: 1.0 };
                let then = vec![(from * SECOND, dipped), ((from + dip) * SECOND, limit)];
                let seen = Scenario { limit, then, round_trip, cools_down, seed, ..Scenario::default() }.run();
                let end = (from + dip) as usize;
                let recovered = (end..120).find(|second| seen.share(*second..second + 3, 200.0).0 >= 0.9);
                let took = recovered.map_or(usize::MAX, |second| second - end);
                longest = longest.max((took, end));
                let (after, rejected) = seen.share(end + 15..125, 200.0);
                let what = format!("{limit:?}, {left}/s for {dip} s, {} ms, {cools_down}", round_trip / MS);
                println!("{what}: after {took} s, then {after:.3}, {rejected:.4}");
                assert!(took <= 15 && after >= 0.88 && rejected < 0.01, "{what}: {took} s, {after:.3}, {rejected:.4}");
            }
        }
    }
}

#[test]
fn several_clients_of_one_upstream_converge_to_fair_shares() {
    for (round_trip, cools_down) in [(MS, false), (100 * MS, false), (MS, true), (100 * MS, true)] {
        let seen = Scenario { round_trip, cools_down, clients: 4, seconds: 600, ..Scenario::default() }.run();
        let shares: Vec<u64> = seen.by_client.iter().map(|counts| counts[60..].iter().sum()).collect();
        let (used, rejected) = seen.share(60..600, 200.0);
        let sum: f64 = shares.iter().map(|share| *share as f64).sum();
        let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
        // Jain's index: 1 where all have the same, a quarter where one has all.
        let fairness = sum * sum / (4.0 * squares);
        println!("{} ms, {cools_down}: {shares:?}, {fairness:.3}, {used:.3}, {rejected:.4}", round_trip / MS);
        assert!(
            fairness >= 0.85 && used >= 0.88 && rejected < 0.02,
            "{shares:?}: {fairness:.3}, {used:.3}, {rejected:.4}"
        );
    }
}
