//! How long decisions take while the server is killed and restarted, by failure mode and
//! level of consistency.

use std::time::{Duration, Instant};

use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tower_ratelimit::{Consistency, Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis};

use crate::{
    AnyError,
    race::Times,
    server::Server,
    table::{Table, figure},
};

/// The server is killed once in this time, and is down for a quarter of it.
const PERIOD: Duration = Duration::from_secs(2);

/// The default of the backend.
const DEADLINE: Duration = Duration::from_millis(50);

const CALLERS: usize = 8;

const TENANTS: usize = 25;

/// How often each caller asks.
const PACE: Duration = Duration::from_millis(4);

/// What callers saw: how long their decisions took, and how many were admitted.
struct Seen {
    times: Times,
    admitted: u64,
}

/// Fails if one decision in a hundred takes longer than the deadline.
pub async fn run(seconds: u64) -> Result<(), AnyError> {
    let mut server = Server::start().await?;
    println!("{}, killed every {PERIOD:?} for {seconds} s; a deadline of {DEADLINE:?}.", server.version().await?);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut running = Vec::new();
    for level in [Consistency::Exact, Consistency::Leased] {
        for (name, mode) in
            [("open", FailureMode::Open), ("closed", FailureMode::Closed), ("local", FailureMode::Local)]
        {
            let rule = Rule::new(format!("{name}-{level}")).tier(Quota::per_second(1_000_000)).consistency(level);
            let redis = Redis::builder().url(server.url()).deadline(DEADLINE).connect().await?;
            let policy = Policy::new().rule(rule.on_backend_failure(mode));
            let limiter = RateLimiter::builder().policy(policy).backend(redis).build()?;
            running.push((name, level, callers(&limiter, end)));
        }
    }
    while Instant::now() + PERIOD < end {
        sleep(PERIOD * 3 / 4).await;
        server.kill();
        sleep(PERIOD / 4).await;
        server.restart().await?;
    }
    let columns = ["failure mode", "level", "decisions", "admitted", "p50, ms", "p99, ms", "p99.9, ms", "longest, ms"];
    let mut table = Table::new("Decisions while the server is killed and restarted", columns);
    let mut slowest: f64 = 0.0;
    for (name, level, callers) in running {
        let Seen { times, admitted } = seen(callers).await?;
        let millis = |of| times.all_but_one_of(of) / 1_000.0;
        slowest = slowest.max(millis(100));
        let part = format!("{} %", figure(100.0 * admitted as f64 / times.count() as f64));
        let [p50, p99, p999, longest] = [2, 100, 1_000, u64::MAX].map(|of| figure(millis(of)));
        table.row([name.to_owned(), level.to_string(), times.count().to_string(), part, p50, p99, p999, longest]);
    }
    table.print();
    match slowest <= DEADLINE.as_secs_f64() * 1_000.0 {
        true => Ok(()),
        false => Err(format!("a p99 of {slowest} ms, beyond the deadline").into()),
    }
}

fn callers(limiter: &RateLimiter, end: Instant) -> JoinSet<Seen> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let limiter = limiter.clone();
        callers.spawn(async move {
            let mut ticks = interval(PACE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut seen = Seen { times: Times::new(), admitted: 0 };
            for request in caller.. {
                ticks.tick().await;
                let start = Instant::now();
                if start >= end {
                    break;
                }
                let tenant = format!("tenant-{}", request % TENANTS);
                let decision = limiter.check(&Descriptor::new("/").tenant(&*tenant)).await;
                seen.times.add(start.elapsed());
                seen.admitted += u64::from(decision.is_allowed());
            }
            seen
        });
    }
    callers
}

async fn seen(mut callers: JoinSet<Seen>) -> Result<Seen, AnyError> {
    let mut all = Seen { times: Times::new(), admitted: 0 };
    while let Some(seen) = callers.join_next().await {
        let Seen { times, admitted } = seen?;
        all.times.add_all(&times);
        all.admitted += admitted;
    }
    Ok(all)
}
