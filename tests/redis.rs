//! `backend::Redis` on real servers: one server, a cluster, a sentinel; frozen,
//! killed, restarted, and misconfigured in every way.
#![cfg(all(feature = "redis", feature = "test-util"))]
#![allow(clippy::unwrap_used)]

#[path = "redis/adapting.rs"]
mod adapting;
#[path = "redis/adaptive_limits.rs"]
mod adaptive_limits;
#[path = "common/algorithms.rs"]
mod algorithms;
#[path = "redis/asking.rs"]
mod asking;
#[path = "redis/bad_keys.rs"]
mod bad_keys;
#[path = "redis/bad_servers.rs"]
mod bad_servers;
#[path = "redis/bad_settings.rs"]
mod bad_settings;
#[cfg(feature = "tls")]
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
#[path = "redis/full.rs"]
mod full;
#[path = "redis/idle.rs"]
mod idle;
#[path = "redis/keys.rs"]
mod keys;
#[path = "redis/leased.rs"]
mod leased;
#[path = "redis/leased_limits.rs"]
mod leased_limits;
#[path = "redis/levels.rs"]
mod levels;
#[path = "redis/levels_failing.rs"]
mod levels_failing;
#[path = "redis/load.rs"]
mod load;
#[cfg(feature = "tracing")]
#[path = "redis/log.rs"]
mod log;
#[path = "redis/memory.rs"]
mod memory;
#[path = "redis/months.rs"]
mod months;
#[path = "redis/nested.rs"]
mod nested;
#[path = "redis/permissions.rs"]
mod permissions;
#[path = "redis/promises.rs"]
mod promises;
#[path = "redis/reserves.rs"]
mod reserves;
#[path = "redis/runtime.rs"]
mod runtime;
#[path = "redis/schedule.rs"]
mod schedule;
#[path = "redis/sentinel.rs"]
mod sentinel;
#[path = "redis/server.rs"]
mod server;
#[path = "redis/set_back.rs"]
mod set_back;
#[cfg(feature = "tls")]
#[path = "redis/tls.rs"]
mod tls;
#[path = "redis/units.rs"]
mod units;

use std::{error::Error, time::Duration};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tower_ratelimit::{
    BackendError, Descriptor, FailureMode, Policy, Quota, RateLimitedKind, RateLimiter, Rule, backend::Redis,
    error::BackendErrorKind,
};

use self::server::until;

/// The longest time that a test waits for something.
const PATIENCE: Duration = Duration::from_secs(30);

/// How late a busy machine may be.
const SCHEDULING: Duration = Duration::from_millis(250);

/// The default deadline of a backend.
const DEADLINE: Duration = Duration::from_millis(50);

/// A deadline that a busy machine meets, for tests that are not about it.
const LONG: Duration = Duration::from_secs(10);

static MACHINE: RwLock<()> = RwLock::const_new(());

/// For tests that measure time: no other test runs meanwhile.
async fn exclusive_machine() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// For all other tests, which may run at the same time.
async fn shared_machine() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// A backend with a deadline that a slow machine meets.
async fn patient(url: String) -> Redis {
    Redis::builder().url(url).deadline(LONG).connect().await.unwrap()
}

fn limiter(policy: impl Into<Policy>, redis: &Redis) -> RateLimiter {
    RateLimiter::builder().policy(policy).backend(redis.clone()).build().unwrap()
}

/// One rule for all paths. It fails closed, so a backend failure shows.
fn closed(quota: Quota) -> Policy {
    Policy::new().rule(Rule::new("closed").tier(quota).on_backend_failure(FailureMode::Closed))
}

/// What the caller of a request sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Admitted,
    Rejected,
    Failed,
}

async fn ask(limiter: &RateLimiter, path: &str, tenant: &str) -> Seen {
    let decision = limiter.check(&Descriptor::new(path).method("GET").tenant(tenant)).await;
    match decision.rejection() {
        None => Seen::Admitted,
        Some(RateLimitedKind::BackendUnavailable) => Seen::Failed,
        Some(_) => Seen::Rejected,
    }
}

/// The backend failure for which a rule that fails closed rejects.
async fn failure(limiter: &RateLimiter, tenant: &str) -> Option<BackendError> {
    let rejected = limiter.acquire(&Descriptor::new("/").tenant(tenant), Duration::ZERO).await.err()?;
    rejected.source()?.downcast_ref::<BackendError>().cloned()
}

async fn failure_kind(limiter: &RateLimiter, tenant: &str) -> Option<BackendErrorKind> {
    failure(limiter, tenant).await.map(|error| error.kind())
}

/// An error and its causes, as one text.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
