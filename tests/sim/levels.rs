//! Simulates a fleet that shares a limit through a store, at each level of consistency:
//! real limiters on real [`Redis`] backends and scripts, in virtual time. And a naive
//! scheme beside them: a local count, and an INCRBY each interval.
//!
//! Used by `tests/sim.rs` and `benches/simulate`.
#![allow(dead_code, reason = "each uses some of it")]

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    task::{AbortHandle, JoinSet, spawn_blocking, yield_now},
    time::{Instant, advance},
};
use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, Policy, Quota, RateLimiter, Rule,
    backend::Redis,
    time::{Clock, Timestamp},
};

use super::{
    fleet::{Change, Plan, START, Traffic, Window, next_random},
    network::{LATENCY, Network},
    outcome::{Faults, Outcome, Sharing},
};

const STEP: Duration = Duration::from_millis(1);
const STEPS: u64 = 1_000;
const INTERVAL: Duration = Duration::from_millis(100);

/// The window of the limit.
const WINDOW: Duration = Duration::from_secs(1);

/// A higher limit is asked for in larger requests, so that it admits at most as many of
/// them a second.
const MOST_REQUESTS: u64 = 10_000;

/// How often all that happens at one time is looked at: a message may cause another one.
const ROUNDS: usize = 6;

/// Each has the limit, and each request is of one of them.
#[derive(Clone, Debug)]
pub(crate) struct Tenants {
    pub(crate) count: u64,
    /// The `sync_interval`.
    pub(crate) interval: Duration,
    /// The window of the limit. Demand is a multiple of the limit in each second.
    pub(crate) window: Duration,
}

/// A clock that follows virtual time, and may be wrong.
#[derive(Clone, Copy, Debug)]
struct WrongClock {
    origin: Instant,
    by: i64,
}

impl Clock for WrongClock {
    fn now(&self) -> Timestamp {
        let passed = u64::try_from(self.origin.elapsed().as_nanos()).expect("not that long");
        Timestamp::from_nanos((START + passed).saturating_add_signed(self.by))
    }
}

/// What was admitted, in nanoseconds of virtual time and units.
type Admitted = Arc<Mutex<Vec<(Instant, u64)>>>;

/// What an instance decides by.
enum Decider {
    Limiter(RateLimiter),
    /// The last known count and the own one, and the window that they are of.
    Naive {
        known: u64,
        own: u64,
        window: u64,
    },
}

struct Instance {
    decider: Decider,
    /// The number of the process.
    name: usize,
    asks: Vec<AbortHandle>,
    in_window: u64,
    bursts_at: u64,
}

struct Fleet<'a> {
    plan: &'a Plan,
    sharing: Sharing,
    faults: &'a Faults,
    tenants: &'a Tenants,
    names: Box<[Arc<str>]>,
    network: Arc<Network>,
    origin: Instant,
    random: u64,
    limit: u64,
    instances: Vec<Instance>,
    started: usize,
    admitted: Admitted,
    asks: JoinSet<()>,
    /// What the store of the naive scheme has counted in a window, and its calls.
    counted: (u64, u64),
    naive_calls: u64,
}

