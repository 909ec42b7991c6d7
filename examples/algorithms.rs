//! When each algorithm admits requests: a limit of 10 a second, and a caller that
//! sends one every 10 ms, from the middle of a second on.
//!
//! `cargo run --example algorithms`
//!
//! The clock is stepped, so the output is the same each time.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tower_ratelimit::{
    Algorithm, Descriptor, Quota, RateLimiter,
    time::{Clock, Timestamp},
};

/// Nanoseconds since the Unix epoch.
#[derive(Clone, Debug)]
struct Stepped(Arc<AtomicU64>);

impl Clock for Stepped {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// One character for each 50 ms: how many requests were admitted.
fn admissions(algorithm: Algorithm) -> Result<String, Box<dyn Error>> {
    let clock = Stepped(Arc::new(AtomicU64::new(1_704_067_200_500_000_000)));
    let quota = Quota::per_second(10).algorithm(algorithm);
    let limiter = RateLimiter::builder().policy(quota).clock(clock.clone()).build()?;
    let caller = Descriptor::new("/").tenant("acme");
    let mut line = String::new();
    for _ in 0..60 {
        let mut admitted = 0;
        for _ in 0..5 {
            admitted += u32::from(limiter.try_check(&caller).is_some_and(|decision| decision.is_allowed()));
            clock.0.fetch_add(u64::try_from(Duration::from_millis(10).as_nanos())?, Ordering::Relaxed);
        }
        line += &if admitted == 0 { "·".to_owned() } else { admitted.to_string() };
    }
    Ok(line)
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:16}0.5 s     1 s                 2 s                 3 s", "");
    // A concurrency limit counts no rate.
    let rates = Algorithm::ALL.iter().copied().filter(|algorithm| *algorithm != Algorithm::Concurrency);
    for algorithm in rates {
        println!("{:16}{}", algorithm.as_str(), admissions(algorithm)?);
    }
    Ok(())
}
