//! What a server that is overloaded still gives behind the limiter: bounds in virtual time,
//! from a fixed seed. `benches/simulate` has longer runs.

use tower_ratelimit::{Policy, Quota};

use super::{
    protections::{ADAPTIVE, Protect, RIGHT, TOO_HIGH, limited, ours, shedding, statuses},
    server::{self, CAPACITY, Plan, Summary, load},
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
    let (before, later) = seconds.split_at(UNLOADED);
    let (during, after) = later.split_at(overloaded);
    let (unloaded, overloaded) = (server::summary(before, CAPACITY), server::summary(during, CAPACITY));
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
    outcome.assert_goodput_and_recovery();
    outcome.assert_latency();
    assert!(outcome.overloaded.critical >= 0.99, "{}", outcome.overloaded.critical);
}

/// Latency is not bounded while the part that is shed grows: see the limit for that.
#[test]
fn shedding_keeps_goodput_and_what_is_critical() {
    let outcome = step(2.0, |handler, server| ours(shedding(Policy::new(), server), handler));
    outcome.assert_goodput_and_recovery();
    assert!(outcome.overloaded.critical >= 0.99, "{}", outcome.overloaded.critical);
}
