use tokio::time::{Instant, advance};
use tower_ratelimit::{
    Verdict,
    testing::ManualClock,
    time::{Clock, Timestamp},
};

use super::*;

/// Tokio's time with an offset of an hour.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead(TokioClock);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        self.0.now().saturating_add(Duration::from_secs(12_345))
    }
}

/// A backend with its own clock, whose replies are late.
fn on_its_clock(policy: impl Into<Policy>) -> (RateLimiter, FaultyBackend) {
    let (limiter, backend) = on(policy, FaultyBackend::with_clock(Local::new(), Ahead::default()));
    backend.set(Fault::Slow);
    (limiter, backend)
}

#[tokio::test(start_paused = true)]
async fn a_wait_counts_from_when_the_answer_came() {
    let (limiter, _) = on_its_clock(Quota::per_second(1));
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    let start = Instant::now();
    let second = arrive(&limiter, "acme", SECOND * 5);
    advance(MILLI * 40).await;
    let permit = second.await.unwrap();
    assert_eq!(start.elapsed(), MILLI * 1_040, "the reply took 40 ms and reserved a slot one second later");
    assert_eq!(permit.decision().verdict(), Verdict::Delay(SECOND));
    assert_eq!(limiter.stats().delayed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_that_admits_delays_no_request() {
    let (limiter, _) = on_its_clock(Quota::per_second(1));
    let first = arrive(&limiter, "acme", SECOND * 5);
    advance(MILLI * 40).await;
    let permit = first.await.unwrap();
    assert_eq!(permit.decision().verdict(), Verdict::Allow);
    assert_eq!((limiter.stats().allowed, limiter.stats().delayed), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn without_a_clock_of_its_own_a_wait_counts_from_the_request() {
    let (limiter, backend) = limiter(Quota::per_second(1));
    backend.set(Fault::Slow);
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    let start = Instant::now();
    let second = arrive(&limiter, "acme", SECOND * 5);
    advance(MILLI * 40).await;
    drop(second.await.unwrap());
    assert_eq!(start.elapsed(), SECOND, "it was decided by the limiter's clock");
}

/// It is charged by then: a rejection would waste its slot.
#[tokio::test(start_paused = true)]
async fn a_wait_that_a_late_answer_pushes_beyond_the_bound_is_kept() {
    let (limiter, _) = on_its_clock(Quota::per_second(1));
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    let start = Instant::now();
    let second = arrive(&limiter, "acme", SECOND);
    advance(MILLI * 50).await;
    assert!(second.await.is_ok());
    assert_eq!(start.elapsed(), MILLI * 1_050);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_slot_is_given_back_in_the_backends_time() {
    let (limiter, backend) = on_its_clock(Quota::per_second(1));
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    let mut second = arrive(&limiter, "acme", SECOND * 5);
    advance(MILLI * 50).await;
    assert!(poll(&mut second).is_pending(), "the reply has come, and its slot has not");
    drop(second);
    assert_eq!((backend.refunds(), limiter.stats().waiting), (1, 0));
    let start = Instant::now();
    drop(limiter.acquire(&by("acme"), SECOND * 5).await.unwrap());
    assert_eq!(start.elapsed(), MILLI * 950, "the slot was free again");
}

#[tokio::test(start_paused = true)]
async fn in_a_queue_a_wait_counts_from_the_reply_too() {
    let rule = Rule::new("r").tier(Quota::concurrent(1)).tier(Quota::per_second(1));
    let (limiter, backend) = on_its_clock(policy([rule]));
    let first = limiter.acquire(&by("acme"), SECOND).await.unwrap();
    let start = Instant::now();
    backend.set(Fault::None);
    let mut second = arrive(&limiter, "acme", SECOND * 9);
    advance(MILLI * 300).await;
    backend.set(Fault::Slow);
    drop(first);
    assert!(poll(&mut second).is_pending(), "it asks the backend again");
    advance(MILLI * 40).await;
    let permit = second.await.unwrap();
    assert_eq!(start.elapsed(), MILLI * 1_040, "300 in the queue, 40 for the reply, and the 700 that it says");
    assert_eq!(permit.decision().wait(), MILLI * 1_040);
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_reply_counts_towards_the_wait_in_the_queue() {
    let (limiter, backend) = on_its_clock(Quota::concurrent(1));
    let _first = limiter.acquire(&by("acme"), SECOND).await.unwrap();
    let start = Instant::now();
    let mut second = arrive(&limiter, "acme", MILLI * 500);
    advance(MILLI * 200).await;
    assert!(poll(&mut second).is_pending(), "it is queued");
    backend.set(Fault::None);
    assert!(second.await.is_err());
    // Timers fire up to a millisecond late.
    assert!(start.elapsed() <= MILLI * 501, "{:?}", start.elapsed());
    assert_eq!(limiter.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_shadow_rule_settles_and_releases_in_the_backends_time() {
    let shadow = Rule::new("shadow").shadow(true).settle(true).tier(Quota::per_hour(2));
    let slots = Rule::new("slots").shadow(true).tier(Quota::concurrent(1));
    let (limiter, _) = on_its_clock(policy([shadow, slots]));
    let first = arrive(&limiter, "acme", SECOND);
    advance(MILLI * 40).await;
    first.await.unwrap().refund();
    for _ in 0..2 {
        drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    }
    assert_eq!(limiter.stats().shadow_rejected, 0);
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    assert_eq!(limiter.stats().shadow_rejected, 1);
}

/// The fallback limiter decides at the time of the error, not of the request.
#[tokio::test(start_paused = true)]
async fn a_late_error_is_decided_by_the_time_at_which_it_came() {
    let clock = ManualClock::new();
    let backend = FaultyBackend::new(Local::new());
    let limiter = RateLimiter::builder()
        .policy(policy([local("r", Quota::per_second(1))]))
        .backend(backend.clone())
        .clock(clock.clone())
        .build()
        .unwrap();
    backend.set(DOWN);
    assert_eq!(admitted(&limiter, "acme", 2).await, 1);
    backend.set(Fault::LostReply);
    let mut second = arrive(&limiter, "acme", Duration::ZERO);
    clock.advance(SECOND);
    assert!(matches!(poll(&mut second), Poll::Ready(Ok(_))), "its unit was refilled meanwhile");
}
