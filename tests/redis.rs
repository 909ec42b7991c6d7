//! `backend::Redis` on real servers: alone, in a cluster, behind a sentinel;
//! frozen, killed, restarted, and given all that may be wrong with one.
#![cfg(all(feature = "redis", feature = "test-util"))]
#![allow(clippy::unwrap_used)]

#[path = "redis/adapting.rs"]
mod adapting;
#[path = "common/algorithms.rs"]
mod algorithms;
#[path = "redis/bad_keys.rs"]
mod bad_keys;
#[path = "redis/bad_servers.rs"]
mod bad_servers;
#[path = "redis/bad_settings.rs"]
mod bad_settings;
#[cfg(feature = "redis-tls")]
#[path = "common/certificates.rs"]
mod certificates;
#[path = "redis/cluster.rs"]
mod cluster;
#[path = "redis/clustered.rs"]
mod clustered;
#[path = "redis/conformance.rs"]
mod conformance;
#[path = "redis/cooldown.rs"]
mod cooldown;
#[path = "redis/differential.rs"]
mod differential;
#[path = "redis/failures.rs"]
mod failures;
#[path = "redis/fleet.rs"]
mod fleet;
#[path = "redis/keys.rs"]
mod keys;
#[path = "redis/load.rs"]
mod load;
#[path = "redis/memory.rs"]
mod memory;
#[path = "redis/permissions.rs"]
mod permissions;
#[path = "redis/promises.rs"]
mod promises;
#[path = "redis/schedule.rs"]
mod schedule;
#[path = "redis/sentinel.rs"]
mod sentinel;
#[path = "redis/server.rs"]
mod server;
#[cfg(feature = "redis-tls")]
#[path = "redis/tls.rs"]
mod tls;

use std::{error::Error, time::Duration};

use tokio::{
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Instant, MissedTickBehavior, interval},
};
use tower_ratelimit::{
    BackendError, Descriptor, FailureMode, Policy, Quota, RateLimitedKind, RateLimiter, Rule, backend::Redis,
    error::BackendErrorKind,
};

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much later than it should a busy machine may do what it is asked for.
const SCHEDULING: Duration = Duration::from_millis(250);

/// The outer deadline that a backend has unless it is told another.
const DEADLINE: Duration = Duration::from_millis(50);

/// A deadline for tests that are not about it: a busy machine keeps it.
const LONG: Duration = Duration::from_secs(10);

static MACHINE: RwLock<()> = RwLock::const_new(());

/// For tests that measure time: no other one runs meanwhile.
async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// For all others.
async fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// Looks again and again until there is something to be found.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
    }
}

/// A backend that a slow machine does not make fail.
async fn patient(url: String) -> Redis {
    Redis::builder().url(url).deadline(LONG).connect().await.unwrap()
}

fn limiter(policy: impl Into<Policy>, redis: &Redis) -> RateLimiter {
    RateLimiter::builder().policy(policy).backend(redis.clone()).build().unwrap()
}

/// One rule for all paths, that shows when there is no answer.
fn closed(quota: Quota) -> Policy {
    Policy::new().rule(Rule::new("closed").tier(quota).on_backend_failure(FailureMode::Closed))
}

/// How a request is answered, as a caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Admitted,
    Rejected,
    NoAnswer,
}

async fn ask(limiter: &RateLimiter, path: &str, tenant: &str) -> Seen {
    let decision = limiter.check(&Descriptor::new(path).method("GET").tenant(tenant)).await;
    match decision.rejection() {
        None => Seen::Admitted,
        Some(RateLimitedKind::BackendUnavailable) => Seen::NoAnswer,
        Some(_) => Seen::Rejected,
    }
}

/// Why a rule that fails closed rejects for want of an answer.
async fn failure(limiter: &RateLimiter, tenant: &str) -> Option<BackendError> {
    let rejected = limiter.acquire(&Descriptor::new("/").tenant(tenant), Duration::ZERO).await.err()?;
    rejected.source()?.downcast_ref::<BackendError>().cloned()
}

async fn failure_kind(limiter: &RateLimiter, tenant: &str) -> Option<BackendErrorKind> {
    failure(limiter, tenant).await.map(|error| error.kind())
}

/// An error with all that caused it, in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
