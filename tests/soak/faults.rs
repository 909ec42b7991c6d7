//! Faults of the store: it freezes, drops connections, runs out of memory, and
//! restarts without its data.

use std::time::Duration;

use redis::RedisError;
use tokio::{
    task::block_in_place,
    time::{Instant, interval_at},
};

use super::{ledger::Ledger, pause, redis_server::Server};

const PERIOD: Duration = Duration::from_secs(5);

/// Injects one fault after another until shortly before `end`. Returns how many.
pub(crate) async fn inject(redis: &mut Server, ledger: &Ledger, end: Instant) -> usize {
    let mut ticks = interval_at(Instant::now() + PERIOD, PERIOD);
    let mut faults = 0;
    while ticks.tick().await + PERIOD < end {
        ledger.fault();
        match faults % 4 {
            0 => {
                block_in_place(|| redis.freeze());
                pause(Duration::from_millis(1_500)).await;
                block_in_place(|| redis.thaw());
            }
            1 => drop(command(redis, &["CLIENT", "KILL", "TYPE", "normal"]).await),
            2 => {
                let _ = command(redis, &["CONFIG", "SET", "maxmemory", "1mb"]).await;
                pause(Duration::from_millis(1_500)).await;
                let _ = command(redis, &["CONFIG", "SET", "maxmemory", "0"]).await;
            }
            _ => {
                block_in_place(|| redis.kill());
                pause(Duration::from_millis(500)).await;
                redis.restart().await;
            }
        }
        // What it hid or lost shows once it is back.
        ledger.fault();
        faults += 1;
    }
    faults
}

async fn command(redis: &Server, words: &[&str]) -> Result<(), RedisError> {
    let mut connection = redis.connection().await?;
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command.query_async(&mut connection).await
}
