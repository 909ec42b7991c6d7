//! The same schedule on `Local` and on Redis gives the same decisions, one by one,
//! by the limiter's clock, within the tolerance that each test states. A case
//! ends where the two admit different requests within it. Requests for units in
//! flight do not wait; no policy here is smooth or fair.
//!
//! A failure prints the smallest schedule that shows it. `PROPTEST_CASES` sets how
//! many schedules are tried.

use std::{
    env,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use proptest::{
    prelude::*,
    test_runner::{TestError, TestRunner},
};
use redis::aio::MultiplexedConnection;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};
use tower_ratelimit::{
    Algorithm, Decision, Descriptor, FailureMode, Permit, Policy, Quota, RateLimited, RateLimiter, Rule, Verdict,
    backend::Redis, testing::ManualClock, time::Timestamp,
};

use super::{
    LONG, beside_others,
    schedule::{Policies, Request, Step, policies, steps},
    server::Server,
    until,
};

const MICROSECOND: Duration = Duration::from_micros(1);

/// Two limiters on one clock.
struct Both {
    clock: ManualClock,
    local: RateLimiter,
    redis: RateLimiter,
    /// The connection of the test, to notice when the server is idle.
    connection: MultiplexedConnection,
    policies: Policies,
    edition: usize,
    entries: Vec<Entry>,
    retry_after: Duration,
    tolerance: Duration,
    /// Rejections are cached with their status, so only admissions and their times
    /// are compared.
    remembers: bool,
}

/// A permit of both, or a wait for both.
struct Entry {
    local: Side,
    redis: Side,
}

enum Side {
    Waits(JoinHandle<Result<Permit, RateLimited>>),
    Holds(Permit),
}

/// Ends a case where decisions differ within the tolerance: what follows cannot be
/// compared.
struct Diverged;

type Compared = Result<Result<(), Diverged>, TestCaseError>;

impl Both {
    async fn check(&self, request: Request) -> (Decision, Decision) {
        let descriptor = Descriptor::new(request.path).tenant(request.tenant).cost(request.cost);
        (self.local.check(&descriptor).await, self.redis.check(&descriptor).await)
    }

    /// Waits until pushed operations are done: runtime and server have one thread
    /// each, so they are done before the last of a few round trips. These are more
    /// than are needed.
    async fn settled(&mut self) {
        for _ in 0..12 {
            redis::cmd("PING").exec_async(&mut self.connection).await.unwrap();
        }
    }

    fn compare(&mut self, local: &Decision, redis: &Decision) -> Compared {
        if local.is_allowed() != redis.is_allowed() {
            let soon = local.retry_after().or(redis.retry_after()).is_some_and(|after| after <= self.tolerance);
            prop_assert!(soon, "verdicts differ:\n local {local:?}\n redis {redis:?}");
            return Ok(Err(Diverged));
        }
        self.retry_after = local.retry_after().unwrap_or(self.retry_after);
        prop_assert_eq!(local.rejection(), redis.rejection());
        self.near("wait", local.wait(), redis.wait())?;
        // Within the tolerance one may wait for a unit in flight and the other
        // for its rate.
        let soon = |decision: &Decision| decision.retry_after().is_some_and(|after| after <= self.tolerance);
        if soon(local) != soon(redis) && !self.tolerance.is_zero() {
            return Ok(Err(Diverged));
        }
        match (local.retry_after(), redis.retry_after()) {
            (Some(local), Some(redis)) => self.near("retry_after", local, redis)?,
            (local, redis) => prop_assert_eq!(local, redis, "retry_after"),
        }
        if self.remembers {
            return Ok(Ok(()));
        }
        prop_assert_eq!(local.tiers().len(), redis.tiers().len());
        for (one, other) in local.tiers().iter().zip(redis.tiers()) {
            prop_assert_eq!(one.name(), other.name());
            prop_assert_eq!(one.quota(), other.quota());
            let remaining = one.remaining().abs_diff(other.remaining());
            // Units may be released within the tolerance.
            let each = u128::from(one.limit()) * self.tolerance.as_nanos() / one.window().as_nanos().max(1);
            let most = if self.tolerance.is_zero() { 0 } else { each + 1 };
            prop_assert!(u128::from(remaining) <= most, "remaining:\n {one:?}\n {other:?}");
            self.near("reset", one.reset(), other.reset())?;
            prop_assert!(
                one.is_violated() == other.is_violated() || !self.tolerance.is_zero(),
                "violated:\n {one:?}\n {other:?}"
            );
        }
        Ok(Ok(()))
    }

