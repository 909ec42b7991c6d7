//! The token bucket compared with `governor`, decision by decision, where governor
//! is exact; and our own decisions where it is not.
//!
//! governor keeps the time between two units in whole nanoseconds. Where that
//! is what the quota asks for, both are the same algorithm and must agree to
//! the nanosecond. Elsewhere it rounds down: 600 million a second become a
//! thousand million.
#![cfg(feature = "test-util")]
#![allow(clippy::unwrap_used)]

use std::{
    future::Future,
    num::NonZeroU32,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use governor::{
    NotUntil,
    clock::{Clock, FakeRelativeClock},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed},
};
use proptest::prelude::*;
use tower_ratelimit::{Decision, Descriptor, Quota, RateLimitedKind, RateLimiter, testing::ManualClock};

type Peer = governor::RateLimiter<NotKeyed, InMemoryState, FakeRelativeClock, NoOpMiddleware<Nanos>>;

/// Both limiters, on clocks that move together.
struct Pair {
    ours: RateLimiter,
    clock: ManualClock,
    theirs: Peer,
    their_clock: FakeRelativeClock,
}

impl Pair {
    fn new(ours: Quota, theirs: governor::Quota) -> Self {
        let (clock, their_clock) = (ManualClock::new(), FakeRelativeClock::default());
        let ours = RateLimiter::builder().policy(ours).clock(clock.clone()).build().unwrap();
        Self { ours, clock, theirs: Peer::direct_with_clock(theirs, their_clock.clone()), their_clock }
    }

    fn advance(&self, duration: Duration) {
        self.clock.advance(duration);
        self.their_clock.advance(duration);
    }

    fn ask_ours(&self, cost: u32) -> Decision {
        match pin!(self.ours.check(&Descriptor::new("/").cost(cost.into())))
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(decision) => decision,
            Poll::Pending => panic!("a local decision took more than one poll"),
        }
    }

    fn ask_theirs(&self, cost: u32) -> Answer {
        let wait = |until: NotUntil<Nanos>| until.wait_time_from(self.their_clock.now());
        match self.theirs.check_n(nonzero(cost)) {
            Ok(Ok(())) => Answer::Passes,
            Ok(Err(until)) => Answer::After(wait(until)),
            Err(_) => Answer::Never,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Passes,
    After(Duration),
    Never,
}

impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        match (decision.rejection(), decision.retry_after()) {
            (None, _) => Self::Passes,
            (Some(RateLimitedKind::NeverFits), None) => Self::Never,
            (_, after) => Self::After(after.unwrap()),
        }
    }
}

fn nonzero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

fn steps() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let gap = prop_oneof![3 => Just(0), 4 => 1..2_000_u64, 1 => 2_000..300_000_u64];
    let cost = prop_oneof![4 => Just(1), 3 => 2..10_u32, 1 => 10..150_u32];
    prop::collection::vec((gap, cost), 1..120)
}

/// Gaps are in thousandths of what a unit takes.
fn agree(pair: &Pair, unit: u64, steps: &[(u64, u32)]) -> Result<(), TestCaseError> {
    for (index, &(gap, cost)) in steps.iter().enumerate() {
        pair.advance(Duration::from_nanos((u128::from(unit) * u128::from(gap) / 1_000) as u64));
        let (ours, theirs) = (Answer::from(pair.ask_ours(cost)), pair.ask_theirs(cost));
        prop_assert_eq!(ours, theirs, "request {}, cost {}", index, cost);
    }
    Ok(())
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn one_each_period_with_a_burst(nanos in 1..100_000_000_000_u64, burst in 1..200_u32, steps in steps()) {
        let period = Duration::from_nanos(nanos);
        let theirs = governor::Quota::with_period(period).unwrap().allow_burst(nonzero(burst));
        let pair = Pair::new(Quota::new(1, period).burst(burst.into()), theirs);
        agree(&pair, nanos, &steps)?;
    }

    #[test]
    fn a_whole_period_for_each_unit(twos in 0..10_u32, fives in 0..10_u32, burst in prop::option::of(1..200_u32), steps in steps()) {
        // Divisors of a second in whole nanoseconds.
        let rate = 2_u32.pow(twos) * 5_u32.pow(fives);
        let (mut ours, mut theirs) = (Quota::per_second(rate.into()), governor::Quota::per_second(nonzero(rate)));
        if let Some(burst) = burst {
            (ours, theirs) = (ours.burst(burst.into()), theirs.allow_burst(nonzero(burst)));
        }
        agree(&Pair::new(ours, theirs), (1_000_000_000 / rate).into(), &steps)?;
    }
}

