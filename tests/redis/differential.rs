//! Differential test: random schedules run on `Local` and on Redis, by the
//! limiter's clock. Every decision must be the same within the tolerance that the
//! test states. A case ends early when the two admit different requests within
//! that tolerance. Requests for units in flight do not wait, and no policy here is
//! smooth or fair.
//!
//! A failure prints the smallest schedule that reproduces it. `PROPTEST_CASES` says how
//! many there are.

use std::{
    env,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
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
    LONG,
    schedule::{Policies, Request, Step, policies, steps},
    server::Server,
    shared_machine, until,
};

const MICROSECOND: Duration = Duration::from_micros(1);

/// A limiter on each backend, with one clock.
struct Pair {
    clock: ManualClock,
    local: RateLimiter,
    redis: RateLimiter,
    /// A connection of the test, to wait until the server is idle.
    connection: MultiplexedConnection,
    policies: Policies,
    edition: usize,
    entries: Vec<Entry>,
    retry_after: Duration,
    tolerance: Duration,
    /// Whether Redis caches rejections. A cached status is older, so only verdicts and
    /// times are compared.
    caches_rejections: bool,
}

/// One request, submitted to both limiters.
struct Entry {
    local: Side,
    redis: Side,
}

enum Side {
    Waiting(JoinHandle<Result<Permit, RateLimited>>),
    Admitted(Permit),
}

/// Two decisions differ within the tolerance. Later ones cannot be compared, so the
/// case ends.
struct Diverged;

type Compared = Result<Result<(), Diverged>, TestCaseError>;

impl Pair {
    async fn check(&self, request: Request) -> (Decision, Decision) {
        let descriptor = Descriptor::new(request.path).tenant(request.tenant).cost(request.cost);
        (self.local.check(&descriptor).await, self.redis.check(&descriptor).await)
    }

    /// Waits until the server has run all pushed operations. Runtime and server have
    /// one thread each, so a few round trips suffice; these are more than needed, also
    /// where a waiter leaves and each one behind it decides again.
    async fn wait_until_idle(&mut self) {
        for _ in 0..30 {
            redis::cmd("PING").exec_async(&mut self.connection).await.unwrap();
        }
    }

