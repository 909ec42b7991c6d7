//! The script of the level `leased`, `lease.lua`, compared with `Local`:
//! random requests of one tenant to one instance, by a clock that the test steps.
//! And what is the same at every level: plans, shadow rules, refunds, cooldowns, and
//! what the fallback limiter knows.
//!
//! A failure prints the smallest schedule that reproduces it.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use proptest::{
    prelude::*,
    test_runner::{TestError, TestRunner},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    AdaptiveRate, Algorithm, Consistency, Descriptor, FailureMode, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    backend::Redis, policy::Statuses, testing::ManualClock,
};

use super::{LONG, Seen, ask, limiter, patient, server::Server, shared_machine};

/// Every limit divides it into whole microseconds.
const WINDOW: Duration = Duration::from_secs(1);

/// Time passes, in microseconds, then a request of some units.
type Step = (u64, u64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pass = prop_oneof![4 => Just(0), 4 => 0..30_000_u64, 2 => 0..400_000_u64, 1 => 900_000..2_500_000_u64];
    prop::collection::vec((pass, prop_oneof![4 => Just(1), 1 => 2..4_u64]), 1..60)
}

fn rule(quota: Quota, level: Consistency) -> Rule {
    Rule::new("all").tier(quota).consistency(level).on_backend_failure(FailureMode::Closed)
}

fn policy(quota: Quota, level: Consistency) -> Policy {
    Policy::new().rule(rule(quota, level))
}

fn request(units: u64) -> Descriptor<'static> {
    Descriptor::new("/").tenant("acme").cost(units)
}

/// A server and a runtime for many cases.
struct Cases {
    runtime: Runtime,
    server: Server,
}

/// A limiter of a level, and a local one.
struct Pair {
    prefix: String,
    policy: Policy,
    clock: ManualClock,
    level: RateLimiter,
    local: RateLimiter,
}

