//! Many workers send messages from a queue to an API with a rate limit. Each
//! worker waits for its reservation without a bound. The queue applies
//! backpressure, nothing is rejected, and the workers use the API's whole rate.
//!
//! `cargo run --example queue_consumer [-- RATE WORKERS SECONDS]`

use std::{
    env,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
    time::{self, Instant},
};
use tower_ratelimit::{Descriptor, Quota, RateLimiter};

type Error = Box<dyn std::error::Error + Send + Sync>;
type Queue = Arc<Mutex<mpsc::Receiver<u64>>>;

const SECOND: Duration = Duration::from_secs(1);

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

    let (queue, sent, start) = (Arc::new(Mutex::new(queue)), Arc::new(AtomicU64::new(0)), Instant::now());
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        tasks.spawn(work(Arc::clone(&queue), limiter.clone(), Arc::clone(&sent)));
    }
    let progress = tokio::spawn(report(limiter, Arc::clone(&sent), start));
    let mut last = start;
    while let Some(worker) = tasks.join_next().await {
        last = last.max(worker??);
    }
    progress.abort();

    let (sent, took) = (sent.load(Relaxed), last - start);
    let measured = (sent - 1) as f64 / took.as_secs_f64();
    println!("sent all {sent}, the last after {took:.3?}: {measured:.1} per second of {rate} allowed");
    Ok(())
}

/// Sends messages until the queue is empty. Returns the time of the last
/// admission.
async fn work(queue: Queue, limiter: RateLimiter, sent: Arc<AtomicU64>) -> Result<Instant, Error> {
    let (api, mut last) = (Descriptor::new("/messages"), Instant::now());
    loop {
        let message = queue.lock().await.recv().await;
        let Some(message) = message else { return Ok(last) };
        // Cancelled here, the worker releases its reservation and loses the
        // message. Use a queue with acknowledgements where that matters.
        let permit = limiter.acquire(&api, Duration::MAX).await?;
        last = Instant::now();
        sent.fetch_add(1, Relaxed);
        send(message).await;
        drop(permit);
    }
}

/// Simulates the call: a round trip much longer than the interval between two
/// reservations.
async fn send(message: u64) {
    time::sleep_until(Instant::now() + Duration::from_millis(20 + message % 50)).await;
}

async fn report(limiter: RateLimiter, sent: Arc<AtomicU64>, start: Instant) {
    let mut ticks = time::interval_at(start + SECOND, SECOND);
    let mut before = 0;
    for second in 1_u64.. {
        ticks.tick().await;
        let now = sent.load(Relaxed);
        println!("{second} s: {now} sent, {} in this second, {} wait", now - before, limiter.stats().waiting);
        before = now;
    }
}