    fn compare(&mut self, local: &Decision, redis: &Decision) -> Compared {
        if local.is_allowed() != redis.is_allowed() {
            let is_soon = local.retry_after().or(redis.retry_after()).is_some_and(|after| after <= self.tolerance);
            prop_assert!(is_soon, "verdicts differ:\n local {local:?}\n redis {redis:?}");
            return Ok(Err(Diverged));
        }
        self.retry_after = local.retry_after().unwrap_or(self.retry_after);
        prop_assert_eq!(local.rejection(), redis.rejection());
        self.near("wait", local.wait(), redis.wait())?;
        // Within the tolerance, a unit in flight may delay one and the rate the other.
        let is_soon = |decision: &Decision| decision.retry_after().is_some_and(|after| after <= self.tolerance);
        if is_soon(local) != is_soon(redis) && !self.tolerance.is_zero() {
            return Ok(Err(Diverged));
        }
        match (local.retry_after(), redis.retry_after()) {
            // Charges since a rejection was cached have moved the time that it names.
            (Some(local), Some(redis)) if self.caches_rejections => {
                prop_assert!(redis <= local + self.tolerance, "retry_after: {local:?} on local, {redis:?} on Redis");
            }
            (Some(local), Some(redis)) => self.near("retry_after", local, redis)?,
            (local, redis) => prop_assert_eq!(local, redis, "retry_after"),
        }
        if self.caches_rejections {
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

    /// Submits a request to both. A delayed request waits in a task.
    async fn acquire(&mut self, request: Request, max_wait: Duration) -> Compared {
        let submit = |limiter: &RateLimiter| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let descriptor = Descriptor::new(request.path).tenant(request.tenant).cost(request.cost);
                limiter.acquire(&descriptor, max_wait).await
            })
        };
        let (local, redis) = (submit(&self.local), submit(&self.redis));
        self.wait_until_idle().await;
        let entry = Entry { local: Side::Waiting(local), redis: Side::Waiting(redis) };
        self.entries.push(entry);
        self.compare_entry(self.entries.len() - 1).await
    }

    /// Compares the decisions on a request, if it is decided. The other limiter must
    /// decide it soon as well.
    async fn compare_entry(&mut self, index: usize) -> Compared {
        let entry = &mut self.entries[index];
        let (Side::Waiting(local), Side::Waiting(redis)) = (&mut entry.local, &mut entry.redis) else {
            return Ok(Ok(()));
        };
        if !local.is_finished() && !redis.is_finished() {
            return Ok(Ok(()));
        }
        let both = async { (local.await.unwrap(), redis.await.unwrap()) };
        let Ok((local, redis)) = tokio::time::timeout(Duration::from_secs(2), both).await else {
            let entry = &self.entries[index];
            let which =
                if matches!(&entry.local, Side::Waiting(task) if task.is_finished()) { "Redis" } else { "local" };
            return Err(TestCaseError::fail(format!("the request is delayed on {which} only")));
        };
        let decision = |result: &Result<Permit, RateLimited>| match result {
            Ok(permit) => Some(permit.decision().clone()),
            Err(rejection) => rejection.decision().cloned(),
        };
        let (Some(one), Some(other)) = (decision(&local), decision(&redis)) else {
            prop_assert_eq!(format!("{:?}", local.err()), format!("{:?}", redis.err()));
            self.entries.remove(index);
            return Ok(Ok(()));
        };
        if let (Ok(local), Ok(redis)) = (local, redis) {
            self.entries[index] = Entry { local: Side::Admitted(local), redis: Side::Admitted(redis) };
        } else {
            self.entries.remove(index);
        }
        self.compare(&one, &other)
    }

    /// Removes the permits at an index, if that request is admitted.
    async fn take_permits(&mut self, index: usize) -> Result<Option<(Permit, Permit)>, TestCaseError> {
        if self.entries.is_empty() {
            return Ok(None);
        }
        let index = index % self.entries.len();
        if self.compare_entry(index).await?.is_err() || self.entries.len() <= index {
            return Ok(None);
        }
        if matches!(self.entries[index].local, Side::Waiting(_)) {
            return Ok(None);
        }
        let entry = self.entries.remove(index);
        match (entry.local, entry.redis) {
            (Side::Admitted(local), Side::Admitted(redis)) => Ok(Some((local, redis))),
            _ => Ok(None),
        }
    }

    /// Drops a request that waits.
    async fn abandon(&mut self, index: usize) -> Compared {
        if self.entries.is_empty() {
            return Ok(Ok(()));
        }
        let index = index % self.entries.len();
        let compared = self.compare_entry(index).await?;
        if let Some(Entry { local: Side::Waiting(local), redis: Side::Waiting(redis) }) = self.entries.get(index) {
            local.abort();
            redis.abort();
            self.entries.remove(index);
            self.wait_until_idle().await;
        }
        Ok(compared)
    }

    fn pass(&self, duration: Duration) {
        // Redis counts whole microseconds.
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
                    self.wait_until_idle().await;
                }
                return Ok(compared);
            }
            Step::Acquire(request, micros) => {
                let micros = if self.policies.in_flight { 0 } else { micros };
                return self.acquire(request, Duration::from_micros(micros)).await;
            }
            Step::Release(index) => drop(self.take_permits(index).await?),
            Step::Refund(index) => {
                if let Some((local, redis)) = self.take_permits(index).await? {
                    local.refund();
                    redis.refund();
                }
            }
            Step::Add(index, units) => self.change(index, |permit| permit.add(units)).await?,
            Step::GiveBack(index, units) => self.change(index, |permit| permit.give_back(units)).await?,
            Step::Abandon(index) => return self.abandon(index).await,
            Step::Reload => {
                self.edition = 1 - self.edition;
                let policy = self.policies.editions[self.edition].clone();
                self.local.set_policy(policy.clone()).unwrap();
                self.redis.set_policy(policy).unwrap();
                // Usage under one limit may be a fraction of a unit under another.
                self.tolerance += MICROSECOND;
            }
        }
        if !matches!(step, Step::Pass(_) | Step::Back(_) | Step::Retry) {
            self.wait_until_idle().await;
        }
        Ok(Ok(()))
    }

    async fn change(&mut self, index: usize, change: impl Fn(&Permit)) -> Result<(), TestCaseError> {
        if let Some((local, redis)) = self.take_permits(index).await? {
            change(&local);
            change(&redis);
            self.entries.push(Entry { local: Side::Admitted(local), redis: Side::Admitted(redis) });
        }
        Ok(())
    }
}

