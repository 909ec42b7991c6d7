//! What a server that is overloaded still gives behind the limiter: bounds in virtual time,
//! from a fixed seed. `benches/simulate` has longer runs.

use tower_ratelimit::{Policy, Quota};

use super::{
    executor,
    protections::{ADAPTIVE, Protect, RIGHT, TOO_HIGH, limited, ours, shedding, statuses},
    server::{self, CAPACITY, Plan, Second, Summary, load},
};

const UNLOADED: usize = 5;

/// At half the capacity, then at this multiple of it, then at half of it again.
struct Outcome {
    unloaded: Summary,
    overloaded: Summary,
    recovery: Option<usize>,
}

fn step(most: f64, protect: Protect) -> Outcome {
    // A test's time goes with the number of arrivals.
    let overloaded = if most > 2.0 { 3 } else { 8 };
    let phases = vec![load(UNLOADED, 0.5), load(overloaded, most), load(12, 0.5)];
    let seconds = server::simulate(&Plan { phases, bimodal: false, seed: 1 }, protect);
    outcome(&seconds, (overloaded, most), CAPACITY)
}

fn outcome(seconds: &[Second], (overloaded, most): (usize, f64), capacity: f64) -> Outcome {
    let (before, later) = seconds.split_at(UNLOADED);
    let (during, after) = later.split_at(overloaded);
    let (unloaded, overloaded) = (server::summary(before, capacity), server::summary(during, capacity));
    println!("{most} times the capacity: {overloaded:?}, unloaded {unloaded:?}");
    Outcome { unloaded, overloaded, recovery: server::recovery(after) }
}

impl Outcome {
    fn assert_goodput_and_recovery(&self) {
        assert!(self.overloaded.goodput >= 0.9, "{}", self.overloaded.goodput);
        assert!(self.recovery.is_some_and(|seconds| seconds <= 10), "{:?}", self.recovery);
    }

    fn assert_latency(&self) {
        let (unloaded, overloaded) = (self.unloaded.p99.unwrap(), self.overloaded.p99.unwrap());
        assert!(overloaded <= 2 * unloaded, "{overloaded} ms, {unloaded} ms unloaded");
    }
}

/// Or the others would prove nothing.
#[test]
fn without_protection_the_server_answers_nobody_in_time() {
    let outcome = step(2.0, |handler, _| statuses(handler));
    assert!(outcome.overloaded.goodput < 0.3, "{}", outcome.overloaded.goodput);
    assert_eq!(outcome.recovery, None, "what waits takes longer than the callers do");
}

#[test]
fn a_concurrency_limit_keeps_goodput_latency_and_what_is_critical() {
    let protections: [Protect; 2] = [
        |handler, _| ours(limited(Quota::concurrent(RIGHT)), handler),
        |handler, _| ours(limited(Quota::concurrent(TOO_HIGH)), handler),
    ];
    for protect in protections {
        let outcome = step(2.0, protect);
        outcome.assert_goodput_and_recovery();
        outcome.assert_latency();
        assert!(outcome.overloaded.critical >= 0.99, "{}", outcome.overloaded.critical);
    }
}

/// Critical requests alone are as many as the server can answer, so some find it full.
#[test]
fn a_concurrency_limit_holds_at_ten_times_the_capacity() {
    let outcome = step(10.0, |handler, _| ours(limited(Quota::concurrent(RIGHT)), handler));
    outcome.assert_goodput_and_recovery();
    outcome.assert_latency();
    assert!(outcome.overloaded.critical >= 0.8, "{}", outcome.overloaded.critical);
}

/// From 5 in flight, with a maximum of ten times what the server needs: neither bound alone
/// gives both goodput and latency.
#[test]
fn a_limit_that_is_found_keeps_goodput_latency_and_what_is_critical() {
    let outcome = step(2.0, |handler, _| ours(limited(ADAPTIVE), handler));
    // Half of what the server can give is sent, from the first second on.
    assert!(outcome.unloaded.goodput >= 0.45, "{}", outcome.unloaded.goodput);
    outcome.assert_goodput_and_recovery();
    outcome.assert_latency();
    assert!(outcome.overloaded.critical >= 0.99, "{}", outcome.overloaded.critical);
}

#[test]
fn shedding_keeps_goodput_latency_and_what_is_critical() {
    let outcome = step(2.0, |handler, server| ours(shedding(Policy::new(), server), handler));
    outcome.assert_goodput_and_recovery();
    outcome.assert_latency();
    assert!(outcome.overloaded.critical >= 0.99, "{}", outcome.overloaded.critical);
}

/// Of the critical requests, which alone are as many as the server can answer, some give
/// way to the hundredth of the others that passes, and to what came before anything was shed.
#[test]
fn shedding_holds_at_ten_times_the_capacity() {
    let protections: [(Protect, f64); 2] = [
        (|handler, server| ours(shedding(Policy::new(), server), handler), 0.8),
        (|handler, server| ours(shedding(limited(Quota::concurrent(TOO_HIGH)), server), handler), 0.85),
    ];
    for (protect, critical) in protections {
        let outcome = step(10.0, protect);
        outcome.assert_goodput_and_recovery();
        assert!(outcome.overloaded.critical >= critical, "{}", outcome.overloaded.critical);
    }
}

/// Requests wait where no limit of concurrency sees them. Their callers give up, and the
/// server works on.
#[test]
fn shedding_by_the_scheduling_delay_keeps_a_blocked_executor_useful() {
    const OVERLOADED: usize = 15;
    let phases = [load(UNLOADED, 0.3), load(OVERLOADED, 3.0), load(12, 0.3)];
    let run =
        |seed, protect| outcome(&executor::simulate(&phases, seed, protect), (OVERLOADED, 3.0), executor::CAPACITY);
    let unprotected = run(1, |handler, _| statuses(handler));
    assert!(unprotected.overloaded.goodput < 0.3, "or this would prove nothing");
    let (_, protect) = executor::CONTESTANTS[0];
    for seed in 1..=10 {
        let outcome = run(seed, protect);
        outcome.assert_goodput_and_recovery();
        assert!(outcome.overloaded.critical >= 0.99, "{}", outcome.overloaded.critical);
        assert!(outcome.overloaded.p99.unwrap() <= 110, "{:?}", outcome.overloaded.p99);
    }
}
