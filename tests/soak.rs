//! A soak: mixed load, floods, reloads and store faults against real servers and
//! a real Redis, for as many seconds as `SOAK_SECONDS` says. Run it by
//! `scripts/soak`.
//!
//! It reports and checks over-admissions, decisions beyond their deadline,
//! memory, file descriptors, and waiters and permits that are left.
#![allow(clippy::unwrap_used)]

#[path = "soak/callers.rs"]
mod callers;
#[path = "soak/faults.rs"]
mod faults;
#[path = "soak/ledger.rs"]
mod ledger;
#[path = "redis/server.rs"]
#[allow(dead_code, reason = "the tests of Redis use the rest")]
mod redis_server;
#[path = "soak/site.rs"]
mod site;
#[path = "soak/usage.rs"]
mod usage;

use std::{env, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout};

use self::{callers::Callers, ledger::Ledger, redis_server::Server, site::Site, usage::Usage};

/// The deadline of a decision by Redis.
const DEADLINE: Duration = Duration::from_millis(50);

/// How late a busy machine may run a task whose time has come.
const SCHEDULING: Duration = Duration::from_millis(250);

/// Connections and watches that begin after the first measurement, and stay.
const LAZY: usize = 16;

async fn pause(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes of real time"]
async fn nothing_leaks_and_no_limit_is_exceeded() {
    let seconds = env::var("SOAK_SECONDS").map_or(600, |text| text.parse().expect("SOAK_SECONDS is a number"));
    let duration = Duration::from_secs(seconds);
    let mut redis = Server::start().await;
    let ledger = Arc::new(Ledger::default());
    let site = Site::start(&redis, &ledger).await;
    let before = Usage::now();

    let end = Instant::now() + duration;
    let callers = Callers::start(&site, end);
    let reloads = tokio::spawn(site.reloads(end));
    let stalls = tokio::spawn(callers::stalls(end));
    // The first quarter fills tables, buffers and pools.
    let warmed_up = tokio::spawn(async move {
        sleep_until(end - duration * 3 / 4).await;
        Usage::now()
    });
    let faults = faults::inject(&mut redis, &ledger, end).await;
    let counts = callers.join().await;
    let (reloads, warmed_up) = (reloads.await.unwrap(), warmed_up.await.unwrap());
    let late = counts.late(&stalls.await.unwrap());

    // Connections close, leases end and waiters leave.
    let idle = timeout(Duration::from_secs(30), async {
        while !site.is_idle() || Usage::now().descriptors > before.descriptors + LAZY {
            pause(Duration::from_millis(100)).await;
        }
    });
    let _ = idle.await;
    let after = Usage::now();

    println!("{seconds} s, {reloads} reloads, {faults} faults");
    println!("{counts}, {late} late where the machine did not stall");
    let over = ledger.report();
    println!("over-admissions: {over}");
    println!("memory: {before} before, {warmed_up} warmed up, {after} after");
    println!("left: {} waiters, {} permits", site.waiting(), site.permits());

    assert!(counts.admitted > 0 && counts.rejected > 0 && counts.failed > 0, "the load is mixed");
    assert_eq!(over, 0, "over-admissions");
    assert_eq!(late, 0, "decisions beyond their deadline");
    assert_eq!((site.waiting(), site.permits()), (0, 0), "waiters and permits left");
    assert!(after.descriptors <= before.descriptors + LAZY, "file descriptors");
    assert!(after.kib <= warmed_up.kib + warmed_up.kib / 5 + (16 << 10), "memory grows");
}
