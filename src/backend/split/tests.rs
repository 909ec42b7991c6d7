//! Small fleets on one clock, each instance with its own limiter: shares that
//! sum to the limit, shares that change, and every way to charge.

use std::time::Duration;

use tokio::sync::watch;

use super::{Share, Split};
use crate::{
    backend::Backend,
    decision::Decision,
    descriptor::Descriptor,
    limiter::RateLimiter,
    policy::Policy,
    quota::{Algorithm, Quota},
    time::{Clock, Timestamp},
};

mod buckets;
mod changes;
mod charging;
mod dns;
mod limits;
mod sources;
mod windows;

const SECOND: Duration = Duration::from_secs(1);

/// A clock that tests step. The feature of `testing` may be off in unit tests.
#[derive(Clone, Debug)]
pub(super) struct Hand(std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Hand {
    fn new() -> Self {
        // 2024-01-01T00:00:00Z.
        Self(std::sync::Arc::new(1_704_067_200_000_000_000.into()))
    }

    fn advance(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap();
        self.0.fetch_add(nanos, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(std::sync::atomic::Ordering::Relaxed))
    }
}

/// Instances whose shares can be changed.
pub(super) struct Fleet {
    clock: Hand,
    limiters: Vec<RateLimiter>,
    shares: Vec<watch::Sender<Share>>,
}

impl Fleet {
    fn new(count: u64, policy: impl Into<Policy>) -> Self {
        Self::of((0..count).map(|index| Share::new(index, count).unwrap()), policy)
    }

    fn of(shares: impl IntoIterator<Item = Share>, policy: impl Into<Policy>) -> Self {
        let (clock, policy) = (Hand::new(), policy.into());
        let mut fleet = Self { clock, limiters: Vec::new(), shares: Vec::new() };
        shares.into_iter().for_each(|share| fleet.join(share, &policy));
        fleet
    }

    fn join(&mut self, share: Share, policy: &Policy) {
        let (sender, receiver) = watch::channel(share);
        self.limiters.push(limiter(Split::watch(receiver), policy.clone(), &self.clock));
        self.shares.push(sender);
    }

    /// Changes the count for all. Instances with an index beyond it have no share.
    fn resize(&self, count: u64) {
        for (index, sender) in self.shares.iter().enumerate() {
            sender.send_replace(Share::new(index, count).unwrap_or(Share::none()));
        }
    }

    fn pass(&self, duration: Duration) {
        self.clock.advance(duration);
    }

    /// How many units each instance admits until it rejects.
    fn drain(&self) -> Vec<u64> {
        self.limiters.iter().map(|limiter| drain(limiter, u64::MAX)).collect()
    }

    fn drained(&self) -> u64 {
        self.drain().iter().sum()
    }
}

fn limiter(backend: impl Backend, policy: impl Into<Policy>, clock: &Hand) -> RateLimiter {
    RateLimiter::builder().policy(policy).backend(backend).clock(clock.clone()).build().unwrap()
}

fn ask(limiter: &RateLimiter, cost: u64) -> Decision {
    let mut decision = Decision::unlimited();
    let request = Descriptor::new("/").tenant("acme").cost(cost);
    drop(limiter.decide(&request, Duration::ZERO, &mut decision));
    decision
}

fn drain(limiter: &RateLimiter, most: u64) -> u64 {
    (0..most).take_while(|_| ask(limiter, 1).is_allowed()).count() as u64
}

fn fixed(limit: u64) -> Quota {
    Quota::per_second(limit).algorithm(Algorithm::FixedWindow)
}

#[test]
fn a_share_displays_its_index_count_and_fraction() {
    let share = Share::new(3, 96).unwrap();
    assert_eq!(format!("{share:?}"), "Share { index: 3, count: 96, fraction: 0.010416666666666666 }");
    assert!(Share::none().is_none() && !Share::new(0, 1).unwrap().is_none());
    assert_eq!(Share::none().count(), 0);
    let backend = Split::new(share.clone()).joining();
    assert_eq!(backend.share(), share, "not in force yet, but reported");
}
