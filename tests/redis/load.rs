//! A steady load, and the decisions that it saw.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};
use tower_ratelimit::RateLimiter;

use super::{Seen, ask, until};

/// Requests one key at a steady pace, from several tasks, until it is ended.
#[derive(Debug)]
pub(crate) struct Load {
    ended: Arc<AtomicBool>,
    tasks: JoinSet<Vec<Outcome>>,
}

/// The decision on one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) start: Instant,
    pub(crate) took: Duration,
    pub(crate) seen: Seen,
}

impl Load {
    pub(crate) fn start(limiter: &RateLimiter, path: &'static str, tenant: &str, tasks: usize) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let mut set = JoinSet::new();
        for _ in 0..tasks {
            let (limiter, tenant, ended) = (limiter.clone(), tenant.to_owned(), Arc::clone(&ended));
            set.spawn(async move {
                let mut ticks = interval(Duration::from_millis(2));
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                let mut outcomes = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    ticks.tick().await;
                    let start = Instant::now();
                    let seen = ask(&limiter, path, &tenant).await;
                    outcomes.push(Outcome { start, took: start.elapsed(), seen });
                }
                outcomes
            });
        }
        Self { ended, tasks: set }
    }

    pub(crate) async fn end(self) -> Outcomes {
        self.ended.store(true, Ordering::Relaxed);
        Outcomes(self.tasks.join_all().await.into_iter().flatten().collect())
    }
}

/// Runs the load for a while.
pub(crate) async fn run_for(duration: Duration) {
    let start = Instant::now();
    until("time to pass", async || (start.elapsed() >= duration).then_some(())).await;
}

#[derive(Clone, Debug)]
pub(crate) struct Outcomes(pub(crate) Vec<Outcome>);

impl Outcomes {
    pub(crate) fn count(&self, seen: Seen) -> usize {
        self.0.iter().filter(|outcome| outcome.seen == seen).count()
    }

    /// Those of requests that started within a time.
    pub(crate) fn between(&self, from: Instant, to: Instant) -> Self {
        Self(self.0.iter().copied().filter(|outcome| outcome.start >= from && outcome.start < to).collect())
    }

    /// How long the slowest took, except for a `share` of them.
    pub(crate) fn slowest(&self, but_for: f64) -> Duration {
        let mut took: Vec<_> = self.0.iter().map(|outcome| outcome.took).collect();
        took.sort();
        let last = took.len().saturating_sub(1);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let index = (last as f64 * (1.0 - but_for)) as usize;
        took.get(index).copied().unwrap_or_default()
    }
}
