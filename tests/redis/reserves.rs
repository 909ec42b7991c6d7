//! Reserves for priorities on a store: exact ones as `Local` decides, and leased ones,
//! where an instance reserves units ahead for each class.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, Consistency, Decision, Descriptor, FailureMode, Permit, Policy, Priority, Quota, RateLimiter, Rule,
    backend::Redis, testing::ManualClock,
};

use super::{LONG, algorithms::ALGORITHMS, limiter, patient, server::Server, shared_machine};

fn rule(quota: Quota, level: Consistency) -> Rule {
    let rule = Rule::new("all").tier(quota).consistency(level).on_backend_failure(FailureMode::Closed);
    rule.reserve(Priority::Critical, 0.2).reserve(Priority::High, 0.1)
}

fn of(class: Priority) -> Descriptor<'static> {
    Descriptor::new("/").tenant("acme").priority(class)
}

/// Decision by decision, with what is left and when to come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_reserves_decide_as_local_does() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    for algorithm in ALGORITHMS {
        let clock = ManualClock::new();
        let policy =
            Policy::new().rule(rule(Quota::new(20, Duration::from_secs(1)).algorithm(algorithm), Consistency::Exact));
        let redis = Redis::builder().url(server.url()).deadline(LONG).limiter_time().prefix(algorithm.as_str());
        let redis = redis.rejection_cache_ttl(Duration::ZERO).connect().await.unwrap();
        let limiter = |builder: tower_ratelimit::limiter::RateLimiterBuilder| {
            builder.policy(policy.clone()).clock(clock.clone()).build().unwrap()
        };
        let (local, store) = (limiter(RateLimiter::builder()), limiter(RateLimiter::builder().backend(redis)));
        let mut allowed = [0; 4];
        // Multiplying by a number without a divisor in common visits all pairs.
        for n in 0..600_u64 {
            clock.advance(Duration::from_micros(n * 7_919 % 30_011));
            let class = Priority::ALL[(n * 5 / 3 % 4) as usize];
            let request = of(class).cost(1 + n % 11 / 9);
            let (local, store) = (local.check(&request).await, store.check(&request).await);
            let seen = |decision: &Decision| (decision.is_allowed(), decision.limit(), decision.remaining());
            assert_eq!(seen(&store), seen(&local), "{algorithm}, step {n}, {class}: {store:?} {local:?}");
            let later = |decision: &Decision| decision.retry_after().unwrap_or_default();
            // The store's clock has microseconds.
            assert!(later(&store).abs_diff(later(&local)) < Duration::from_micros(2), "{algorithm}, step {n}, {class}");
            allowed[class as usize] += u64::from(local.is_allowed());
        }
        let [low, normal, _, critical] = allowed;
        // A leaky bucket has one departure at a time for all who do not wait.
        let has_reserve = algorithm == Algorithm::LeakyBucket || critical > low && critical > normal;
        assert!(low + normal > 0 && has_reserve, "{algorithm}: {allowed:?}");
    }
}

/// What four instances admit of a day's window, one class after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leased_fleet_keeps_the_reserve() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy =
        || Policy::new().rule(rule(Quota::per_day(400).algorithm(Algorithm::FixedWindow), Consistency::Leased));
    let mut fleet = Vec::new();
    for _ in 0..4 {
        fleet.push(limiter(policy(), &patient(server.url()).await));
    }
    let mut allowed = [0; 4];
    for (class, allowed) in Priority::ALL.iter().zip(&mut allowed) {
        for n in 0..500 {
            *allowed += usize::from(fleet[n % 4].check(&of(*class)).await.is_allowed());
        }
    }
    let [low, normal, high, critical] = allowed;
    assert!(low + normal <= 280 && low + normal + high <= 320, "{allowed:?} of 400");
    assert_eq!(low + normal + high + critical, 400, "{allowed:?}: nothing is unused, nothing is too much");
    assert!(critical >= 80 && high + critical >= 120, "{allowed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_in_flight_are_reserved_in_the_store() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = || Policy::new().rule(rule(Quota::concurrent(10), Consistency::Exact));
    let instances = [limiter(policy(), &patient(server.url()).await), limiter(policy(), &patient(server.url()).await)];
    let mut held: Vec<Permit> = Vec::new();
    let mut taken = [0; 4];
    for (class, taken) in Priority::ALL.iter().zip(&mut taken) {
        for n in 0..20 {
            let permit = instances[n % 2].acquire(&of(*class), Duration::ZERO).await;
            *taken += usize::from(permit.is_ok());
            held.extend(permit);
        }
    }
    assert_eq!(taken, [7, 0, 1, 2]);
}
