//! Hot reload from real files, servers and stores, which are killed, restarted,
//! frozen and filled with garbage.
#![allow(clippy::unwrap_used)]

#[path = "watch/etcd.rs"]
mod etcd;
#[path = "watch/fake.rs"]
mod fake;
#[path = "watch/file.rs"]
mod file;
#[path = "watch/http.rs"]
mod http;
#[path = "watch/redis.rs"]
mod redis;
#[path = "watch/reload.rs"]
mod reload;
#[path = "redis/server.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod server;
#[path = "watch/waiting.rs"]
mod waiting;

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tower_ratelimit::{
    Policy, Quota, RateLimiter,
    policy_source::{Watch, WatchHandle, WatchStatus},
};

/// The timeout of every wait in these tests.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a reload may take once the source has the policy.
const SOON: Duration = Duration::from_secs(1);

/// Documents that are rejected.
const GARBAGE: [&str; 8] = [
    "",
    "garbage",
    "{{{",
    "rules: 7",
    "rules: [{ id: all, tiers: [{ limit: 7, window: 0s }] }]",
    "rules: [{ id: all, tiers: [] }]",
    "instances: 96",
    "<html><title>502 Bad Gateway</title></html>",
];

fn yaml(limit: u64) -> String {
    format!("rules: [{{ id: all, tiers: [{{ limit: {limit}, window: 1h, algorithm: fixed-window }}] }}]")
}

fn policy(limit: u64) -> Policy {
    Policy::from_yaml(&yaml(limit)).unwrap()
}

/// Polls until `look` finds something.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut ticks = interval(Duration::from_millis(5));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "timed out waiting for {what}");
        ticks.tick().await;
    }
}

/// The policy of this limit. Whether it also has a number of instances is seen by the share.
fn expected(limiter: &RateLimiter, limit: u64) -> Policy {
    let expected = policy(limit);
    match limiter.policy().instance_count() {
        Some(count) => expected.instances(count),
        None => expected,
    }
}

/// A limiter that watches a source.
struct Watched {
    limiter: RateLimiter,
    handle: WatchHandle,
}

impl Watched {
    /// With an initial policy that no source holds.
    fn new(source: impl Into<Watch>) -> Self {
        let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
        let handle = limiter.watch(source).unwrap();
        Self { limiter, handle }
    }

    async fn wait_for(&mut self, what: &str, condition: impl FnMut(&WatchStatus) -> bool) -> WatchStatus {
        let waited = timeout(TIMEOUT, self.handle.wait_for(condition)).await;
        let status = waited.unwrap_or_else(|_| panic!("timed out waiting for {what}: {:?}", self.handle.status()));
        status.expect("the source has panicked")
    }

    /// Waits until this limit is in force and the status has no error.
    async fn follows(&mut self, limit: u64) {
        let limiter = self.limiter.clone();
        let what = format!("a limit of {limit}");
        self.wait_for(&what, |status| status.is_current() && *limiter.policy() == expected(&limiter, limit)).await;
    }

    /// [`follows`](Self::follows) within a second.
    async fn follows_soon(&mut self, limit: u64) {
        let start = Instant::now();
        self.follows(limit).await;
        assert!(start.elapsed() < SOON, "{limit} was in force only after {:?}", start.elapsed());
    }

    /// Waits for this error, and checks that the last good limit is in force.
    async fn keeps(&mut self, limit: u64, reason: &str) {
        let has_error = |status: &WatchStatus| status.error.as_deref().is_some_and(|error| error.contains(reason));
        self.wait_for(&format!("the error: {reason}"), has_error).await;
        assert_eq!(*self.limiter.policy(), expected(&self.limiter, limit), "the last good policy, while {reason}");
    }

    /// Waits for this many rejections, and checks that the last good limit is in
    /// force.
    async fn rejects(&mut self, rejected: u64, limit: u64) {
        let what = format!("{rejected} rejections");
        let status = self.wait_for(&what, |status| status.rejected >= rejected && status.error.is_some()).await;
        assert_eq!(status.rejected, rejected);
        assert_eq!(*self.limiter.policy(), expected(&self.limiter, limit));
    }
}