/// A server and a runtime for many cases. Each case has a backend with its own prefix.
struct Cases {
    runtime: Runtime,
    server: Server,
    caches_rejections: bool,
    /// The cases that were compared, and those of them that ended early.
    compared: AtomicU32,
    diverged: AtomicU32,
}

impl Cases {
    fn new(caches_rejections: bool) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(Server::start());
        let (compared, diverged) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { runtime, server, caches_rejections, compared, diverged }
    }

    async fn pair(&self, policies: Policies) -> Option<Pair> {
        static CASE: AtomicU64 = AtomicU64::new(0);
        let clock = ManualClock::new();
        // A few minutes before a February of a leap year ends.
        clock.set(Timestamp::from_secs(1_709_251_200 - 150));
        let build = |builder: tower_ratelimit::limiter::RateLimiterBuilder, edition: usize| {
            builder.policy(policies.editions[edition].clone()).clock(clock.clone()).build().ok()
        };
        build(RateLimiter::builder(), 1)?;
        let local = build(RateLimiter::builder(), 0)?;
        let redis = Redis::builder().url(self.server.url()).deadline(LONG).limiter_time().on_current_runtime();
        let redis = redis.prefix(format!("case-{}", CASE.fetch_add(1, Ordering::Relaxed)));
        let redis = if self.caches_rejections { redis } else { redis.rejection_cache_ttl(Duration::ZERO) };
        let redis = build(RateLimiter::builder().backend(redis.connect().await.unwrap()), 0)?;
        let tolerance = if policies.whole { Duration::ZERO } else { MICROSECOND };
        Some(Pair {
            clock: clock.clone(),
            local,
            redis,
            connection: self.server.connection().await.unwrap(),
            edition: 0,
            entries: Vec::new(),
            retry_after: Duration::ZERO,
            tolerance,
            caches_rejections: self.caches_rejections,
            policies,
        })
    }

    async fn follow(&self, policies: Policies, steps: &[Step]) -> Result<(), TestCaseError> {
        let Some(mut pair) = self.pair(policies).await else { return Ok(()) };
        self.compared.fetch_add(1, Ordering::Relaxed);
        for (nth, step) in steps.iter().enumerate() {
            match pair.step(step).await {
                Ok(Ok(())) => {}
                Ok(Err(Diverged)) => {
                    self.diverged.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(TestCaseError::Fail(reason)) => {
                    return Err(TestCaseError::fail(format!("step {nth}, {step:?}: {reason}")));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A case that ends early compares little: too many of these would hide a difference.
    fn assert_few_diverged(&self) {
        let [compared, diverged] = [&self.compared, &self.diverged].map(|count| count.load(Ordering::Relaxed));
        assert!(diverged <= 2 + compared / 20, "{diverged} of {compared} cases ended early");
    }

    fn run(&self, cases: u32, schedules: impl Strategy<Value = (Policies, Vec<Step>)>) {
        let wanted = env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
        let config = ProptestConfig { failure_persistence: None, max_shrink_time: 30_000, ..ProptestConfig::default() };
        let config = ProptestConfig { cases: wanted.unwrap_or(cases), ..config };
        let mut runner = TestRunner::new(config);
        let follow = |(policies, steps): (Policies, Vec<Step>)| self.runtime.block_on(self.follow(policies, &steps));
        match runner.run(&schedules, follow) {
            Ok(()) => self.assert_few_diverged(),
            Err(TestError::Fail(reason, (policies, steps))) => {
                let edition = |edition: usize| format!("{:#?}", policies.editions[edition].rules());
                panic!("{reason}\nsteps: {steps:#?}\nrules: {}\nafter a reload: {}", edition(0), edition(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Units and times are whole microseconds, so decisions are equal to the nanosecond.
/// Only weighted counts and reloads divide.
#[test]
fn decides_as_local_does() {
    let cases = Cases::new(false);
    let _machine = cases.runtime.block_on(shared_machine());
    cases.run(150, (policies(true), steps()));
}

/// Any rate and window. The tolerance is one microsecond for each charge. A reload
/// rounds usage up to whole units, which would exceed it.
#[test]
fn decides_any_rate_as_local_does() {
    let cases = Cases::new(false);
    let _machine = cases.runtime.block_on(shared_machine());
    // No reservations: a fraction of a microsecond can select another window, and
    // with it all later decisions.
    let at_once = |step| match step {
        Step::Reload => None,
        Step::Acquire(request, _) => Some(Step::Acquire(request, 0)),
        step => Some(step),
    };
    let steps = steps().prop_map(move |steps| steps.into_iter().filter_map(at_once).collect());
    cases.run(100, (policies(false), steps));
}

/// A cached rejection ends when `Local` admits again, or before.
#[test]
fn a_cached_rejection_ends_when_local_admits() {
    let cases = Cases::new(true);
    let _machine = cases.runtime.block_on(shared_machine());
    let plain = |step: &Step| matches!(step, Step::Pass(_) | Step::Retry | Step::Check(_) | Step::Reload);
    let steps = steps().prop_map(move |steps| steps.into_iter().filter(plain).collect());
    cases.run(100, (policies(true), steps));
}

/// Equal requests at once share one call, in which they are decided one after the other.
#[test]
fn decides_requests_at_once_as_local_does() {
    let cases = Cases::new(false);
    let _machine = cases.runtime.block_on(shared_machine());
    let at_once = async |algorithm| {
        let quota = Quota::new(10, Duration::from_secs(1)).algorithm(algorithm);
        let policy = Policy::new().rule(Rule::new("all").tier(quota).on_backend_failure(FailureMode::Closed));
        let policies = Policies { editions: [policy.clone(), policy], in_flight: false, whole: true };
        let pair = cases.pair(policies).await.unwrap();
        let asked = Descriptor::new("/a").tenant("acme");
        let millis = |time: Duration| (time.as_micros() + 500) / 1_000;
        let seen =
            |decision: &Decision| (decision.is_allowed(), decision.remaining(), decision.retry_after().map(millis));
        for passed in [0, 250, 130, 700, 1_500] {
            pair.pass(Duration::from_millis(passed));
            let mut local = Vec::new();
            for _ in 0..8 {
                local.push(seen(&pair.local.check(&asked).await));
            }
            let redis = join_all((0..8).map(|_| pair.redis.check(&asked))).await;
            assert_eq!(redis.iter().map(seen).collect::<Vec<_>>(), local, "{algorithm}, {passed} ms later");
        }
    };
    for algorithm in super::algorithms::ALGORITHMS {
        cases.runtime.block_on(at_once(algorithm));
    }
}

/// Both admit delayed requests at the same times.
#[test]
fn delays_as_local_does() {
    let cases = Cases::new(false);
    let _machine = cases.runtime.block_on(shared_machine());
    let waits = async |algorithm| {
        let quota = Quota::new(4, Duration::from_millis(20)).algorithm(algorithm);
        let rule = Rule::new("waits").tier(quota).on_backend_failure(FailureMode::Closed);
        let policy = Policy::new().rule(rule);
        let whole = algorithm != Algorithm::SlidingWindow;
        let policies = Policies { editions: [policy.clone(), policy], in_flight: false, whole };
        let mut pair = cases.pair(policies).await.unwrap();
        let request = Request { path: "/a", tenant: "acme", cost: 1 };
        let mut waits = Vec::new();
        for _ in 0..13 {
            assert!(pair.acquire(request, Duration::from_secs(1)).await.unwrap().is_ok());
        }
        let mut entries = 0;
        until("all to be admitted", async || {
            for index in 0..pair.entries.len() {
                assert!(pair.compare_entry(index).await.unwrap().is_ok(), "{algorithm}");
            }
            let wait = |entry: &Entry| match &entry.local {
                Side::Admitted(permit) => Some(permit.decision().wait()),
                Side::Waiting(_) => None,
            };
            waits = pair.entries.iter().filter_map(wait).collect();
            entries = pair.entries.len();
            (waits.len() == entries).then_some(())
        })
        .await;
        assert_eq!(entries, 13, "{algorithm}: some were rejected");
        assert!(waits.iter().any(|wait| *wait >= Duration::from_millis(40)), "{algorithm}: no request waited");
        let (local, redis) = pair.check(request).await;
        assert!(matches!(local.verdict(), Verdict::Reject), "{algorithm}");
        assert!(pair.compare(&local, &redis).unwrap().is_ok(), "{algorithm}");
    };
    for algorithm in super::algorithms::ALGORITHMS {
        if algorithm != Algorithm::LeakyBucket {
            cases.runtime.block_on(waits(algorithm));
        }
    }
}

/// Follows one schedule with one quota of 4 units in 20 ms.
fn follows(algorithm: Algorithm, steps: &[Step]) {
    let quota = Quota::new(4, Duration::from_millis(20)).algorithm(algorithm);
    follows_by(Rule::new("directed").tier(quota), algorithm != Algorithm::SlidingWindow, steps);
}

fn follows_by(rule: Rule, whole: bool, steps: &[Step]) {
    let cases = Cases::new(false);
    let policy = Policy::new().rule(rule.on_backend_failure(FailureMode::Closed));
    let policies = Policies { editions: [policy.clone(), policy], in_flight: false, whole };
    cases.runtime.block_on(cases.follow(policies, steps)).unwrap();
    assert_eq!(cases.diverged.load(Ordering::Relaxed), 0);
}

const REQUEST: Request = Request { path: "/a", tenant: "acme", cost: 1 };

/// A refund at the time when an older entry's window ends does not remove that entry: it
/// counts again if the clock is set back.
#[test]
fn a_refund_sweeps_no_entry_of_a_log() {
    let charged = [Step::Check(REQUEST), Step::Pass(10_000), Step::Acquire(REQUEST, 0), Step::Pass(10_000)];
    let refunded = [Step::Refund(0), Step::Back(1), Step::Check(REQUEST)];
    follows(Algorithm::SlidingLog, &[&charged[..], &refunded[..]].concat());
}

/// Waiters that leave take the windows with them that they have opened.
#[test]
fn a_sliding_window_opens_again_when_its_waiters_leave() {
    let waiters = vec![Step::Acquire(REQUEST, 1_000_000); 9];
    let left = [Step::Abandon(8), Step::Abandon(7), Step::Abandon(6), Step::Abandon(5), Step::Abandon(4)];
    let after = [Step::Check(REQUEST), Step::Pass(12_000), Step::Check(REQUEST), Step::Retry, Step::Check(REQUEST)];
    follows(Algorithm::SlidingWindow, &[&waiters[..], &left[..], &after[..]].concat());
}

/// A debt that fills March and half of April leaves both when it is given back.
#[test]
fn a_debt_of_months_is_given_back() {
    let charged = [Step::Acquire(REQUEST, 0), Step::Add(0, 24), Step::Check(REQUEST)];
    let given_back = [Step::GiveBack(0, 20), Step::Check(REQUEST)];
    let rule = Rule::new("plan").tier(Quota::per_month(10)).settle(true);
    follows_by(rule, true, &[&charged[..], &given_back[..]].concat());
}

/// A debt of a log that others were charged before and after leaves it when it is given back.
#[test]
fn a_debt_of_a_log_among_others_is_given_back() {
    let charged = [Step::Acquire(REQUEST, 0), Step::Acquire(REQUEST, 0), Step::Pass(1_000), Step::Add(0, 1)];
    let given_back = [Step::Check(REQUEST), Step::GiveBack(1, 1), Step::Check(REQUEST), Step::Check(REQUEST)];
    let quota = Quota::new(4, Duration::from_millis(20)).algorithm(Algorithm::SlidingLog);
    follows_by(Rule::new("settled").tier(quota).settle(true), true, &[&charged[..], &given_back[..]].concat());
}

/// A debt that stands before a reservation, since others were refunded, stays.
#[test]
fn a_debt_of_a_log_before_a_reservation_stays() {
    let [one, two] = [1, 2].map(|cost| Request { cost, ..REQUEST });
    let charged = [Step::Acquire(one, 0), Step::Pass(5_000), Step::Acquire(two, 0), Step::Acquire(two, 1_000_000)];
    // The first request is behind the one that waits once it is changed.
    let changed = [Step::Refund(1), Step::Add(0, 1), Step::GiveBack(1, 1)];
    let after = [Step::Check(one), Step::Pass(20_000), Step::Check(one), Step::Pass(15_000), Step::Check(two)];
    let quota = Quota::new(3, Duration::from_millis(20)).algorithm(Algorithm::SlidingLog);
    follows_by(Rule::new("settled").tier(quota).settle(true), true, &[&charged[..], &changed[..], &after[..]].concat());
}
