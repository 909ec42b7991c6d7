use std::time::Duration;

use super::super::{
    super::ticks::{MEMORY, TICK},
    *,
};

fn ticks(start: Instant, delays: &[u64]) -> Ticks {
    let mut ticks = Ticks::new(start);
    for delay in delays {
        let now = ticks.due + Duration::from_millis(*delay);
        ticks.fire(now);
    }
    ticks
}

/// That of a queue which is never empty.
#[test]
fn the_delay_is_the_least_of_a_tenth_of_a_second() {
    let start = Instant::now();
    let some = ticks(start, &[0, 0, 0, 0, 0, 30, 25, 30]);
    let now = some.due;
    assert_eq!(some.delay(now), Duration::from_millis(25), "three timers in 100 ms");
    assert_eq!(some.delay(now + TICK / 2), Duration::from_millis(25), "the next one is late by less so far");
    assert_eq!(ticks(start, &[0; 40]).delay(start), Duration::ZERO);
    assert!(ticks(start, &[0; 40]).fired.len() <= 6, "what is older is forgotten");
    assert_eq!(some.delay(now + MEMORY), MEMORY, "no timer has fired for as long");
}

#[test]
fn a_burst_is_no_delay() {
    let burst = ticks(Instant::now(), &[0, 0, 60, 0]);
    assert_eq!(burst.delay(burst.due), Duration::ZERO);
}

/// One timer fires for all that were due while the executor was blocked.
#[test]
fn a_blocked_executor_shows_at_once() {
    let start = Instant::now();
    let blocked = ticks(start, &[0, 0, 0, 0, 1_500]);
    let now = blocked.due;
    assert_eq!(blocked.delay(now), Duration::from_millis(1_500));
}

#[tokio::test(start_paused = true)]
async fn its_task_ends_with_it() {
    let signal = SchedulingDelay::default();
    assert!(signal.load() < 1.0);
    let task = Arc::downgrade(lock(&signal.ticks).as_ref().unwrap());
    tokio::time::sleep(10 * TICK).await;
    assert_eq!(task.strong_count(), 1);
    drop(signal);
    tokio::time::sleep(10 * TICK).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}
