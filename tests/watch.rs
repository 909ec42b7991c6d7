//! The policy in force is what a source says: real files, servers and stores,
//! killed, restarted, frozen and full of garbage.
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
#[path = "redis/server.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod server;
#[path = "watch/told.rs"]
mod told;
#[path = "watch/waiting.rs"]
mod waiting;

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tower_ratelimit::{
    Policy, Quota, RateLimiter,
    policy_source::{Watch, WatchStatus, Watching},
};

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a policy may take to be in force once it can be had.
const SOON: Duration = Duration::from_secs(1);

/// What cannot be put in force.
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

/// Looks again and again until there is something to be found.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut ticks = interval(Duration::from_millis(5));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        ticks.tick().await;
    }
}

/// A limiter, and what it watches.
struct Watched {
    limiter: RateLimiter,
    watching: Watching,
}

impl Watched {
    /// Under a policy that no source says.
    fn new(source: impl Into<Watch>) -> Self {
        let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
        let watching = limiter.watch(source).unwrap();
        Self { limiter, watching }
    }

    async fn wait_for(&mut self, what: &str, condition: impl FnMut(&WatchStatus) -> bool) -> WatchStatus {
        let waited = timeout(PATIENCE, self.watching.wait_for(condition)).await;
        let status = waited.unwrap_or_else(|_| panic!("waited in vain for {what}: {:?}", self.watching.status()));
        status.expect("the source has panicked")
    }

    /// Until this limit is in force, and nothing is wrong any more.
    async fn follows(&mut self, limit: u64) {
        let (limiter, policy) = (self.limiter.clone(), policy(limit));
        let what = format!("a limit of {limit}");
        self.wait_for(&what, |status| status.is_current() && *limiter.policy() == policy).await;
    }

    /// The same, within a second.
    async fn soon_follows(&mut self, limit: u64) {
        let start = Instant::now();
        self.follows(limit).await;
        assert!(start.elapsed() < SOON, "{limit} was in force only after {:?}", start.elapsed());
    }

    /// Until something is wrong, with the limit that was last in force.
    async fn stays_at(&mut self, limit: u64, why: &str) {
        let trouble = |status: &WatchStatus| status.trouble.as_deref().is_some_and(|trouble| trouble.contains(why));
        self.wait_for(&format!("trouble: {why}"), trouble).await;
        assert_eq!(*self.limiter.policy(), policy(limit), "the last good one, while {why}");
    }

    /// Until so many were rejected, with the limit that was last in force.
    async fn rejects(&mut self, rejected: u64, limit: u64) {
        let what = format!("{rejected} to be rejected");
        let status = self.wait_for(&what, |status| status.rejected >= rejected && status.trouble.is_some()).await;
        assert_eq!(status.rejected, rejected);
        assert_eq!(*self.limiter.policy(), policy(limit));
    }
}