impl Cases {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(Server::start());
        Self { runtime, server }
    }

    async fn pair(&self, quota: Quota, level: Consistency) -> Pair {
        static CASE: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("levels-{}", CASE.fetch_add(1, Ordering::Relaxed));
        let (clock, policy_of_level) = (ManualClock::new(), policy(quota, level));
        let level = self.instance(&prefix, &policy_of_level, &clock).await;
        let local = RateLimiter::builder().policy(policy(quota, Consistency::Exact)).clock(clock.clone());
        Pair { prefix, policy: policy_of_level, level, local: local.build().unwrap(), clock }
    }

    /// Another instance of the same fleet.
    async fn another(&self, pair: &Pair) -> RateLimiter {
        self.instance(&pair.prefix, &pair.policy, &pair.clock).await
    }

    async fn instance(&self, prefix: &str, policy: &Policy, clock: &ManualClock) -> RateLimiter {
        let redis = Redis::builder().url(self.server.url()).deadline(LONG).limiter_time().prefix(prefix);
        let redis = redis.rejection_cache_ttl(Duration::ZERO).connect().await.unwrap();
        let store = RateLimiter::builder().policy(policy.clone()).backend(redis).clock(clock.clone());
        store.build().unwrap()
    }

    /// Runs `follow` on schedules of each of the quotas.
    fn run(
        &self,
        quotas: &[Quota],
        level: Consistency,
        follow: &impl AsyncFn(Pair, &[Step]) -> Result<(), TestCaseError>,
    ) {
        let _machine = self.runtime.block_on(shared_machine());
        let config = ProptestConfig { failure_persistence: None, max_shrink_time: 30_000, ..ProptestConfig::default() };
        for quota in quotas {
            let mut runner = TestRunner::new(ProptestConfig { cases: 20, ..config.clone() });
            let run = |steps: Vec<Step>| {
                self.runtime.block_on(async { follow(self.pair(*quota, level).await, &steps).await })
            };
            match runner.run(&steps(), run) {
                Ok(()) => {}
                Err(TestError::Fail(reason, steps)) => panic!("{reason}\nquota: {quota:?}\nsteps: {steps:?}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn quotas(limits: &[u64], algorithms: &[Algorithm]) -> Vec<Quota> {
    let of = |limit| algorithms.iter().map(move |algorithm| Quota::new(limit, WINDOW).algorithm(*algorithm));
    limits.iter().copied().flat_map(of).collect()
}

/// One instance leases all that is left, and loses none of it: it admits what `Local`
/// does. In buckets units that are leased ahead refill meanwhile.
#[test]
fn windows_of_one_leased_instance_decide_as_local_does() {
    let quotas = quotas(&[1, 5, 20, 100], &[Algorithm::FixedWindow, Algorithm::AnchoredWindow]);
    Cases::new().run(&quotas, Consistency::Leased, &async |pair: Pair, steps: &[Step]| {
        for (nth, (pass, units)) in steps.iter().enumerate() {
            pair.clock.advance(Duration::from_micros(*pass));
            let (level, local) = (pair.level.check(&request(*units)).await, pair.local.check(&request(*units)).await);
            prop_assert_eq!(level.is_allowed(), local.is_allowed(), "step {}:\n {:?}\n {:?}", nth, level, local);
        }
        Ok(())
    });
}

/// Sliding windows and logs of a leased rule are decided by the store, however many
/// instances ask.
#[test]
fn sliding_limits_of_a_leased_fleet_decide_as_local_does() {
    let quotas = quotas(&[1, 5, 20, 100], &[Algorithm::SlidingWindow, Algorithm::SlidingLog]);
    let cases = Cases::new();
    cases.run(&quotas, Consistency::Leased, &async |pair: Pair, steps: &[Step]| {
        let others = [pair.level.clone(), cases.another(&pair).await, cases.another(&pair).await];
        for (nth, (pass, units)) in steps.iter().enumerate() {
            pair.clock.advance(Duration::from_micros(*pass));
            let instance = &others[usize::try_from(pass % 3).unwrap()];
            let (level, local) = (instance.check(&request(*units)).await, pair.local.check(&request(*units)).await);
            prop_assert_eq!(level.is_allowed(), local.is_allowed(), "step {}:\n {:?}\n {:?}", nth, level, local);
        }
        Ok(())
    });
}

const LEVELS: [Consistency; 2] = [Consistency::Exact, Consistency::Leased];

fn per_day(limit: u64) -> Quota {
    Quota::per_day(limit).algorithm(Algorithm::FixedWindow)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_plan_has_its_limit_at_every_level() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    for level in LEVELS {
        let plans = Rule::new(level.as_str()).tier(per_day(5)).plan("pro", [per_day(40)]).consistency(level);
        let limiter =
            limiter(Policy::new().rule(plans.on_backend_failure(FailureMode::Closed)), &patient(server.url()).await);
        for (tenant, plan, limit) in [("acme", "free", 5), ("globex", "pro", 40)] {
            let mut admitted = 0;
            for _ in 0..60 {
                let request = Descriptor::new("/").tenant(tenant).plan(plan);
                admitted += u64::from(limiter.check(&request).await.is_allowed());
            }
            assert_eq!(admitted, limit, "{level:?}, {plan}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_rule_counts_and_rejects_nothing_at_every_level() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    for level in LEVELS {
        let shadow = Rule::new(level.as_str()).tier(per_day(5)).shadow(true).consistency(level);
        let enforced = rule(per_day(100), level);
        let alone = Policy::new().rule(shadow);
        for (policy, tenant) in [(alone.clone(), "acme"), (alone.rule(enforced), "globex")] {
            let limiter = limiter(policy, &patient(server.url()).await);
            for _ in 0..20 {
                assert_eq!(ask(&limiter, "/", tenant).await, Seen::Admitted);
            }
            assert_eq!(limiter.stats().shadow_rejected, 15, "{level:?}, {tenant}");
            let asked = Descriptor::new("/").method("GET").tenant(tenant);
            for decision in [limiter.peek(&asked).await, limiter.check(&asked).await] {
                let [shadow] = decision.shadows() else { panic!("{level:?}, {tenant}: {decision:?}") };
                assert!(!shadow.is_allowed() && decision.is_allowed(), "{level:?}, {tenant}: {decision:?}");
            }
            assert_eq!(limiter.stats().shadow_rejected, 16, "a peek counts nothing");
        }
    }
}

/// The rule alone, which is the shortest way to a decision, and beside others: one for
/// another path, and one in shadow mode.
fn alone_and_beside_others(rule: &Rule) -> [Policy; 2] {
    let other = Rule::new("other").path("/other").tier(per_day(1));
    let shadow = Rule::new("shadow").tier(per_day(1)).shadow(true);
    let alone = Policy::new().rule(rule.clone());
    [alone.clone(), alone.rule(other).rule(shadow)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refunded_can_be_used_again_at_every_level() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let inner = service_fn(async |_: http::Request<()>| {
        Ok::<_, Infallible>(http::Response::builder().status(500).body(String::new()).unwrap())
    });
    for level in LEVELS {
        for (nth, policy) in alone_and_beside_others(&rule(per_day(300), level)).into_iter().enumerate() {
            // Permits.
            let redis = Redis::builder().url(server.url()).deadline(LONG).prefix(format!("{level:?}-{nth}"));
            let redis = redis.connect().await.unwrap();
            let permits = limiter(policy, &redis);
            for request in 0..400 {
                let permit = permits.acquire(&Descriptor::new("/").tenant("acme"), Duration::ZERO).await;
                permit.unwrap_or_else(|rejection| panic!("{level:?}, {nth}, {request}: {rejection}")).refund();
            }
        }
        let refunding = rule(per_day(300), level).refund_on(Statuses::SERVER_ERRORS);
        for (nth, policy) in alone_and_beside_others(&refunding).into_iter().enumerate() {
            // Responses.
            let redis = Redis::builder().url(server.url()).deadline(LONG).prefix(format!("{level:?}-{nth}-responses"));
            let layer = RateLimitLayer::new(limiter(policy, &redis.connect().await.unwrap()));
            for request in 0..1_000 {
                let response = layer.layer(inner).oneshot(http::Request::new(())).await.unwrap();
                assert_eq!(response.status(), 500, "{level:?}, {nth}, {request}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cooldown_applies_at_every_level() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let inner = service_fn(async |_: http::Request<()>| {
        let response = http::Response::builder().status(429).header("retry-after", "60");
        Ok::<_, Infallible>(response.body(String::new()).unwrap())
    });
    for (level, is_told) in LEVELS.into_iter().flat_map(|level| [(level, true), (level, false)]) {
        for (nth, policy) in alone_and_beside_others(&rule(per_day(1_000), level)).into_iter().enumerate() {
            let limiter = limiter(policy, &patient(server.url()).await);
            let tenant = format!("{level}-{nth}-{is_told}");
            for _ in 0..50 {
                assert_eq!(ask(&limiter, "/", &tenant).await, Seen::Admitted);
            }
            // Either the caller says so, or the upstream's response.
            if is_told {
                limiter.cool_down(&Descriptor::new("/").tenant(&*tenant), LONG);
            } else {
                let client = RateLimitLayer::client(limiter.clone()).layer(inner);
                let call = http::Request::get(format!("http://{tenant}/")).body(()).unwrap();
                assert_eq!(client.oneshot(call).await.unwrap().status(), 429);
            }
            assert_eq!(ask(&limiter, "/", &tenant).await, Seen::Rejected, "{tenant}");
        }
    }
}

/// Whatever is reserved here, the fallback limiter knows of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fallback_limiter_counts_what_a_level_has_admitted() {
    let _machine = shared_machine().await;
    for level in LEVELS {
        let local = rule(per_day(400), level).on_backend_failure(FailureMode::Local);
        for (nth, policy) in alone_and_beside_others(&local).into_iter().enumerate() {
            let server = Server::start().await;
            let limiter = limiter(policy, &patient(server.url()).await);
            let tenant = format!("{level:?}-{nth}");
            let mut admitted = 0;
            for _ in 0..300 {
                admitted += u64::from(ask(&limiter, "/", &tenant).await == Seen::Admitted);
            }
            assert_eq!(admitted, 300, "{tenant}");
            drop(server);
            for _ in 0..600 {
                admitted += u64::from(ask(&limiter, "/", &tenant).await == Seen::Admitted);
            }
            assert!(admitted <= 400, "{tenant}: {admitted}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adaptive_rate_applies_at_every_level() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    for level in LEVELS {
        let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(10_000)).start(Quota::per_second(2));
        let rule =
            Rule::new(level.as_str()).adaptive_rate(adapt).consistency(level).on_backend_failure(FailureMode::Closed);
        for (tenant, policy) in ["alone", "beside others"].into_iter().zip(alone_and_beside_others(&rule)) {
            let limiter = limiter(policy, &patient(server.url()).await);
            let start = Instant::now();
            let mut admitted = 0;
            for _ in 0..1_000 {
                admitted += u64::from(ask(&limiter, "/", tenant).await == Seen::Admitted);
            }
            let most = 2 * start.elapsed().as_secs() + 10;
            assert!((1..=most).contains(&admitted), "{level}, {tenant}: {admitted} of {most}");
        }
    }
}
