//! The law of adaptive concurrency limits, in virtual time.

use proptest::prelude::*;

use super::{ENOUGH, GradientState, LONGEST, SHORTEST};
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
        let most = limit(&self.state);
        for _ in 0..100 {
            self.state.admitted(in_flight.min(most), most);
            self.now += SHORTEST / 50;
            if self.state.answered(&BOUNDS, latency, self.now).is_some() {
                break;
            }
        }
        self.state.limit()
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the bounds")]
fn limit(state: &GradientState) -> u64 {
    state.limit() as u64
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
    assert_eq!(driven.state.limit(), 20.0);
}

#[test]
fn it_is_at_most_five_times_the_peak() {
    let mut driven = Driven::new();
    while driven.state.limit() < 400.0 {
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
        driven.state.admitted(19, 20);
        driven.now += SHORTEST / 100;
        let latency = if answer % 10 == answer / 500 { 155 * MS } else { 5 * MS };
        driven.state.answered(&BOUNDS, latency, driven.now);
    }
    assert_eq!(driven.state.limit(), 95.0, "five times what was in flight");
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
        driven.state.admitted(20, 20);
        ended.extend(driven.state.answered(&BOUNDS, MS, driven.now).map(|window| (answer, window.seen)));
    }
    assert_eq!(ended, [(ENOUGH, ENOUGH)]);
    assert!(driven.state.answered(&BOUNDS, MS, driven.now + LONGEST - 1).is_none());
    assert!(driven.state.answered(&BOUNDS, MS, driven.now + LONGEST).is_some());
}

/// A pool of workers, each of which takes as long as a sequence says; more requests than it
/// serves come, and those beyond the limit are rejected.
#[test]
fn it_finds_what_a_pool_serves_and_stays_there() {
    const WORKERS: usize = 50;
    let mut driven = Driven::new();
    let (mut random, mut at_end, mut seen) = (1_u64, Vec::new(), Vec::new());
    let mut free = vec![driven.now; WORKERS];
    let mut in_flight = std::collections::BTreeMap::<(u64, u64), u64>::new();
    for request in 0..2_000_000_u64 {
        // Five a millisecond: ten times what it serves.
        driven.now += MS / 5;
        while let Some(entry) = in_flight.first_entry().filter(|entry| entry.key().0 <= driven.now) {
            let ((end, _), sent) = entry.remove_entry();
            if driven.state.answered(&BOUNDS, end - sent, end).is_some() {
                seen.push(driven.state.limit());
            }
        }
        let most = limit(&driven.state);
        if in_flight.len() as u64 >= most {
            continue;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Around 100 ms, exponential.
        let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
        let takes = (-(1.0 - uniform).ln() * 1e8) as u64;
        let worker = free.iter_mut().min().unwrap();
        *worker = (*worker).max(driven.now) + takes;
        in_flight.insert((*worker, request), driven.now);
        driven.state.admitted(in_flight.len() as u64, most);
        at_end.push((driven.now, *worker));
    }
    let settled = &seen[60..];
    let (least, most) = settled.iter().fold((f64::MAX, 0.0_f64), |(least, most), at| (least.min(*at), most.max(*at)));
    assert!(least >= 45.0 && most <= 200.0, "{least} to {most} of {WORKERS} workers in {} windows", seen.len());
    // It serves nearly all that the pool can.
    let served = at_end.len() as f64 / (2_000_000.0 / 10.0);
    assert!(served >= 0.95, "{served}");
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
            state.admitted(in_flight, limit(&state));
            state.answered(&bounds, latency, now);
            let limit = state.limit();
            prop_assert!((min..=max).contains(&limit), "{} of {} to {}", limit, min, max);
            let baseline = state.summary().baseline;
            prop_assert!(baseline >= 0.0 && baseline.is_finite());
        }
    }
}
