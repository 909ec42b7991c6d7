//! The scripts of the levels, `lease.lua` and `sync.lua`, compared with `Local`:
//! random requests of one tenant to one instance, by a clock that the test steps.
//! And what is the same at every level: plans, and shadow rules.
//!
//! A failure prints the smallest schedule that reproduces it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use proptest::{
    prelude::*,
    test_runner::{TestError, TestRunner},
};
use tokio::runtime::{Builder, Runtime};
use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis,
    testing::ManualClock,
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

/// A limiter of a level, one that is exact on the same counters, and a local one.
struct Trio {
    clock: ManualClock,
    level: RateLimiter,
    exact: RateLimiter,
    local: RateLimiter,
}

impl Cases {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(Server::start());
        Self { runtime, server }
    }

    async fn trio(&self, quota: Quota, level: Consistency) -> Trio {
        static CASE: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("levels-{}", CASE.fetch_add(1, Ordering::Relaxed));
        let clock = ManualClock::new();
        let on_store = async |level| {
            let redis = Redis::builder().url(self.server.url()).deadline(LONG).limiter_time().prefix(&prefix);
            let redis = redis.rejection_cache_ttl(Duration::ZERO).connect().await.unwrap();
            let builder = RateLimiter::builder().policy(policy(quota, level)).backend(redis);
            builder.clock(clock.clone()).build().unwrap()
        };
        let (level, exact) = (on_store(level).await, on_store(Consistency::Exact).await);
        let local = RateLimiter::builder().policy(policy(quota, Consistency::Exact)).clock(clock.clone());
        Trio { level, exact, local: local.build().unwrap(), clock }
    }

    /// Runs `follow` on schedules of each of the quotas.
    fn run(
        &self,
        quotas: &[Quota],
        level: Consistency,
        follow: &impl AsyncFn(Trio, &[Step]) -> Result<(), TestCaseError>,
    ) {
        let _machine = self.runtime.block_on(shared_machine());
        let config = ProptestConfig { failure_persistence: None, max_shrink_time: 30_000, ..ProptestConfig::default() };
        for quota in quotas {
            let mut runner = TestRunner::new(ProptestConfig { cases: 20, ..config.clone() });
            let run = |steps: Vec<Step>| {
                self.runtime.block_on(async { follow(self.trio(*quota, level).await, &steps).await })
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
    Cases::new().run(&quotas, Consistency::Leased, &async |trio: Trio, steps: &[Step]| {
        for (nth, (pass, units)) in steps.iter().enumerate() {
            trio.clock.advance(Duration::from_micros(*pass));
            let (level, local) = (trio.level.check(&request(*units)).await, trio.local.check(&request(*units)).await);
            prop_assert_eq!(level.is_allowed(), local.is_allowed(), "step {}:\n {:?}\n {:?}", nth, level, local);
        }
        Ok(())
    });
}

/// What an eventual instance has reported is in the store what `Local` has counted.
#[test]
fn reports_of_an_eventual_instance_count_as_local_does() {
    let algorithms =
        [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::AnchoredWindow, Algorithm::SlidingWindow];
    let quotas = quotas(&[1_000, 10_000], &algorithms);
    Cases::new().run(&quotas, Consistency::Eventual, &async |trio: Trio, steps: &[Step]| {
        for (nth, (pass, units)) in steps.iter().enumerate() {
            trio.clock.advance(Duration::from_micros(*pass));
            prop_assert!(trio.level.check(&request(*units)).await.is_allowed());
            prop_assert!(trio.local.check(&request(*units)).await.is_allowed());
            trio.level.drain().await;
            let (store, local) = (trio.exact.peek(&request(1)).await, trio.local.peek(&request(1)).await);
            prop_assert_eq!(store.remaining(), local.remaining(), "step {}:\n {:?}\n {:?}", nth, store, local);
            prop_assert_eq!(store.reset(), local.reset(), "step {}:\n {:?}\n {:?}", nth, store, local);
        }
        Ok(())
    });
}

const LEVELS: [Consistency; 2] = [Consistency::Leased, Consistency::Eventual];

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
        let limiter = limiter(Policy::new().rule(shadow), &patient(server.url()).await);
        for _ in 0..20 {
            assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
        }
        assert_eq!(limiter.stats().shadow_rejected, 15, "{level:?}");
    }
}