impl Fleet<'_> {
    fn random(&mut self) -> u64 {
        next_random(&mut self.random)
    }

    /// Between zero and one.
    fn chance(&mut self) -> f64 {
        (self.random() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn cost(&self) -> u64 {
        (self.limit / MOST_REQUESTS).max(1)
    }

    fn policy(&self, level: Consistency) -> Policy {
        let quota = Quota::new(self.limit, self.tenants.window).algorithm(Algorithm::FixedWindow);
        let rule =
            Rule::new("all").tier(quota).cost(self.cost()).consistency(level).sync_interval(self.tenants.interval);
        Policy::new().rule(rule.on_backend_failure(self.faults.failure_mode))
    }

    fn start_instance(&mut self) -> Instance {
        let skew = self.plan.clock_skew.as_nanos() as f64;
        let by = (skew * (self.chance() - 0.5)) as i64;
        let decider = match self.sharing {
            Sharing::Naive => Decider::Naive { known: 0, own: 0, window: 0 },
            Sharing::Level(level) => {
                let redis = Redis::builder()
                    .url(self.network.url())
                    .on_current_runtime()
                    .connect_lazy()
                    .expect("a valid setting");
                let clock = WrongClock { origin: self.origin, by };
                let limiter = RateLimiter::builder().policy(self.policy(level)).backend(redis).clock(clock);
                Decider::Limiter(limiter.build().expect("a valid policy"))
            }
        };
        self.started += 1;
        Instance { decider, name: self.started, asks: Vec::new(), in_window: 0, bursts_at: 0 }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Count(count) => {
                while self.instances.len() as u64 > count {
                    self.kill(self.instances.len() - 1);
                }
                while (self.instances.len() as u64) < count {
                    let instance = self.start_instance();
                    self.instances.push(instance);
                }
            }
            Change::Limit(limit) => {
                self.limit = limit;
                let Sharing::Level(level) = self.sharing else { return };
                let policy = self.policy(level);
                for instance in &self.instances {
                    if let Decider::Limiter(limiter) = &instance.decider {
                        limiter.set_policy(policy.clone()).expect("a valid policy");
                    }
                }
            }
        }
    }

    /// An instance ends with all that it has under way.
    fn kill(&mut self, index: usize) {
        self.instances.remove(index).asks.iter().for_each(AbortHandle::abort);
    }

    /// The number of requests of each instance in a step.
    fn arrivals(&mut self, step: u64) -> Vec<u64> {
        let count = self.instances.len() as f64;
        let each = self.plan.load * self.limit as f64 / self.cost() as f64 / count;
        let harmonic: f64 = (1..=self.instances.len()).map(|rank| 1.0 / rank as f64).sum();
        let expected = |rank: usize, bursts_at: u64| match self.plan.traffic {
            Traffic::Balanced => each / STEPS as f64,
            Traffic::Skewed => each * count / harmonic / (rank + 1) as f64 / STEPS as f64,
            Traffic::Bursty if step == bursts_at => each,
            Traffic::AtBorders if step == 0 || step == STEPS - 1 => each / 2.0,
            _ => 0.0,
        };
        let expected: Vec<f64> =
            self.instances.iter().enumerate().map(|(rank, instance)| expected(rank, instance.bursts_at)).collect();
        expected.into_iter().map(|expected| (expected + self.chance()) as u64).collect()
    }

    fn request(&mut self, index: usize, now: Instant) {
        let (cost, limit, window) = (self.cost(), self.limit, self.window(now));
        let tenant = Arc::clone(&self.names[self.random() as usize % self.names.len()]);
        let instance = &mut self.instances[index];
        match &mut instance.decider {
            Decider::Naive { known, own, window: of } => {
                if *of != window {
                    (*known, *own, *of) = (0, 0, window);
                }
                if *known + *own + cost <= limit {
                    *own += cost;
                    instance.in_window += cost;
                    self.admitted.lock().expect("no panic").push((now, cost));
                }
            }
            Decider::Limiter(limiter) => {
                let limiter = limiter.clone();
                let mut ask: Pin<Box<dyn Future<Output = bool> + Send>> =
                    Box::pin(async move { limiter.check(&Descriptor::new("/").tenant(&*tenant)).await.is_allowed() });
                match ask.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(true) => {
                        instance.in_window += cost;
                        self.admitted.lock().expect("no panic").push((now, cost));
                    }
                    Poll::Ready(false) => {}
                    Poll::Pending => {
                        let admitted = Arc::clone(&self.admitted);
                        let ask = self.asks.spawn(async move {
                            if ask.await {
                                // When the store charged it, if it did so for this request.
                                let at = (Instant::now() - LATENCY).max(now);
                                admitted.lock().expect("no panic").push((at, cost));
                            }
                        });
                        instance.asks.push(ask);
                    }
                }
            }
        }
    }

    /// The exchange of the naive scheme, each instance at its own time. An exchange that
    /// is lost is made again in the next interval.
    fn exchange(&mut self, now: Instant, step: u64) {
        let (window, interval) = (self.window(now), self.tenants.interval.as_millis() as u64);
        if self.counted.0 != window {
            self.counted = (window, 0);
        }
        for index in 0..self.instances.len() {
            let is_lost = self.network.frozen().is_some() || self.random() % 1_000 < self.faults.lost;
            let instance = &mut self.instances[index];
            let is_due = (step + instance.name as u64 * 7).is_multiple_of(interval);
            let Decider::Naive { known, own, window: of } = &mut instance.decider else { return };
            if is_due && *of == window {
                self.naive_calls += 1;
                if !is_lost {
                    self.counted.1 += std::mem::take(own);
                    *known = self.counted.1;
                }
            }
        }
    }

    /// The number of the second.
    fn window(&self, now: Instant) -> u64 {
        (now - self.origin).as_secs()
    }

    fn calls(&self) -> u64 {
        self.network.calls() + self.naive_calls
    }

    async fn step(&mut self, step: u64) {
        let now = Instant::now();
        if self.sharing == Sharing::Naive {
            self.exchange(now, step);
        }
        for (index, requests) in self.arrivals(step).into_iter().enumerate() {
            for _ in 0..requests {
                self.request(index, now);
            }
        }
        advance(STEP).await;
        for _ in 0..ROUNDS {
            yield_now().await;
        }
        while self.asks.try_join_next().is_some() {}
    }

    /// What fails in this second.
    fn fail(&mut self, number: usize) {
        if self.faults.kills && number > 0 {
            let index = self.random() as usize % self.instances.len();
            self.kill(index);
            let instance = self.start_instance();
            self.instances.insert(index, instance);
        }
        if let Some((_, seconds)) = self.faults.frozen.filter(|(second, _)| *second == number) {
            self.network.freeze(Duration::from_secs(seconds));
        }
    }

    async fn run(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        for number in 0..self.plan.windows {
            let mut window = Window { limit: self.limit, ..Window::default() };
            for index in 0..self.instances.len() {
                let at = self.random() % STEPS;
                (self.instances[index].bursts_at, self.instances[index].in_window) = (at, 0);
                self.instances[index].asks.retain(|ask| !ask.is_finished());
            }
            let before = self.calls();
            for step in 0..STEPS {
                if step == STEPS / 2 {
                    self.fail(number);
                }
                let changes = self.plan.changes.iter();
                let due =
                    |change: &&(usize, u64, Change)| (change.0, change.1 * STEPS / self.plan.steps) == (number, step);
                let changes: Vec<_> = changes.filter(due).map(|change| change.2).collect();
                for change in changes {
                    self.change(change);
                    window.limit = window.limit.max(self.limit);
                }
                self.step(step).await;
            }
            let of_each = || self.instances.iter().map(|instance| instance.in_window);
            (window.least, window.most) = (of_each().min().unwrap_or(0), of_each().max().unwrap_or(0));
            outcome.windows.push(window);
            outcome.calls.push(self.calls() - before);
        }
        // What is under way at the end was charged in the last window, if at all.
        for _ in 0..2 {
            advance(STEP).await;
            yield_now().await;
        }
        for (at, units) in self.admitted.lock().expect("no panic").iter() {
            if let Some(window) = outcome.windows.get_mut((*at - self.origin).as_secs() as usize) {
                window.admitted += units;
                window.in_true_second += units;
            }
        }
        outcome
    }
}

