//! The law of adaptive concurrency limits, in virtual time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use proptest::prelude::*;

use super::super::{ENOUGH, FIRST_SHORTEST, GradientState, LONGEST, SHORTEST};
use crate::policy::LimitBounds;

const BOUNDS: LimitBounds = LimitBounds { min: 10.0, max: 500.0, start: 20.0 };
const MS: u64 = 1_000_000;

/// A limit and its time.
struct Driven {
    state: GradientState,
    now: u64,
}

impl Driven {
    fn new() -> Self {
        Self { state: GradientState::new(&BOUNDS), now: SHORTEST }
    }

    /// A window in which all answers took `latency`, with so many in flight.
    fn window(&mut self, in_flight: u64, latency: u64) -> f64 {
        self.answers(in_flight, latency, SHORTEST / 50);
        self.state.limit
    }

    /// The answers of a window, one each time that `passed` has passed.
    fn answers(&mut self, in_flight: u64, latency: u64, passed: u64) -> u64 {
        self.answers_of_cost(1, in_flight, latency, passed)
    }

    /// The same, of requests of that cost.
    fn answers_of_cost(&mut self, cost: u64, in_flight: u64, latency: u64, passed: u64) -> u64 {
        let most = limit(&self.state);
        let mut answers = 0;
        loop {
            answers += 1;
            self.state.admitted(cost, in_flight.min(most), most);
            self.now += passed;
            if self.state.answered(latency, self.now).is_some() {
                return answers;
            }
        }
    }

