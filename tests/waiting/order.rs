use tower_ratelimit::{Algorithm, Quota};

use super::{Caller, MILLI, SECOND, limiter, rush, tiers};

#[tokio::test(start_paused = true)]
async fn each_is_admitted_in_order_at_its_exact_time() {
    let limiter = limiter(Quota::per_second(100).burst(3));
    let admissions = rush(&limiter, 200).await;
    for (position, (caller, at)) in admissions.into_iter().enumerate() {
        assert_eq!(caller, position, "overtaken");
        assert_eq!(at, 10 * MILLI * u32::try_from(position.saturating_sub(2)).unwrap(), "caller {caller}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_waits_for_all_tiers_together() {
    let pair = Quota::new(2, 4 * SECOND).algorithm(Algorithm::FixedWindow);
    let limiter = limiter(tiers(&[Quota::per_second(1), pair]));
    let when: Vec<_> = rush(&limiter, 6).await.into_iter().map(|(_, when)| when.as_secs()).collect();
    assert_eq!(when, [0, 1, 4, 5, 8, 9]);
}

#[tokio::test(start_paused = true)]
async fn tenants_do_not_wait_for_each_other() {
    let limiter = limiter(Quota::per_second(1));
    let _first = Caller::arrive(&limiter, "acme", SECOND);
    assert!(Caller::arrive(&limiter, "acme", SECOND).is_waiting());
    assert!(!Caller::arrive(&limiter, "initech", SECOND).is_waiting());
}

/// tower#454: only the last waiter was woken.
#[tokio::test(start_paused = true)]
async fn mistake_14_every_waiter_is_woken() {
    let limiter = limiter(Quota::per_second(1));
    let start = tokio::time::Instant::now();
    let mut waiters: Vec<_> = (0..5).map(|_| Caller::arrive(&limiter, "acme", 10 * SECOND)).collect();
    // The first to come is polled last.
    while let Some(waiter) = waiters.pop() {
        drop(waiter.outcome().await.unwrap());
    }
    assert_eq!(start.elapsed(), 4 * SECOND);
}

/// tower-resilience#363: waiters were admitted in addition to later requests.
#[tokio::test(start_paused = true)]
async fn mistake_14_no_request_is_admitted_on_top_after_a_wait() {
    let limiter = limiter(Quota::per_second(10).burst(1));
    let start = tokio::time::Instant::now();
    let mut admitted = Vec::new();
    let mut waiters: Vec<_> = (0..5).map(|_| Caller::arrive(&limiter, "acme", SECOND)).collect();
    for _ in 0..2_000 {
        tokio::time::advance(MILLI).await;
        waiters.push(Caller::arrive(&limiter, "acme", 50 * MILLI));
        waiters.retain_mut(|waiter| match waiter.poll() {
            true => {
                admitted.extend(waiter.outcome.take().unwrap().ok().map(|_| start.elapsed()));
                false
            }
            false => true,
        });
    }
    assert!(admitted.windows(2).skip(1).all(|pair| pair[1] - pair[0] >= 99 * MILLI), "{admitted:?}");
    assert!((20..=21).contains(&admitted.len()), "{} admitted in two seconds at ten a second", admitted.len());
}
