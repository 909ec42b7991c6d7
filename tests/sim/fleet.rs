//! Simulates a fleet in one process: each instance is a real limiter with its own
//! share and its own clock, on stepped time.
//!
//! Used by `tests/sim.rs` and `benches/simulate`.
#![allow(dead_code, reason = "each uses some of it")]

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::sync::watch;
use tower_ratelimit::{
    Algorithm, Decision, Descriptor, Quota, RateLimiter,
    backend::{Share, Split},
    time::{Clock, Timestamp},
};

/// 2024-01-01T00:00:00Z.
pub(crate) const START: u64 = 1_704_067_200_000_000_000;
const WINDOW: u64 = 1_000_000_000;

/// The load, and its distribution over instances and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Equal on all instances, evenly over time.
    Balanced,
    /// Zipf-distributed: the second instance has half of the first's load, the third
    /// a third.
    Skewed,
    /// Equal on all instances, but all of a window's load at once, at a random time.
    Bursty,
    /// Equal on all instances, half right before the end of a true second and half
    /// right after it.
    AtBorders,
}

/// A change during the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The number of instances: the last ones leave, or new ones join.
    Count(u64),
    Limit(u64),
}

/// A simulation.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The fleet's limit, in units a second.
    pub(crate) limit: u64,
    pub(crate) count: u64,
    pub(crate) windows: usize,
    /// In each window.
    pub(crate) steps: u64,
    /// The largest difference between two clocks.
    pub(crate) clock_skew: Duration,
    pub(crate) traffic: Traffic,
    /// The demand, as a multiple of the limit.
    pub(crate) load: f64,
    /// The window and step of each change, and the change.
    pub(crate) changes: Vec<(usize, u64, Change)>,
}

/// One second of true time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    /// The largest limit that was in force in the window.
    pub(crate) limit: u64,
    /// Units admitted in the window of this number, by the instances' clocks.
    pub(crate) admitted: u64,
    /// Units admitted in the true second.
    pub(crate) in_true_second: u64,
    /// The minimum and maximum of units that an instance admitted.
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Window {
    pub(crate) fn over(&self) -> u64 {
        self.admitted.saturating_sub(self.limit)
    }

    pub(crate) fn unused(&self) -> u64 {
        self.limit.saturating_sub(self.admitted)
    }
}

#[derive(Debug)]
struct Offset {
    now: Arc<AtomicU64>,
    by: i64,
}

impl Clock for Offset {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.now.load(Ordering::Relaxed).saturating_add_signed(self.by))
    }
}

struct Instance {
    limiter: RateLimiter,
    share: watch::Sender<Share>,
    offset: i64,
    /// The demand in units.
    waiting: f64,
    /// The time of its load within a window, if it comes at once.
    bursts_at: u64,
    in_window: u64,
}

/// The next number of an xorshift generator.
pub(crate) fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

struct Fleet {
    now: Arc<AtomicU64>,
    quota: Quota,
    clock_skew: Duration,
    random: u64,
    instances: Vec<Instance>,
}

impl Fleet {
    fn random(&mut self) -> u64 {
        next_random(&mut self.random)
    }

