//! Many workers send messages from a queue to an API with a rate limit. Each
//! worker waits for its reservation without a bound. The queue applies
//! backpressure, nothing is rejected, and the workers use the API's whole rate.
//!
//! `cargo run --example queue_consumer [-- RATE WORKERS SECONDS]`

use std::{env, sync::Arc, time::Duration};

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tower_ratelimit::{Descriptor, Quota, RateLimiter};

type Error = Box<dyn std::error::Error + Send + Sync>;
type Queue = Arc<Mutex<mpsc::Receiver<u64>>>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let argument = |index, default| env::args().nth(index).map_or(Ok(default), |text| text.parse());
    let (rate, workers, seconds) = (argument(1, 200)?, argument(2, 300)? as usize, argument(3, 5)?);

    // A burst of 1 spaces the calls evenly. A higher burst catches up after the
    // queue was empty.
    let limiter = RateLimiter::builder()
        .policy(Quota::per_second(rate).burst(1))
        // Every worker may wait. The default limit is 10,000 waiters a key.
        .max_waiters_per_key(workers)
        .build()?;

    // The first message is sent at once, so the last is due after exactly
    // `seconds`.
    let messages = rate * seconds + 1;
    let (sender, queue) = mpsc::channel(1_000);
    tokio::spawn(async move {
        for message in 0..messages {
            if sender.send(message).await.is_err() {
                break;
            }
        }
    });

    let (queue, start) = (Arc::new(Mutex::new(queue)), Instant::now());
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        tasks.spawn(work(Arc::clone(&queue), limiter.clone()));
    }
    let (mut sent, mut last) = (0, start);
    while let Some(worker) = tasks.join_next().await {
        let (sent_by_worker, last_of_worker) = worker??;
        (sent, last) = (sent + sent_by_worker, last.max(last_of_worker));
    }
    let took = last - start;
    let measured = (sent - 1) as f64 / took.as_secs_f64();
    println!("sent all {sent}, the last after {took:.3?}: {measured:.1} per second of {rate} allowed");
    Ok(())
}

/// Sends messages until the queue is empty. Returns how many, and when the last one
/// was admitted.
async fn work(queue: Queue, limiter: RateLimiter) -> Result<(u64, Instant), Error> {
    let (api, mut sent, mut last) = (Descriptor::new("/messages"), 0, Instant::now());
    loop {
        let message = queue.lock().await.recv().await;
        let Some(message) = message else { return Ok((sent, last)) };
        // Cancelled here, the worker releases its reservation and loses the
        // message. Use a queue with acknowledgements where that matters.
        let permit = limiter.acquire(&api, Duration::MAX).await?;
        (sent, last) = (sent + 1, Instant::now());
        send(message).await;
        drop(permit);
    }
}

/// Simulates the call: a round trip much longer than the interval between two
/// reservations.
async fn send(message: u64) {
    sleep_until(Instant::now() + Duration::from_millis(20 + message % 50)).await;
}
