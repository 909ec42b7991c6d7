use std::error::Error;

use tokio::time::{Instant, advance};
use tower_ratelimit::{
    AdaptiveRate, BackendError, RateLimitedKind,
    limiter::{AdaptiveRateStatus, Stats},
};

use super::*;

#[tokio::test(start_paused = true)]
async fn each_failure_mode_applies_until_the_backend_replies_again() {
    for (mode, by_mode) in [(FailureMode::Open, 5), (FailureMode::Closed, 0), (FailureMode::Local, 3)] {
        let rule = Rule::new("r").tier(Quota::per_hour(3)).on_backend_failure(mode);
        let (limiter, backend) = limiter(policy([rule]));
        backend.set(DOWN);
        assert_eq!(admitted(&limiter, "acme", 5).await, by_mode, "{mode:?}");
        let stats = limiter.stats();
        let failed = [stats.failed_open, stats.failed_closed, stats.failed_local, stats.rejected, stats.allowed];
        let expected = match mode {
            FailureMode::Open => [5, 0, 0, 0, 0],
            FailureMode::Closed => [0, 5, 0, 0, 0],
            _ => [0, 0, 3, 2, 0],
        };
        assert_eq!(failed, expected, "{mode:?}");
        backend.set(Fault::None);
        assert_eq!(admitted(&limiter, "acme", 5).await, 3, "{mode:?}: the backend has counted nothing so far");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_names_the_error_where_a_rule_fails_closed() {
    let rule = Rule::new("r").tier(Quota::per_hour(3)).on_backend_failure(FailureMode::Closed);
    let (limiter, backend) = limiter(policy([rule]));
    backend.set(Fault::Error(BackendErrorKind::Misconfigured));
    let rejected = limiter.acquire(&by("acme"), SECOND).await.unwrap_err();
    assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::BackendUnavailable, None));
    let cause = rejected.source().and_then(|error| error.downcast_ref::<BackendError>()).unwrap();
    assert_eq!(cause.kind(), BackendErrorKind::Misconfigured);
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn of_several_rules_the_strictest_mode_wins() {
    let open = Rule::new("open").tier(Quota::per_hour(1));
    let closed = Rule::new("closed").path("/pay").tier(Quota::per_hour(9)).on_backend_failure(FailureMode::Closed);
    let (limiter, backend) = limiter(policy([open, local("local", Quota::per_hour(2)), closed]));
    backend.set(DOWN);
    let pay = Descriptor::new("/pay").tenant("acme");
    for _ in 0..5 {
        assert_eq!(limiter.check(&pay).await.rejection(), Some(RateLimitedKind::BackendUnavailable));
    }
    // The others charged nothing; a rule that fails open does not count.
    assert_eq!(admitted(&limiter, "acme", 5).await, 2);
    let rejected = limiter.check(&by("acme")).await;
    assert_eq!(rejected.rejection(), Some(RateLimitedKind::QuotaExceeded));
    assert!(rejected.tiers().iter().all(|tier| tier.rule() == "local"));
    let Stats { failed_open, failed_closed, failed_local, rejected, .. } = limiter.stats();
    assert_eq!([failed_open, failed_closed, failed_local, rejected], [0, 5, 2, 4]);
}

#[tokio::test(start_paused = true)]
async fn the_local_limiter_decides_its_rules_all_or_nothing() {
    let wide = local("wide", Quota::per_hour(5));
    let narrow = local("narrow", Quota::per_hour(2)).path("/narrow");
    let (limiter, backend) = limiter(policy([wide, narrow]));
    backend.set(DOWN);
    let narrow = Descriptor::new("/narrow").tenant("acme");
    for goes in [true, true, false, false, false] {
        assert_eq!(limiter.check(&narrow).await.is_allowed(), goes);
    }
    assert_eq!(admitted(&limiter, "acme", 9).await, 3, "a rejection charges nothing to the wide rule");
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_on_the_local_limiter() {
    let (limiter, backend) = limiter(policy([local("r", Quota::per_second(1))]));
    backend.set(DOWN);
    let start = Instant::now();
    drop(limiter.acquire(&by("acme"), SECOND * 5).await.unwrap());
    let rejected = limiter.acquire(&by("acme"), SECOND * 5).await.unwrap_err();
    assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::QuotaExceeded, Some(SECOND)));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(limiter.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_late_failure_skips_the_shadow_rules() {
    let shadow = |id| Rule::new(id).shadow(true).tier(Quota::concurrent(1));
    let (limiter, backend) = limiter(policy([Rule::new("r").tier(Quota::per_hour(9)), shadow("a"), shadow("b")]));
    backend.set(Fault::LostReply);
    assert!(limiter.check(&by("acme")).await.is_allowed());
    assert_eq!((backend.requests(), limiter.stats().failed_open), (1, 1), "one deadline, not three");

    backend.set(Fault::Slow);
    let permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    assert_eq!((backend.requests(), limiter.stats().permits), (4, 1));
    // Shadow rules keep their one unit until it is done.
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    assert_eq!(limiter.stats().shadow_rejected, 2);
    drop(permit);
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    assert_eq!((limiter.stats().shadow_rejected, limiter.stats().permits), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failure_for_a_queued_request_skips_the_shadow_rules() {
    let shadow = Rule::new("shadow").shadow(true).tier(Quota::per_hour(9));
    let (limiter, backend) = limiter(policy([Rule::new("r").tier(Quota::concurrent(1)), shadow]));
    let _first = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let (queued, descriptor) = (limiter.clone(), by("acme"));
    let second = queued.acquire(&descriptor, Duration::from_secs(9));
    backend.set(Fault::None);
    let fails = async {
        tokio::time::advance(Duration::from_millis(10)).await;
        backend.set(Fault::Error(BackendErrorKind::Unavailable));
        backend.requests()
    };
    let (second, requests) = tokio::join!(second, fails);
    assert!(second.is_ok(), "the rule fails open");
    assert_eq!(backend.requests(), requests + 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_awaits_only_shadow_rules_is_no_waiter() {
    let shadow = Rule::new("shadow").shadow(true).tier(Quota::per_hour(9));
    let (limiter, backend) = limiter(policy([Rule::new("r").tier(Quota::per_hour(9)), shadow]));
    backend.set(Fault::Slow);
    let descriptor = by("acme");
    let mut waits = std::pin::pin!(limiter.acquire(&descriptor, Duration::from_secs(9)));
    let mut poll = || waits.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(poll().is_pending());
    assert_eq!(limiter.stats().waiting, 1, "the enforced rule is decided");
    backend.set(Fault::Never);
    assert!(poll().is_pending());
    assert_eq!((limiter.stats().waiting, limiter.stats().allowed), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_rule_neither_rejects_nor_keeps_a_lease_when_the_backend_fails() {
    let shadow = local("shadow", Quota::concurrent(0)).shadow(true).on_backend_failure(FailureMode::Closed);
    let (limiter, backend) = limiter(policy([shadow]));
    for fault in [DOWN, Fault::LostReply] {
        backend.set(fault);
        let permit = limiter.acquire(&by("acme"), SECOND).await.unwrap();
        assert_eq!(limiter.stats().permits, 0);
        drop(permit);
    }
    assert_eq!((limiter.stats().shadow_rejected, limiter.stats().failed_closed), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_reload_during_a_backend_failure_keeps_the_usage() {
    let (limiter, backend) = limiter(policy([local("r", Quota::per_hour(8)).local_share(0.5)]));
    backend.set(DOWN);
    assert_eq!(admitted(&limiter, "acme", 3).await, 3);
    limiter.set_policy(policy([local("r", Quota::per_hour(8))])).unwrap();
    assert_eq!(admitted(&limiter, "acme", 9).await, 5, "eight, three of which are used");
    limiter.set_policy(policy([local("r", Quota::per_hour(8)).local_share(0.25)])).unwrap();
    assert_eq!(admitted(&limiter, "acme", 1).await, 0);
    limiter.set_policy(policy([local("r", Quota::per_hour(8)).on_backend_failure(FailureMode::Closed)])).unwrap();
    assert_eq!(limiter.check(&by("acme")).await.rejection(), Some(RateLimitedKind::BackendUnavailable));
}

#[tokio::test(start_paused = true)]
async fn a_request_cancelled_during_the_call_leaves_nothing_behind() {
    let rules = [local("r", Quota::per_second(5)), local("slots", Quota::concurrent(1))];
    let shadow = Rule::new("shadow").shadow(true).tier(Quota::concurrent(1));
    let (limiter, backend) = limiter(policy(rules.into_iter().chain([shadow])));
    let nothing_left = |limiter: &RateLimiter| {
        let stats = limiter.stats();
        assert_eq!((stats.waiting, stats.permits), (0, 0));
    };
    backend.set(Fault::Never);
    drop(arrive(&limiter, "acme", SECOND));
    drop(arrive(&limiter, "acme", Duration::ZERO));
    nothing_left(&limiter);

    // Queued, decided again, and cancelled during the call.
    backend.set(Fault::None);
    let first = limiter.acquire(&by("acme"), SECOND).await.unwrap();
    let mut second = arrive(&limiter, "acme", SECOND * 9);
    let mut third = arrive(&limiter, "acme", SECOND * 9);
    assert_eq!(limiter.stats().waiting, 2);
    backend.set(Fault::Slow);
    drop(first);
    let before = backend.requests();
    assert!(poll(&mut second).is_pending() && backend.requests() == before + 1);
    drop(second);
    backend.set(Fault::None);
    // What the dropped answer has charged is the backend's to find again.
    backend.set(DOWN);
    let permit = loop {
        if let Poll::Ready(permit) = poll(&mut third) {
            break permit.unwrap();
        }
        advance(SECOND).await;
    };
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 1));
    drop(permit);
    nothing_left(&limiter);
}

/// What was added for a caller that has left is not spent.
#[tokio::test(start_paused = true)]
async fn units_whose_addition_is_cancelled_during_the_call_are_given_back() {
    let shadow = Rule::new("shadow").shadow(true).tier(Quota::per_hour(10)).settle(true);
    let (limiter, backend) = limiter(policy([local("r", Quota::per_hour(10)).settle(true), shadow]));
    let left = async || {
        let decision = limiter.peek(&by("acme")).await;
        (decision.remaining(), decision.shadows()[0].tiers()[0].remaining())
    };
    let permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    backend.set(Fault::Slow);
    let mut adding = Box::pin(permit.try_add(5));
    assert!(poll(&mut adding).is_pending());
    drop(adding);
    backend.set(Fault::None);
    advance(MILLI).await;
    assert_eq!(left().await, (Some(9), 9), "the request itself is charged");
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 1));

    permit.try_add(9).await.unwrap();
    permit.refund();
    assert_eq!(left().await, (Some(10), 10));
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
}

/// A call for a waiting request is bounded by its wait, but not to less than a
/// second: a caller's short deadline must not decide how a rule fails.
#[tokio::test(start_paused = true)]
async fn a_backend_that_never_replies_delays_no_request_beyond_its_wait() {
    for (max_wait, waits) in [(SECOND * 5, SECOND * 5), (MILLI, SECOND)] {
        let (limiter, backend) = limiter(policy([local("r", Quota::per_hour(1))]));
        backend.set(Fault::Never);
        let start = Instant::now();
        let permit = limiter.acquire(&by("acme"), max_wait).await.unwrap();
        // Timers are late by up to a millisecond.
        assert!(start.elapsed() >= waits && start.elapsed() <= waits + MILLI, "{:?}", start.elapsed());
        assert_eq!((limiter.stats().failed_local, limiter.stats().waiting), (1, 0));
        drop(permit);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_a_failure_admits_says_how_long_it_waited() {
    let rule = Rule::new("r").tier(Quota::concurrent(1)).max_wait(60 * SECOND).on_backend_failure(FailureMode::Open);
    let (limiter, backend) = limiter(policy([rule]));
    let _held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let start = Instant::now();
    let (queued, descriptor) = (limiter.clone(), by("acme"));
    let fails = async {
        advance(SECOND * 5 / 2).await;
        backend.set(DOWN);
    };
    let (permit, ()) = tokio::join!(queued.acquire(&descriptor, 60 * SECOND), fails);
    assert!(start.elapsed() >= SECOND * 5 / 2);
    assert_eq!(permit.unwrap().decision().wait(), start.elapsed());
}

/// An upstream's answer concerns every rule that applied, also those that no limiter
/// decided.
#[tokio::test(start_paused = true)]
async fn feedback_reaches_a_rule_that_failed_open_beside_one_that_failed_local() {
    let bounds = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(100)).start(Quota::per_second(50));
    let open = || Rule::new("open").adaptive_rate(bounds).on_backend_failure(FailureMode::Open);
    for beside in [vec![], vec![local("local", Quota::per_hour(9))]] {
        let (limiter, backend) = limiter(policy([open()].into_iter().chain(beside.clone())));
        let rejections =
            || limiter.adaptive_rates(&by("acme")).iter().map(AdaptiveRateStatus::rejections).collect::<Vec<_>>();
        backend.set(DOWN);
        let permit = limiter.acquire(&by("acme"), SECOND).await.unwrap();
        assert_eq!(rejections(), [0], "{beside:?}");
        permit.report_rejection();
        assert_eq!(rejections(), [1], "{beside:?}");
        assert_eq!(limiter.stats().permits, 1, "{beside:?}");
        drop(permit);
        assert_eq!(limiter.stats().permits, 0, "{beside:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn units_that_are_added_while_the_backend_is_down_take_no_place_in_flight() {
    let rule = local("r", Quota::per_hour(20)).tier(Quota::concurrent(2)).settle(true);
    let (limiter, backend) = limiter(policy([rule]));
    let permit = limiter.acquire(&by("acme"), SECOND).await.unwrap();
    backend.set(DOWN);
    permit.try_add(9).await.unwrap();
    permit.try_add(11).await.expect_err("of 20");
    assert!(limiter.check(&by("acme")).await.is_allowed(), "the second of two in flight");
}