    /// An instance that joins a running fleet starts without a share.
    fn join(&mut self, first: Share) {
        let half = i64::try_from(self.clock_skew.as_nanos() / 2).unwrap_or(0);
        let offset = if half > 0 { (self.random() >> 1).cast_signed() % (2 * half + 1) - half } else { 0 };
        let (share, shares) = watch::channel(first);
        let limiter = RateLimiter::builder()
            .policy(self.quota)
            .backend(Split::watch(shares))
            .clock(Offset { now: Arc::clone(&self.now), by: offset })
            .build()
            .expect("a valid policy");
        self.instances.push(Instance { limiter, share, offset, waiting: 0.0, bursts_at: 0, in_window: 0 });
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Count(count) => {
                self.instances.truncate(count as usize);
                while (self.instances.len() as u64) < count {
                    self.join(Share::none());
                }
                for (index, instance) in self.instances.iter().enumerate() {
                    instance.share.send_replace(Share::new(index, count).expect("an index below the count"));
                }
            }
            Change::Limit(limit) => {
                self.quota = quota(limit);
                for instance in &self.instances {
                    instance.limiter.set_policy(self.quota).expect("a valid policy");
                }
            }
        }
    }

    /// Adds the load of a step.
    fn load(&mut self, plan: &Plan, step: u64) {
        let count = self.instances.len() as f64;
        let each = plan.load * self.quota.limit() as f64 / count;
        let harmonic: f64 = (1..=self.instances.len()).map(|rank| 1.0 / rank as f64).sum();
        for (rank, instance) in self.instances.iter_mut().enumerate() {
            let asked = match plan.traffic {
                // A waiter for one unit asks in every step.
                Traffic::Balanced => (each / plan.steps as f64).max(1.0),
                Traffic::Skewed => each * count / harmonic / (rank + 1) as f64 / plan.steps as f64,
                Traffic::Bursty if step == instance.bursts_at => each,
                Traffic::AtBorders if step == 0 || step == plan.steps - 1 => each,
                _ => 0.0,
            };
            // No request waits for longer than two windows.
            instance.waiting = (instance.waiting + asked).min((2.0 * each.max(asked)).max(1.0));
        }
    }
}

fn quota(limit: u64) -> Quota {
    Quota::per_second(limit).algorithm(Algorithm::FixedWindow)
}

pub(crate) fn check(limiter: &RateLimiter, cost: u64) -> Decision {
    match pin!(limiter.check(&Descriptor::new("/").cost(cost))).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision,
        Poll::Pending => unreachable!("it is decided here"),
    }
}

/// The number of admitted units: all in one request, or the remaining ones.
fn spend(limiter: &RateLimiter, units: u64) -> u64 {
    let decision = check(limiter, units);
    if decision.is_allowed() {
        return units;
    }
    let left = decision.remaining().map_or(0, |left| left.min(units));
    if left > 0 && check(limiter, left).is_allowed() { left } else { 0 }
}

/// Runs the simulation. Returns the result of each window.
pub(crate) fn simulate(plan: &Plan) -> Vec<Window> {
    let now = Arc::new(AtomicU64::new(START));
    let random = 0x2545_f491_4f6c_dd1d;
    let mut fleet = Fleet { now, quota: quota(plan.limit), clock_skew: plan.clock_skew, random, instances: Vec::new() };
    for index in 0..plan.count {
        fleet.join(Share::new(index, plan.count).expect("an index below the count"));
    }
    let mut windows = vec![Window::default(); plan.windows];
    for number in 0..plan.windows {
        windows[number].limit = fleet.quota.limit();
        for index in 0..fleet.instances.len() {
            let at = fleet.random() % plan.steps;
            let instance = &mut fleet.instances[index];
            (instance.bursts_at, instance.in_window) = (at, 0);
        }
        for step in 0..plan.steps {
            // In the middle of a step, so that no clock is on a window's border.
            let passed = number as u64 * WINDOW + (2 * step + 1) * WINDOW / plan.steps / 2;
            fleet.now.store(START + passed, Ordering::Relaxed);
            for (_, _, change) in plan.changes.iter().filter(|change| (change.0, change.1) == (number, step)) {
                fleet.change(*change);
                windows[number].limit = windows[number].limit.max(fleet.quota.limit());
            }
            fleet.load(plan, step);
            for instance in &mut fleet.instances {
                let units = instance.waiting as u64;
                if units == 0 {
                    continue;
                }
                let admitted = spend(&instance.limiter, units);
                instance.waiting -= admitted as f64;
                instance.in_window += admitted;
                windows[number].in_true_second += admitted;
                let own = (passed as i64 + instance.offset).div_euclid(WINDOW as i64);
                if let Some(own) = usize::try_from(own).ok().and_then(|own| windows.get_mut(own)) {
                    own.admitted += admitted;
                }
            }
        }
        let of_each = || fleet.instances.iter().map(|instance| instance.in_window);
        windows[number].least = of_each().min().unwrap_or(0);
        windows[number].most = of_each().max().unwrap_or(0);
    }
    windows
}
