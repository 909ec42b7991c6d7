use tower_ratelimit::Algorithm;

use super::{algorithms::ALGORITHMS, *};

/// A quota whose whole limit can be used at once.
fn quota(limit: u64, algorithm: Algorithm) -> Quota {
    Quota::new(limit, Duration::from_secs(3_600)).algorithm(algorithm)
}

#[tokio::test(start_paused = true)]
async fn the_local_limiter_has_its_share_of_every_algorithm() {
    for algorithm in ALGORITHMS {
        let (limiter, backend) = limiter(policy([local("r", quota(11, algorithm)).local_share(0.25)]));
        backend.set(DOWN);
        let most = if algorithm == Algorithm::LeakyBucket { 1 } else { 2 };
        assert_eq!(admitted(&limiter, "acme", 9).await, most, "{algorithm}");
        let decision = limiter.check(&by("other")).await;
        assert_eq!((decision.limit(), decision.tiers()[0].name().into_owned()), (2, "r".to_owned()), "{algorithm}");
        // A leaky bucket's rate is scaled as well: two an hour.
        tokio::time::advance(Duration::from_secs(1_799)).await;
        if algorithm == Algorithm::LeakyBucket {
            assert_eq!(admitted(&limiter, "acme", 1).await, 0);
            tokio::time::advance(SECOND).await;
            assert_eq!(admitted(&limiter, "acme", 2).await, 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bursts_and_concurrency_limits_are_scaled_too() {
    let burst = Quota::per_minute(60).burst(8);
    let (limiter, backend) = limiter(policy([
        local("burst", burst).path("/burst").local_share(0.5),
        local("slots", Quota::concurrent(7)).path("/slots").local_share(0.5),
    ]));
    backend.set(DOWN);
    let ask = |path| {
        let limiter = limiter.clone();
        async move { limiter.acquire(&Descriptor::new(path).tenant("acme"), Duration::ZERO).await }
    };
    let mut slots = Vec::new();
    for _ in 0..9 {
        slots.extend(ask("/slots").await.ok());
    }
    assert_eq!(slots.len(), 3);
    slots.pop();
    assert!(ask("/slots").await.is_ok(), "units are released where they were taken");
    for goes in [true, true, true, true, false] {
        assert_eq!(ask("/burst").await.is_ok(), goes);
    }
    tokio::time::advance(SECOND * 2).await;
    for goes in [true, false] {
        assert_eq!(ask("/burst").await.is_ok(), goes, "30 a minute");
    }
}

#[tokio::test(start_paused = true)]
async fn plans_and_tenants_are_scaled_to_at_least_one() {
    let rule = local("r", Quota::per_hour(40))
        .local_share(0.1)
        .plan("pro", [Quota::per_hour(80)])
        .tenant("small", [Quota::per_hour(3)])
        .tenant("none", [Quota::per_hour(0)])
        .tenant_unlimited("internal");
    let (limiter, backend) = limiter(policy([rule]));
    assert_eq!(admitted(&limiter, "whole", 50).await, 40, "the backend has the limits as they are");
    backend.set(DOWN);
    for (tenant, goes) in [("acme", 4), ("small", 1), ("none", 0), ("internal", 50)] {
        assert_eq!(admitted(&limiter, tenant, 50).await, goes, "{tenant}");
    }
    let pro = by("rich").plan("pro");
    for goes in [true; 8].into_iter().chain([false]) {
        assert_eq!(limiter.check(&pro).await.is_allowed(), goes);
    }
}

#[test]
fn a_share_that_cannot_be_names_rule_key_and_value() {
    let rule = || local("r", Quota::per_second(1));
    for share in [0.0, -0.0, -0.5, 1.000_001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = RateLimiter::new(policy([rule().local_share(share)])).unwrap_err();
        assert_eq!((error.rule(), error.key()), (Some("r"), "local_share"));
        assert_eq!(error.value(), Some(&*share.to_string()));
        assert!(error.to_string().ends_with("must be more than 0, and at most 1"), "{error}");
    }
    for mode in [FailureMode::Open, FailureMode::Closed] {
        let error = RateLimiter::new(policy([rule().local_share(1.0).on_backend_failure(mode)])).unwrap_err();
        assert_eq!((error.key(), error.value()), ("local_share", Some("1")));
        assert!(error.to_string().contains("where `on_backend_failure` is `local`"), "{error}");
    }
    for share in [f64::MIN_POSITIVE, 0.5, 1.0] {
        RateLimiter::new(policy([rule().local_share(share)])).unwrap();
    }
}