    fn near(&self, what: &str, local: Duration, redis: Duration) -> Result<(), TestCaseError> {
        prop_assert!(local.abs_diff(redis) <= self.tolerance, "{what}: {local:?} on local, {redis:?} on Redis");
        Ok(())
    }

    /// Submits a request to both; one that is delayed waits in a task.
    async fn acquire(&mut self, request: Request, max_wait: Duration) -> Compared {
        let ask = |limiter: &RateLimiter| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let descriptor = Descriptor::new(request.path).tenant(request.tenant).cost(request.cost);
                limiter.acquire(&descriptor, max_wait).await
            })
        };
        let (local, redis) = (ask(&self.local), ask(&self.redis));
        self.settled().await;
        let entry = Entry { local: Side::Waits(local), redis: Side::Waits(redis) };
        self.entries.push(entry);
        self.arrive(self.entries.len() - 1).await
    }

    /// If one has admitted or rejected a request, so has the other, or soon will.
    async fn arrive(&mut self, place: usize) -> Compared {
        let entry = &mut self.entries[place];
        let (Side::Waits(local), Side::Waits(redis)) = (&mut entry.local, &mut entry.redis) else { return Ok(Ok(())) };
        if !local.is_finished() && !redis.is_finished() {
            return Ok(Ok(()));
        }
        let both = async { (local.await.unwrap(), redis.await.unwrap()) };
        let Ok((local, redis)) = tokio::time::timeout(Duration::from_secs(2), both).await else {
            let entry = &self.entries[place];
            let which = if matches!(&entry.local, Side::Waits(task) if task.is_finished()) { "Redis" } else { "local" };
            return Err(TestCaseError::fail(format!("only on {which} a request is delayed")));
        };
        let decision = |result: &Result<Permit, RateLimited>| match result {
            Ok(permit) => Some(permit.decision().clone()),
            Err(rejection) => rejection.decision().cloned(),
        };
        let (Some(one), Some(other)) = (decision(&local), decision(&redis)) else {
            prop_assert_eq!(format!("{:?}", local.err()), format!("{:?}", redis.err()));
            self.entries.remove(place);
            return Ok(Ok(()));
        };
        if let (Ok(local), Ok(redis)) = (local, redis) {
            self.entries[place] = Entry { local: Side::Holds(local), redis: Side::Holds(redis) };
        } else {
            self.entries.remove(place);
        }
        self.compare(&one, &other)
    }

    /// Removes the permit at an index, if there is one.
    async fn held(&mut self, place: usize) -> Result<Option<(Permit, Permit)>, TestCaseError> {
        if self.entries.is_empty() {
            return Ok(None);
        }
        let place = place % self.entries.len();
        if self.arrive(place).await?.is_err() || self.entries.len() <= place {
            return Ok(None);
        }
        if matches!(self.entries[place].local, Side::Waits(_)) {
            return Ok(None);
        }
        let entry = self.entries.remove(place);
        match (entry.local, entry.redis) {
            (Side::Holds(local), Side::Holds(redis)) => Ok(Some((local, redis))),
            _ => Ok(None),
        }
    }

    async fn leave(&mut self, place: usize) -> Compared {
        if self.entries.is_empty() {
            return Ok(Ok(()));
        }
        let place = place % self.entries.len();
        let compared = self.arrive(place).await?;
        if let Some(Entry { local: Side::Waits(local), redis: Side::Waits(redis) }) = self.entries.get(place) {
            local.abort();
            redis.abort();
            self.entries.remove(place);
            self.settled().await;
        }
        Ok(compared)
    }

    fn pass(&self, duration: Duration) {
        // Rounded to a whole microsecond, as Redis counts.
        let micros = u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX / 2_000);
        self.clock.advance(Duration::from_micros(micros));
    }

    async fn step(&mut self, step: &Step) -> Compared {
        if !self.policies.whole && !matches!(step, Step::Pass(_) | Step::Back(_) | Step::Retry) {
            self.tolerance += MICROSECOND;
        }
        match *step {
            Step::Pass(micros) => self.pass(Duration::from_micros(micros)),
            Step::Back(micros) => {
                use tower_ratelimit::time::Clock;
                let now = self.clock.now().as_nanos();
                self.clock.set(Timestamp::from_nanos(now.saturating_sub(micros * 1_000)));
            }
            Step::Retry if self.retry_after < Duration::from_secs(100_000) => {
                self.pass(self.retry_after + self.tolerance);
            }
            Step::Retry => {}
            Step::Check(request) => {
                let (local, redis) = self.check(request).await;
                let compared = self.compare(&local, &redis)?;
                if self.policies.in_flight {
                    self.settled().await;
                }
                return Ok(compared);
            }
            Step::Acquire(request, micros) => {
                let micros = if self.policies.in_flight { 0 } else { micros };
                return self.acquire(request, Duration::from_micros(micros)).await;
            }
            Step::Release(place) => drop(self.held(place).await?),
            Step::Refund(place) => {
                if let Some((local, redis)) = self.held(place).await? {
                    local.refund();
                    redis.refund();
                }
            }
            Step::Add(place, units) => self.change(place, |permit| permit.add(units)).await?,
            Step::GiveBack(place, units) => self.change(place, |permit| permit.give_back(units)).await?,
            Step::Leave(place) => return self.leave(place).await,
            Step::Reload => {
                self.edition = 1 - self.edition;
                let policy = self.policies.editions[self.edition].clone();
                self.local.set_policy(policy.clone()).unwrap();
                self.redis.set_policy(policy).unwrap();
                // What was used of one limit may be a fraction of a unit of
                // another.
                self.tolerance += MICROSECOND;
            }
        }
        if !matches!(step, Step::Pass(_) | Step::Back(_) | Step::Retry) {
            self.settled().await;
        }
        Ok(Ok(()))
    }

    async fn change(&mut self, place: usize, change: impl Fn(&Permit)) -> Result<(), TestCaseError> {
        if let Some((local, redis)) = self.held(place).await? {
            change(&local);
            change(&redis);
            self.entries.push(Entry { local: Side::Holds(local), redis: Side::Holds(redis) });
        }
        Ok(())
    }
}

