//! An existing governor limiter as a backend: it decides one tier, and fails for
//! more.

use std::{num::NonZeroU32, time::Duration};

use governor::{
    DefaultKeyedRateLimiter, RateLimiter as Keyed,
    clock::FakeRelativeClock,
    middleware::{NoOpMiddleware, StateInformationMiddleware},
    state::keyed::HashMapStateStore,
};
use tower_ratelimit::{
    Decision, Descriptor, FailureMode, Policy, Quota, RateLimitedKind, RateLimiter, Rule, Verdict,
    backend::{Backend, Charge, Governor},
    error::BackendErrorKind,
};

fn per_second(units: u32) -> governor::Quota {
    governor::Quota::per_second(NonZeroU32::new(units).expect("not zero"))
}

fn limiter(policy: impl Into<Policy>, backend: impl Backend) -> RateLimiter {
    RateLimiter::builder().policy(policy).backend(backend).build().expect("a valid policy")
}

async fn ask(limiter: &RateLimiter, tenant: &str, cost: u64) -> Decision {
    limiter.check(&Descriptor::new("/").tenant(tenant).cost(cost)).await
}

type Stepped<MW> = Keyed<String, HashMapStateStore<String>, FakeRelativeClock, MW>;

#[tokio::test]
async fn it_decides_by_its_own_quota_and_clock() {
    let clock = FakeRelativeClock::default();
    let existing: Stepped<NoOpMiddleware<_>> = Keyed::new(per_second(2), HashMapStateStore::default(), clock.clone());
    // The policy's own numbers do not decide.
    let limiter = limiter(Quota::per_second(1_000), Governor::by_tenant(existing));
    for _ in 0..2 {
        let decision = ask(&limiter, "acme", 1).await;
        assert_eq!(decision.verdict(), Verdict::Allow);
        assert!(decision.tiers().is_empty(), "nothing is known of what is left");
    }
    let rejected = ask(&limiter, "acme", 1).await;
    assert_eq!(rejected.retry_after(), Some(Duration::from_millis(500)));
    let reset = limiter.reset(&Descriptor::new("/").tenant("acme")).await;
    assert_eq!(reset.unwrap_err().kind(), BackendErrorKind::Unsupported);
    assert!(ask(&limiter, "other", 1).await.is_allowed(), "each tenant by itself");
    clock.advance(Duration::from_millis(499));
    assert!(!ask(&limiter, "acme", 1).await.is_allowed());
    clock.advance(Duration::from_millis(1));
    assert!(ask(&limiter, "acme", 1).await.is_allowed());
}

#[tokio::test]
async fn with_state_information_the_tier_is_reported() {
    let existing: Stepped<StateInformationMiddleware> =
        Keyed::new(per_second(10), HashMapStateStore::default(), FakeRelativeClock::default());
    let existing = existing.with_middleware::<StateInformationMiddleware>();
    let limiter = limiter(Quota::per_second(10), Governor::by_tenant(existing));
    let decision = ask(&limiter, "acme", 4).await;
    assert_eq!((decision.limit(), decision.remaining()), (Some(10), Some(6)));
    assert_eq!(decision.reset(), Duration::from_millis(400));
}

#[tokio::test]
async fn costs_are_units_and_may_never_fit() {
    let existing = DefaultKeyedRateLimiter::<String>::keyed(per_second(5));
    let limiter = limiter(Quota::per_second(5), Governor::by_tenant(existing));
    assert!(ask(&limiter, "acme", 0).await.is_allowed());
    for cost in [6, u64::from(u32::MAX), u64::MAX] {
        let rejected = ask(&limiter, "acme", cost).await;
        assert_eq!(rejected.rejection(), Some(RateLimitedKind::NeverFits), "{cost}");
        assert_eq!(rejected.retry_after(), None);
    }
    assert!(ask(&limiter, "acme", 5).await.is_allowed(), "nothing was charged");
    assert!(!ask(&limiter, "acme", 1).await.is_allowed());
}

#[tokio::test]
async fn the_key_can_be_made_from_the_whole_charge() {
    let existing = DefaultKeyedRateLimiter::<(String, u128)>::keyed(per_second(1));
    let key = |charge: &Charge<'_>| (charge.endpoint().to_owned(), charge.fingerprint());
    let rule = Rule::new("two").path("/a").path("/b").tier(Quota::per_second(1));
    let limiter = limiter(Policy::new().rule(rule), Governor::new(existing, key));
    for (path, allowed) in [("/a", true), ("/a", false), ("/b", true)] {
        let decision = limiter.check(&Descriptor::new(path).tenant("acme")).await;
        assert_eq!(decision.is_allowed(), allowed, "{path}");
    }
}

#[tokio::test]
async fn several_tiers_are_a_backend_failure() {
    for (mode, allowed) in [(FailureMode::Open, true), (FailureMode::Closed, false)] {
        let existing = DefaultKeyedRateLimiter::<String>::keyed(per_second(1));
        let rule = Rule::new("two").tier(Quota::per_second(1)).tier(Quota::per_hour(9)).on_backend_failure(mode);
        let limiter = limiter(Policy::new().rule(rule), Governor::by_tenant(existing));
        for _ in 0..3 {
            assert_eq!(ask(&limiter, "acme", 1).await.is_allowed(), allowed, "{mode:?}");
        }
        let stats = limiter.stats();
        assert_eq!((stats.failed_open, stats.failed_closed), if allowed { (3, 0) } else { (0, 3) });
    }
}

#[tokio::test]
async fn a_calendar_month_is_a_backend_failure() {
    let existing = DefaultKeyedRateLimiter::<String>::keyed(per_second(1));
    let rule = Rule::new("plan").tier(Quota::per_month(9)).on_backend_failure(FailureMode::Closed);
    let limiter = limiter(Policy::new().rule(rule), Governor::by_tenant(existing));
    assert!(!ask(&limiter, "acme", 1).await.is_allowed());
    assert_eq!(limiter.stats().failed_closed, 1);
}

#[tokio::test]
async fn a_rule_that_fails_to_a_local_limiter_is_decided_there() {
    let existing = DefaultKeyedRateLimiter::<String>::keyed(per_second(1));
    let rule = Rule::new("two").tier(Quota::per_hour(2)).tier(Quota::per_day(9)).on_backend_failure(FailureMode::Local);
    let limiter = limiter(Policy::new().rule(rule), Governor::by_tenant(existing));
    for allowed in [true, true, false] {
        assert_eq!(ask(&limiter, "acme", 1).await.is_allowed(), allowed);
    }
}
