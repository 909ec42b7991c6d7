//! Timeouts in paused time.

use std::future::pending;

use tokio::time::advance;

use super::*;

const DEADLINE: Duration = Duration::from_millis(160);
const TICK: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn a_timeout_fires_at_most_one_tick_early() {
    let deadline = SharedDeadline::new(DEADLINE, Home::new());
    for early in [0, 3, 9, 10, 25] {
        advance(Duration::from_millis(early)).await;
        let start = Instant::now();
        assert_eq!(deadline.within(pending::<()>()).await, None);
        let took = start.elapsed();
        assert!(took <= DEADLINE && took + TICK >= DEADLINE, "{took:?}");
    }
}

#[test]
fn a_caller_on_another_runtime_is_woken_by_its_own() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (idle, own) = (runtime(), runtime());
    let deadline = idle.block_on(async { SharedDeadline::new(DEADLINE, Home::new()) });
    assert_eq!(own.block_on(deadline.within(pending::<()>())), None);
    // After that runtime is dropped, the next one drives its own.
    drop(own);
    assert!(lock(&deadline.ticks).is_empty());
    assert_eq!(runtime().block_on(deadline.within(pending::<()>())), None);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_ends_in_time_returns_its_output() {
    let deadline = SharedDeadline::new(DEADLINE, Home::new());
    assert_eq!(deadline.within(async { 5 }).await, Some(5));
    let slow = deadline.within(tokio::time::timeout(DEADLINE - 2 * TICK, pending::<()>()));
    assert!(slow.await.is_some());
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_tick_share_a_timer_that_ends_with_it() {
    let deadline = SharedDeadline::new(DEADLINE, Home::new());
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let others = tasks();
    let timers = || tasks() - others;
    let within = |limit| deadline.within(tokio::time::timeout(limit, pending::<()>()));
    for _ in 0..3 {
        assert!(within(TICK / 5).await.is_some() && within(TICK / 5).await.is_some());
        assert_eq!(timers(), 1);
        advance(TICK).await;
        assert!(within(TICK / 5).await.is_some());
        assert_eq!(timers(), 2);
        let _ = tokio::time::timeout(DEADLINE + 2 * TICK, pending::<()>()).await;
        assert_eq!((timers(), lock(&deadline.ticks).len()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_arrives_while_the_runtime_is_late_counts() {
    let deadline = SharedDeadline::new(DEADLINE, Home::new());
    let reply = tokio::spawn(async {
        sleep_until(Instant::now() + DEADLINE / 2).await;
        // The reply passes through another task.
        tokio::task::yield_now().await;
    });
    let waiting = tokio::spawn(async move { deadline.within(reply).await.is_some() });
    tokio::task::yield_now().await;
    advance(2 * DEADLINE).await;
    assert!(waiting.await.unwrap());
}