/// A server, a runtime, and for each case a backend with its own prefix.
struct Cases {
    runtime: Runtime,
    server: Server,
    remembers: bool,
}

impl Cases {
    fn new(remembers: bool) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(Server::start());
        Self { runtime, server, remembers }
    }

    async fn both(&self, policies: Policies) -> Option<Both> {
        static CASE: AtomicU64 = AtomicU64::new(0);
        let clock = ManualClock::new();
        let build = |builder: tower_ratelimit::limiter::RateLimiterBuilder, edition: usize| {
            builder.policy(policies.editions[edition].clone()).clock(clock.clone()).build().ok()
        };
        build(RateLimiter::builder(), 1)?;
        let local = build(RateLimiter::builder(), 0)?;
        let redis = Redis::builder().url(self.server.url()).deadline(LONG).limiter_time();
        let redis = redis.prefix(format!("case-{}", CASE.fetch_add(1, Ordering::Relaxed)));
        let redis = if self.remembers { redis } else { redis.rejection_cache_ttl(Duration::ZERO) };
        let redis = build(RateLimiter::builder().backend(redis.connect().await.unwrap()), 0)?;
        let tolerance = if policies.whole { Duration::ZERO } else { MICROSECOND };
        Some(Both {
            clock: clock.clone(),
            local,
            redis,
            connection: self.server.connection().await.unwrap(),
            edition: 0,
            entries: Vec::new(),
            retry_after: Duration::ZERO,
            tolerance,
            remembers: self.remembers,
            policies,
        })
    }

    async fn follow(&self, policies: Policies, steps: &[Step]) -> Result<(), TestCaseError> {
        let Some(mut both) = self.both(policies).await else { return Ok(()) };
        for (nth, step) in steps.iter().enumerate() {
            match both.step(step).await {
                Ok(Ok(())) => {}
                Ok(Err(Diverged)) => return Ok(()),
                Err(TestCaseError::Fail(reason)) => {
                    return Err(TestCaseError::fail(format!("step {nth}, {step:?}: {reason}")));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn run(&self, cases: u32, schedules: impl Strategy<Value = (Policies, Vec<Step>)>) {
        let cases = env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
        let config = ProptestConfig { failure_persistence: None, max_shrink_time: 30_000, ..ProptestConfig::default() };
        let mut runner = TestRunner::new(ProptestConfig { cases, ..config });
        let follow = |(policies, steps): (Policies, Vec<Step>)| self.runtime.block_on(self.follow(policies, &steps));
        match runner.run(&schedules, follow) {
            Ok(()) => {}
            Err(TestError::Fail(reason, (policies, steps))) => {
                let edition = |edition: usize| format!("{:#?}", policies.editions[edition].rules());
                panic!("{reason}\nsteps: {steps:#?}\nrules: {}\nafter a reload: {}", edition(0), edition(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Units and times of whole microseconds: equal to the nanosecond, except for what
/// a weighted count or a reload divides.
#[test]
fn decides_as_local_does() {
    let cases = Cases::new(false);
    let _turn = cases.runtime.block_on(beside_others());
    cases.run(150, (policies(true), steps()));
}

/// Any rate and window: equal to a microsecond for each charge of a fraction of
/// one. A reload rounds what was used to whole units, so there the fraction may
/// make one more.
#[test]
fn decides_any_rate_as_local_does() {
    let cases = Cases::new(false);
    let _turn = cases.runtime.block_on(beside_others());
    // Without reservations: a fraction of a microsecond would open another window,
    // and change all that follows.
    let at_once = |step| match step {
        Step::Reload => None,
        Step::Acquire(request, _) => Some(Step::Acquire(request, 0)),
        step => Some(step),
    };
    let steps = steps().prop_map(move |steps| steps.into_iter().filter_map(at_once).collect());
    cases.run(100, (policies(false), steps));
}

/// Cached rejections last exactly as long as those of `Local`.
#[test]
fn caches_rejections_for_as_long_as_local_rejects() {
    let cases = Cases::new(true);
    let _turn = cases.runtime.block_on(beside_others());
    let plain = |step: &Step| matches!(step, Step::Pass(_) | Step::Retry | Step::Check(_) | Step::Reload);
    let steps = steps().prop_map(move |steps| steps.into_iter().filter(plain).collect());
    cases.run(100, (policies(true), steps));
}

/// Delayed requests are admitted at the same times.
#[test]
fn delays_as_local_does() {
    let cases = Cases::new(false);
    let _turn = cases.runtime.block_on(beside_others());
    let waits = async |algorithm| {
        let quota = Quota::new(4, Duration::from_millis(20)).algorithm(algorithm);
        let rule = Rule::new("waits").tier(quota).on_backend_failure(FailureMode::Closed);
        let policy = Policy::new().rule(rule);
        let whole = algorithm != Algorithm::SlidingWindow;
        let policies = Policies { editions: [policy.clone(), policy], in_flight: false, whole };
        let mut both = cases.both(policies).await.unwrap();
        let request = Request { path: "/a", tenant: "acme", cost: 1 };
        let mut waits = Vec::new();
        for _ in 0..13 {
            assert!(both.acquire(request, Duration::from_secs(1)).await.unwrap().is_ok());
        }
        let mut held = 0;
        until("all to be admitted", async || {
            for place in 0..both.entries.len() {
                assert!(both.arrive(place).await.unwrap().is_ok(), "{algorithm}");
            }
            let wait = |entry: &Entry| match &entry.local {
                Side::Holds(permit) => Some(permit.decision().wait()),
                Side::Waits(_) => None,
            };
            waits = both.entries.iter().filter_map(wait).collect();
            held = both.entries.len();
            (waits.len() == held).then_some(())
        })
        .await;
        assert_eq!(held, 13, "{algorithm}: some were rejected");
        assert!(waits.iter().any(|wait| *wait >= Duration::from_millis(40)), "{algorithm}: nobody had to wait");
        let (local, redis) = both.check(request).await;
        assert!(matches!(local.verdict(), Verdict::Deny), "{algorithm}");
        assert!(both.compare(&local, &redis).unwrap().is_ok(), "{algorithm}");
    };
    for algorithm in super::algorithms::ALGORITHMS {
        if algorithm != Algorithm::LeakyBucket {
            cases.runtime.block_on(waits(algorithm));
        }
    }
}