/// Runs the simulation, with one tenant.
pub(crate) fn simulate(plan: &Plan, sharing: Sharing, faults: &Faults) -> Outcome {
    simulate_tenants(plan, sharing, faults, &Tenants { count: 1, interval: INTERVAL, window: WINDOW })
}

/// The same with several tenants.
pub(crate) fn simulate_tenants(plan: &Plan, sharing: Sharing, faults: &Faults, tenants: &Tenants) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        // While a blocking task runs, paused time does not advance by itself, however
        // long a message takes.
        let (end, ended) = mpsc::channel::<()>();
        spawn_blocking(move || ended.recv());
        let origin = Instant::now();
        let mut fleet = Fleet {
            plan,
            sharing,
            faults,
            tenants,
            names: (0..tenants.count).map(|tenant| format!("tenant-{tenant}").into()).collect(),
            network: Network::start(START, faults.lost),
            origin,
            random: 0x9e37_79b9_7f4a_7c15,
            limit: plan.limit,
            instances: Vec::new(),
            started: 0,
            admitted: Admitted::default(),
            asks: JoinSet::new(),
            counted: (0, 0),
            naive_calls: 0,
        };
        fleet.change(Change::Count(plan.count));
        let outcome = fleet.run().await;
        drop(end);
        outcome
    })
}
