use tokio::time::advance;
use tower_ratelimit::Algorithm;

use super::{algorithms::ALGORITHMS, *};

#[tokio::test(start_paused = true)]
async fn a_spent_key_gets_no_new_quota_when_the_backend_fails() {
    for algorithm in ALGORITHMS {
        let (limiter, backend) = limiter(policy([local("r", Quota::per_hour(4).algorithm(algorithm))]));
        let (all, some) = if algorithm == Algorithm::LeakyBucket { (1, 0) } else { (4, 2) };
        assert_eq!(admitted(&limiter, "all", 9).await, all, "{algorithm}");
        assert_eq!(admitted(&limiter, "some", 2).await, 2.min(all), "{algorithm}");
        backend.set(DOWN);
        assert_eq!(admitted(&limiter, "all", 9).await, 0, "{algorithm}");
        assert_eq!(admitted(&limiter, "some", 9).await, some, "{algorithm}");
        assert_eq!(admitted(&limiter, "none", 9).await, all, "{algorithm}");
        // Once the backend works, it decides; the fallback limiter's counts stay.
        backend.set(Fault::None);
        assert_eq!(admitted(&limiter, "none", 9).await, all, "{algorithm}");
        backend.set(DOWN);
        assert_eq!(admitted(&limiter, "none", 9).await, 0, "{algorithm}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_fallback_limiter_never_goes_into_debt() {
    for algorithm in ALGORITHMS {
        // 100 were admitted, ten of which are its share.
        let rule = local("r", Quota::new(100, SECOND * 100).algorithm(algorithm)).local_share(0.1);
        let (limiter, backend) = limiter(policy([rule]));
        for second in 0..100 {
            assert!(limiter.check(&by("acme")).await.is_allowed(), "{algorithm}, {second} s");
            advance(SECOND).await;
        }
        backend.set(DOWN);
        advance(SECOND * 100).await;
        let most = if algorithm == Algorithm::LeakyBucket { 1 } else { 10 };
        assert_eq!(admitted(&limiter, "acme", 20).await, most, "{algorithm}: a window later it has all of it");
    }
    // A cost above the fallback's capacity uses up all of it, and nothing more.
    let (limiter, backend) = limiter(policy([local("r", Quota::per_second(100)).local_share(0.1)]));
    assert!(limiter.check(&by("acme").cost(100)).await.is_allowed());
    backend.set(DOWN);
    assert_eq!(admitted(&limiter, "acme", 1).await, 0);
    advance(MILLI * 100).await;
    assert_eq!(admitted(&limiter, "acme", 2).await, 1);
}

#[tokio::test(start_paused = true)]
async fn rules_that_fail_otherwise_are_not_counted() {
    let rule = |mode| policy([local("r", Quota::per_hour(3)).on_backend_failure(mode)]);
    for mode in [FailureMode::Open, FailureMode::Closed] {
        let (limiter, backend) = limiter(rule(mode));
        assert_eq!(admitted(&limiter, "acme", 3).await, 3);
        limiter.set_policy(rule(FailureMode::Local)).unwrap();
        backend.set(DOWN);
        assert_eq!(limiter.stats().fallback.keys, 0, "{mode:?}");
        assert_eq!(admitted(&limiter, "acme", 9).await, 3, "nothing was known of it: {mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_in_this_process_has_no_fallback_limiter() {
    let (decides, _) = limiter(policy([local("r", Quota::per_hour(3))]));
    let here = RateLimiter::new(policy([local("r", Quota::per_hour(3))])).unwrap();
    for (limiter, counted) in [(decides, 1), (here, 0)] {
        drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
        let stats = limiter.stats();
        assert_eq!((stats.backend.keys, stats.fallback.keys), (1, counted));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_many_threads_are_counted_once() {
    let quota = Quota::per_hour(1_000).algorithm(Algorithm::SlidingLog);
    let (limiter, backend) = limiter(policy([local("r", quota)]));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert!(poll(&mut std::pin::pin!(limiter.check(&by("acme")))).is_ready());
                }
            });
        }
    });
    backend.set(DOWN);
    // The backend may reject some requests of racing threads.
    let admitted = backend.admitted();
    assert!(admitted > 100, "{admitted}");
    assert_eq!(limiter.check(&by("acme").cost(0)).await.remaining(), Some(1_000 - admitted));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_not_mirrored() {
    let narrow = Rule::new("narrow").path("/narrow").tier(Quota::per_hour(0));
    let (limiter, backend) = limiter(policy([local("wide", Quota::per_hour(3)), narrow]));
    for _ in 0..5 {
        assert!(!limiter.check(&Descriptor::new("/narrow").tenant("acme")).await.is_allowed());
    }
    backend.set(DOWN);
    assert_eq!(admitted(&limiter, "acme", 9).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_give_back_reaches_backend_and_fallback() {
    let quota = Quota::per_hour(3).algorithm(Algorithm::FixedWindow);
    let (limiter, backend) = limiter(policy([local("r", quota)]));
    let acquire = async || limiter.acquire(&by("acme"), Duration::MAX).await.unwrap();
    acquire().await.refund();
    let kept = acquire().await;
    backend.set(DOWN);
    assert_eq!(admitted(&limiter, "acme", 1).await, 1, "two are left, one is taken");
    // Charges from before the failure can be refunded while the backend is down.
    kept.refund();
    assert_eq!(admitted(&limiter, "acme", 9).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_slot_is_given_back_to_backend_and_fallback() {
    let quota = Quota::new(4, SECOND * 4).burst(2);
    let (limiter, backend) = limiter(policy([local("r", quota)]));
    assert_eq!(admitted(&limiter, "acme", 2).await, 2);
    advance(MILLI * 500).await;
    // Half a unit is available: a reservation for the whole is not counted beyond it.
    drop(arrive(&limiter, "acme", SECOND));
    advance(MILLI * 500).await;
    backend.set(DOWN);
    assert_eq!(admitted(&limiter, "acme", 2).await, 1);

    // Where there is more room here than there, it is, and given back.
    backend.set(Fault::None);
    let (limiter, backend) = on(policy([local("r", Quota::concurrent(2)).tier(Quota::per_hour(9))]), backend);
    let waits = Rule::new("waits").tier(Quota::per_second(1));
    limiter.set_policy(policy([local("r", Quota::concurrent(2)).tier(Quota::per_hour(9)), waits])).unwrap();
    drop(limiter.acquire(&by("other"), SECOND).await.unwrap());
    drop(arrive(&limiter, "other", SECOND));
    backend.set(DOWN);
    let decision = limiter.check(&by("other").cost(0)).await;
    let left: Vec<_> = decision.tiers().iter().map(tower_ratelimit::TierStatus::remaining).collect();
    assert_eq!(left, [2, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_reaches_backend_and_fallback() {
    let (limiter, backend) = limiter(policy([local("r", Quota::per_hour(100)).settle(true)]));
    let costs = |tenant: &'static str, cost| {
        let limiter = limiter.clone();
        async move { limiter.acquire(&by(tenant).cost(cost), Duration::ZERO).await }
    };
    costs("less", 80).await.unwrap().give_back(50);
    costs("more", 10).await.unwrap().add(60);
    let much = costs("much", 10).await.unwrap();
    much.add(1_000_000);
    let later = costs("later", 50).await.unwrap();
    backend.set(DOWN);
    for (tenant, left) in [("less", 70), ("more", 30), ("later", 50), ("much", 0)] {
        assert!(costs(tenant, left + 1).await.is_err(), "{tenant}");
        assert_eq!(costs(tenant, left).await.is_ok(), left > 0 || tenant == "much", "{tenant}");
    }
    // The backend keeps the debt; here the unit refills on its own.
    advance(SECOND * 36).await;
    assert!(costs("much", 1).await.is_ok());
    // Settled while the backend is down, as far as the fallback limiter charged it.
    later.give_back(20);
    assert!(costs("later", 20).await.is_ok());
    assert!(costs("later", 2).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_charge_of_the_fallback_limiter_is_settled_there_after_recovery() {
    let rule = local("r", Quota::per_hour(100)).settle(true).local_share(0.5);
    let (limiter, backend) = limiter(policy([rule]));
    backend.set(DOWN);
    let permit = limiter.acquire(&by("acme").cost(50), Duration::ZERO).await.unwrap();
    backend.set(Fault::None);
    permit.give_back(30);
    let whole = limiter.check(&by("acme").cost(0)).await;
    assert_eq!((whole.remaining(), backend.refunds()), (Some(100), 0), "the backend knows nothing of it");
    backend.set(DOWN);
    assert_eq!(limiter.check(&by("acme").cost(0)).await.remaining(), Some(30));
    permit.add(10);
    assert_eq!(limiter.check(&by("acme").cost(0)).await.remaining(), Some(20));
    permit.refund();
    assert_eq!(limiter.check(&by("acme").cost(0)).await.remaining(), Some(50));
}

#[tokio::test(start_paused = true)]
async fn units_in_flight_are_released_where_they_are_counted() {
    let (limiter, backend) = limiter(policy([local("r", Quota::concurrent(3))]));
    let acquire = async || limiter.acquire(&by("acme"), Duration::ZERO).await;
    let before = [acquire().await.unwrap(), acquire().await.unwrap()];
    backend.set(DOWN);
    let during = acquire().await.unwrap();
    assert!(acquire().await.is_err(), "three are under way");
    let [one, other] = before;
    drop(one);
    let again = acquire().await.unwrap();
    // A release that does not reach the backend is lost; this test backend keeps it.
    backend.set(Fault::None);
    drop((during, again, other));
    assert_eq!(limiter.stats().permits, 0);
    backend.set(DOWN);
    let all = [acquire().await.unwrap(), acquire().await.unwrap(), acquire().await.unwrap()];
    assert!(acquire().await.is_err());
    drop(all);
}

/// A rule that fails local is counted separately from other rules.
#[tokio::test(start_paused = true)]
async fn only_the_rules_that_fail_locally_are_counted_and_with_their_own_cost() {
    let open = Rule::new("open").tier(Quota::per_hour(1_000)).cost(7);
    let (limiter, backend) = limiter(policy([open, local("r", Quota::per_hour(10)).cost(3)]));
    backend.set(Fault::Slow);
    assert_eq!(admitted(&limiter, "acme", 2).await, 2);
    backend.set(DOWN);
    let decision = limiter.check(&by("acme")).await;
    assert_eq!((decision.remaining(), decision.tiers().len()), (Some(1), 1));
}