    /// Has it shrink, by a queue.
    fn shrunk(mut self) -> Self {
        for latency in [10, 10, 60, 60] {
            self.window(500, latency * MS);
        }
        self
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the bounds")]
fn limit(state: &GradientState) -> u64 {
    state.limit as u64
}

#[test]
fn it_grows_while_it_is_used_up_and_latency_stays() {
    let mut driven = Driven::new();
    assert_eq!(driven.window(20, 10 * MS), 30.0);
    assert_eq!(driven.window(30, 10 * MS), 45.0);
}

#[test]
fn it_stays_while_it_is_not_used() {
    let mut driven = Driven::new();
    for _ in 0..100 {
        driven.window(10, 10 * MS);
    }
    assert_eq!(driven.state.limit, 20.0);
}

#[test]
fn it_is_at_most_five_times_the_peak() {
    let mut driven = Driven::new();
    while driven.state.limit < 400.0 {
        driven.window(500, 10 * MS);
    }
    assert_eq!(driven.window(7, 10 * MS), 35.0);
    assert_eq!(driven.window(1, 10 * MS), BOUNDS.min);
}

/// The last step of the slow start is taken back at once, all others are slow.
#[test]
fn it_shrinks_as_latency_rises() {
    let mut driven = Driven::new();
    let before = (0..4).map(|_| driven.window(500, 10 * MS)).last().unwrap();
    let mut shrunk = driven.window(500, 60 * MS);
    assert!((shrunk - before / 1.5).abs() < 1e-9, "{shrunk} of {before}");
    for _ in 0..3 {
        let next = driven.window(500, 60 * MS);
        assert!((shrunk - shrunk.log10() - next).abs() < 1e-9, "{next} after {shrunk}");
        shrunk = next;
    }
}

/// A limit of 45 whose averages show latencies a quarter above the baseline. Up to three
/// quarters of it were in flight, so it has not grown.
fn with_some_queue() -> Driven {
    let mut driven = Driven::new();
    for in_flight in [20, 30].into_iter().chain([33; 20]) {
        driven.window(in_flight, if in_flight == 33 { 12_500_000 } else { 10 * MS });
    }
    assert_eq!(driven.state.limit, 45.0);
    driven
}

/// Between the two bounds of a queue nothing changes: it would shrink and grow by turns.
#[test]
fn it_stays_while_the_queue_is_neither_short_nor_long() {
    let mut driven = with_some_queue();
    for _ in 0..20 {
        assert_eq!(driven.window(45, 12_500_000), 45.0, "{:?}", driven.state);
    }
}

#[test]
fn it_shrinks_at_such_a_queue_if_throughput_falls_as_in_flight_rises() {
    let mut driven = with_some_queue();
    driven.answers(45, 12_500_000, SHORTEST / 25);
    assert!(driven.state.limit < 45.0, "{:?}", driven.state);
}

/// One answer in 50 that takes a thousand times longer counts for ten: it must not decide.
#[test]
fn one_request_that_hangs_does_not_shrink_it() {
    let mut driven = Driven::new();
    while driven.state.limit < 200.0 {
        driven.window(500, 10 * MS);
    }
    let before = driven.state.limit;
    let most = limit(&driven.state);
    driven.state.admitted(1, most, most);
    driven.now += MS;
    assert!(driven.state.answered(10_000 * MS, driven.now).is_none());
    assert!(driven.window(500, 10 * MS) > before, "{:?}", driven.state);
}

/// What counts is the most that was in flight in a window, not the latest.
#[test]
fn it_grows_by_the_peak_of_a_window() {
    let mut driven = Driven::new();
    driven.state.admitted(1, 20, 20);
    assert_eq!(driven.window(1, 10 * MS), 30.0);
}

/// Answers to what was admitted before a window say nothing of how many are in flight.
#[test]
fn a_window_without_admissions_leaves_the_limit() {
    let mut driven = Driven::new();
    for _ in 0..2 * ENOUGH {
        driven.now += SHORTEST / 50;
        driven.state.answered(MS, driven.now);
    }
    assert_eq!(driven.state.limit, BOUNDS.start);
}

#[test]
fn a_window_ends_though_the_clock_was_set_back() {
    let mut driven = Driven::new();
    driven.state.answered(MS, 100 * SHORTEST);
    let ended = (0..300).any(|_| {
        driven.now += MS;
        driven.state.answered(MS, driven.now).is_some()
    });
    assert!(ended);
}

/// After half a minute, ten answers are enough to learn from, and nine are not.
#[test]
fn a_window_of_few_answers_is_not_learned_from() {
    for (answers, is_known) in [(9, false), (10, true)] {
        let mut driven = Driven::new();
        for _ in 1..answers {
            driven.state.admitted(1, 5, 20);
            assert!(driven.state.answered(MS, driven.now).is_none());
        }
        assert!(driven.state.answered(MS, driven.now + LONGEST).is_some());
        assert_eq!(driven.state.summary().baseline > 0.0, is_known, "{answers}");
    }
}

/// After its first decrease it grows by a part of what its load varies by, so that a large
/// limit is found in a minute.
#[test]
fn it_grows_by_half_the_root_after_it_has_shrunk() {
    let mut driven = Driven::new().shrunk();
    let found: Vec<f64> = (0..60).map(|_| driven.window(500, 10 * MS)).collect();
    let grown: Vec<_> = found.windows(2).filter(|pair| pair[1] > pair[0]).collect();
    assert!(grown.len() >= 10, "{found:?}");
    assert!(grown.iter().all(|pair| (pair[0] + pair[0].sqrt() / 2.0 - pair[1]).abs() < 1e-9), "{found:?}");
}

/// A handler that is slow for as long as the limit is at its minimum has no queue that the
/// limit could shorten.
#[test]
fn at_the_minimum_the_latency_becomes_the_baseline() {
    let mut driven = Driven::new().shrunk();
    let found: Vec<f64> = (0..100).map(|_| driven.window(500, 60 * MS)).collect();
    assert!(found.contains(&BOUNDS.min), "{found:?}");
    assert!(*found.last().unwrap() > 2.0 * BOUNDS.min, "{found:?}");
}

#[test]
fn windows_are_short_until_it_first_shrinks() {
    let mut driven = Driven::new();
    // The first answer starts the first window, so it has one more.
    assert_eq!(driven.answers(10, 10 * MS, MS), FIRST_SHORTEST / MS + 1);
    assert_eq!(driven.answers(10, 10 * MS, MS), FIRST_SHORTEST / MS);
    let mut driven = driven.shrunk();
    assert_eq!(driven.answers(10, 10 * MS, MS), SHORTEST / MS);
}

/// Else only the fast ones would be measured.
#[test]
fn a_window_has_two_answers_for_each_in_flight() {
    let mut driven = Driven::new();
    while driven.state.limit < 200.0 {
        driven.window(500, 10 * MS);
    }
    assert_eq!(driven.answers(200, 10 * MS, FIRST_SHORTEST / 100), 400);
    // Requests of a cost of five are a fifth as many in flight.
    assert_eq!(driven.answers_of_cost(5, 200, 10 * MS, FIRST_SHORTEST / 50), 80);
}

#[test]
fn the_baseline_falls_at_once_and_rises_slowly() {
    let mut driven = Driven::new();
    let baseline = |driven: &Driven| driven.state.summary().baseline;
    for _ in 0..8 {
        driven.window(5, 10 * MS);
    }
    driven.window(5, 20 * MS);
    let risen = baseline(&driven);
    assert!((10.1e6..11.0e6).contains(&risen), "{risen}");
    for _ in 0..20 {
        driven.window(500, MS);
    }
    let fallen = baseline(&driven);
    assert!(fallen < 1.2e6, "{fallen}");
}

/// One in ten takes 31 times longer than the others. Beside a 90th percentile, which is at
/// the edge of the two, this would be a queue.
#[test]
fn bimodal_latency_is_no_queue() {
    let mut driven = Driven::new();
    for answer in 0..3_000_u64 {
        driven.state.admitted(1, 19, 20);
        driven.now += SHORTEST / 100;
        let latency = if answer % 10 == answer / 500 { 155 * MS } else { 5 * MS };
        driven.state.answered(latency, driven.now);
    }
    assert_eq!(driven.state.limit, 95.0, "five times what was in flight");
    assert!((19e6..21e6).contains(&driven.state.summary().baseline), "{:?}", driven.state);
}

/// More in flight gives longer latencies and no more answers: a queue, however long it lasts.
#[test]
fn a_queue_does_not_become_the_baseline() {
    let mut driven = Driven::new();
    let found: Vec<f64> = (0..600)
        .map(|_| {
            let in_flight = limit(&driven.state);
            driven.window(in_flight, (in_flight * MS / 2).max(10 * MS))
        })
        .collect();
    assert!(found[100..].iter().all(|limit| *limit <= 60.0), "{:?}", found.last());
}

#[test]
fn a_window_has_enough_answers_or_ends_after_half_a_minute() {
    let mut driven = Driven::new();
    let mut ended = Vec::new();
    for answer in 1..=ENOUGH {
        driven.now += SHORTEST / 10;
        driven.state.admitted(1, 20, 20);
        ended.extend(driven.state.answered(MS, driven.now).map(|window| (answer, window.seen)));
    }
    assert_eq!(ended, [(ENOUGH, ENOUGH)]);
    assert!(driven.state.answered(MS, driven.now + LONGEST - 1).is_none());
    assert!(driven.state.answered(MS, driven.now + LONGEST).is_some());
}

/// A pool of workers. What a request takes follows from a random part. Requests come each
/// `MS / 5`, and those beyond the limit are rejected. Returns the limits that were found, and
/// how many were admitted.
fn pool(state: &mut GradientState, workers: usize, takes: fn(f64) -> u64, requests: u64) -> (Vec<f64>, usize) {
    let (mut now, mut random, mut admitted, mut seen) = (SHORTEST, 1_u64, 0, Vec::new());
    let mut free: BinaryHeap<_> = vec![Reverse(now); workers].into();
    let mut in_flight = BTreeMap::<(u64, u64), u64>::new();
    for request in 0..requests {
        now += MS / 5;
        while let Some(entry) = in_flight.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((end, _), sent) = entry.remove_entry();
            if state.answered(end - sent, end).is_some() {
                seen.push(state.limit);
            }
        }
        let most = limit(state);
        if in_flight.len() as u64 >= most {
            continue;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let takes = takes((random >> 11) as f64 / (1_u64 << 53) as f64);
        let Reverse(worker) = free.pop().unwrap();
        let end = worker.max(now) + takes;
        free.push(Reverse(end));
        in_flight.insert((end, request), now);
        state.admitted(1, in_flight.len() as u64, most);
        admitted += 1;
    }
    (seen, admitted)
}

const POOLED: LimitBounds = LimitBounds { max: 5_000.0, ..BOUNDS };

/// Ten times more requests come than it serves.
#[test]
fn it_finds_what_a_pool_serves_and_stays_there() {
    const WORKERS: usize = 50;
    let mut state = GradientState::new(&POOLED);
    let (seen, admitted) = pool(&mut state, WORKERS, |part| (-(1.0 - part).ln() * 1e8) as u64, 2_000_000);
    let settled = &seen[60..];
    let (least, most) = settled.iter().fold((f64::MAX, 0.0_f64), |(least, most), at| (least.min(*at), most.max(*at)));
    assert!(least >= 45.0 && most <= 200.0, "{least} to {most} of {WORKERS} workers in {} windows", seen.len());
    // It serves nearly all that the pool can.
    let served = admitted as f64 / (2_000_000.0 / 10.0);
    assert!(served >= 0.95, "{served}");
}

/// From a limit that has shrunk to 20, for 500 workers: within two minutes it serves nearly
/// all that they can.
#[test]
fn it_finds_what_a_large_pool_serves() {
    let mut state = GradientState { has_shrunk: true, ..GradientState::new(&POOLED) };
    let takes = |part: f64| (-(1.0 - part).ln() * 2e8) as u64;
    pool(&mut state, 500, takes, 600_000);
    let (seen, admitted) = pool(&mut state, 500, takes, 300_000);
    let served = admitted as f64 / (300_000.0 / 2.0);
    assert!(served >= 0.95, "{served}: {seen:?}");
    assert!(seen.iter().all(|limit| *limit <= 800.0), "{seen:?}");
}

/// One request in ten takes 31 times longer than the others, so that the first windows see
/// none of these: that must not look like a queue for long.
#[test]
fn a_lucky_start_does_not_hold_it_down() {
    let mut state = GradientState::new(&POOLED);
    let takes = |part| if part < 0.1 { 775 * MS } else { 25 * MS };
    let (seen, admitted) = pool(&mut state, 300, takes, 150_000);
    let served = admitted as f64 / (150_000.0 / 5.0 * 3.0);
    assert!(served >= 0.85, "{served}: {seen:?}");
}

proptest! {
    #[test]
    fn it_stays_within_its_bounds_whatever_comes(
        (min, wide, start) in (1_u64..1_000, 0_u64..100_000, 0.0..=1.0_f64),
        events in prop::collection::vec((any::<u64>(), 0_u64..100_000, any::<u64>(), prop::bool::weighted(0.05)), 0..600),
    ) {
        let (min, max) = (min as f64, (min + wide) as f64);
        let bounds = LimitBounds { min, max, start: min + (max - min) * start };
        let mut state = GradientState::new(&bounds);
        let mut now = SHORTEST;
        for (latency, in_flight, passed, is_set_back) in events {
            now = if is_set_back { passed } else { now.saturating_add(passed % (2 * SHORTEST)) };
            state.admitted(1, in_flight, limit(&state));
            state.answered(latency, now);
            let limit = state.limit;
            prop_assert!((min..=max).contains(&limit), "{} of {} to {}", limit, min, max);
            let baseline = state.summary().baseline;
            prop_assert!(baseline >= 0.0 && baseline.is_finite());
        }
    }
}
