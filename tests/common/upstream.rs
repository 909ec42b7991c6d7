//! An upstream with a limit of its own, and clients that call it, on paused time.
#![allow(clippy::cast_precision_loss)]
#![allow(clippy::disallowed_methods, reason = "time is paused, and upstreams take some")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule, testing::TokioClock};

const MS: Duration = Duration::from_millis(1);

pub(crate) fn limiter(rule: Rule) -> RateLimiter {
    RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default()).build().unwrap()
}

/// What an upstream admitted and rejected, by seconds.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) limiter: RateLimiter,
    start: Instant,
    round_trip: Duration,
    pub(crate) seen: Arc<Mutex<Vec<[u64; 2]>>>,
}

impl Upstream {
    pub(crate) fn new(quota: Quota, round_trip: Duration) -> Self {
        Self {
            limiter: limiter(Rule::new("allowance").tier(quota)),
            start: Instant::now(),
            round_trip,
            seen: Arc::default(),
        }
    }

    async fn admits_request(&self) -> bool {
        sleep(self.round_trip / 2).await;
        let admits = self.limiter.check(&Descriptor::new("/")).await.is_allowed();
        let second = usize::try_from(self.start.elapsed().as_secs()).unwrap();
        {
            let mut seen = self.seen.lock().unwrap();
            if seen.len() <= second {
                seen.resize(second + 1, [0; 2]);
            }
            seen[second][usize::from(!admits)] += 1;
        }
        sleep(self.round_trip / 2).await;
        admits
    }

    /// The admissions a second, and the fraction of rejections.
    pub(crate) fn rates(&self, seconds: std::ops::Range<usize>) -> (f64, f64) {
        let seen = self.seen.lock().unwrap();
        let none = [0; 2];
        let counts = seconds.clone().map(|second| seen.get(second).unwrap_or(&none));
        let [admitted, rejected] = counts.fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
        (admitted as f64 / seconds.len() as f64, rejected as f64 / (admitted + rejected).max(1) as f64)
    }
}

/// `tasks` call the upstream for so long, each as soon as it may. After a
/// rejection none does for a second, if it `cools_down`.
pub(crate) async fn call(
    limiter: &RateLimiter,
    upstream: &Upstream,
    tenant: &'static str,
    tasks: usize,
    seconds: u64,
    cools_down: bool,
) {
    let (end, paused_until) = (Instant::now() + Duration::from_secs(seconds), Arc::new(Mutex::new(Instant::now())));
    let mut set = JoinSet::new();
    for _ in 0..tasks {
        let (limiter, upstream, paused_until) = (limiter.clone(), upstream.clone(), Arc::clone(&paused_until));
        set.spawn(async move {
            while Instant::now() < end {
                let until = *paused_until.lock().unwrap();
                sleep_until(until).await;
                let request = Descriptor::new("/").tenant(tenant);
                let Ok(permit) = limiter.acquire(&request, Duration::from_secs(600)).await else { panic!() };
                match upstream.admits_request().await {
                    true => permit.report_success(),
                    false => {
                        permit.report_rejection();
                        if cools_down {
                            *paused_until.lock().unwrap() = Instant::now() + 1_125 * MS;
                        }
                    }
                }
            }
        });
    }
    let _ = tokio::time::timeout_at(end, async { while set.join_next().await.is_some() {} }).await;
}