/// governor truncates 1.67 ns to one: 1,000,000 a millisecond.
#[test]
fn six_hundred_million_a_second_are_exact() {
    let rate = 600_000_000;
    let pair = Pair::new(
        Quota::per_second(rate).burst(1_000_000),
        governor::Quota::per_second(nonzero(rate as u32)).allow_burst(nonzero(1_000_000)),
    );
    assert!(pair.ask_ours(1_000_000).is_allowed());
    assert_eq!(pair.ask_theirs(1_000_000), Answer::Passes);
    pair.advance(Duration::from_millis(1));
    assert_eq!(pair.ask_ours(1).remaining(), Some(599_999));
    assert_eq!(pair.ask_theirs(1_000_000), Answer::Passes, "governor is exact now: say so above");
    assert!(pair.ask_ours(599_999).is_allowed());
    assert!(!pair.ask_ours(1).is_allowed());
    for _ in 0..1_000 {
        pair.advance(Duration::from_millis(1));
        assert!(pair.ask_ours(600_000).is_allowed());
        assert!(!pair.ask_ours(1).is_allowed());
    }
}

/// Three a second take 333,333,333.3 ns each; governor's come 0.3 ns early,
/// each of them.
#[test]
fn thirds_of_a_second_are_exact() {
    let pair =
        Pair::new(Quota::per_second(3).burst(1), governor::Quota::per_second(nonzero(3)).allow_burst(nonzero(1)));
    assert_eq!((Answer::from(pair.ask_ours(1)), pair.ask_theirs(1)), (Answer::Passes, Answer::Passes));
    pair.advance(Duration::from_nanos(333_333_333));
    assert_eq!(pair.ask_theirs(1), Answer::Passes, "governor is exact now: say so above");
    assert_eq!(Answer::from(pair.ask_ours(1)), Answer::After(Duration::from_nanos(1)));
    pair.advance(Duration::from_nanos(1));
    assert_eq!(Answer::from(pair.ask_ours(1)), Answer::Passes);
}

/// governor multiplies a day's nanoseconds by the burst in 64 bits: a panic in
/// debug, another quota in release.
#[test]
fn one_a_day_with_a_burst_of_four_billion() {
    let ours = Pair::new(
        Quota::per_day(1).burst(u32::MAX.into()),
        governor::Quota::with_period(Duration::from_secs(86_400)).unwrap(),
    );
    assert!(ours.ask_ours(u32::MAX).is_allowed());
    assert_eq!(Answer::from(ours.ask_ours(1)), Answer::After(Duration::from_secs(86_400)));
}

/// governor keeps times relative to its start: a limiter with a new quota over
/// an old state takes 1,000 seconds of past for 1,000 seconds of debt.
#[test]
fn a_raised_quota_is_in_force_at_once() {
    let pair = Pair::new(Quota::per_minute(60), governor::Quota::per_minute(nonzero(60)));
    pair.advance(Duration::from_secs(1_000));
    assert!(pair.ask_ours(40).is_allowed());
    pair.ours.set_policy(Quota::per_minute(600)).unwrap();
    assert!(pair.ask_ours(560).is_allowed());
    assert_eq!(Answer::from(pair.ask_ours(1)), Answer::After(Duration::from_millis(100)));
}
