//! Decides as neither `Local` nor `Split` do: `CASE COUNT`, for `scripts/instructions`.
//! `decorated` is the general way, by `Local` behind a decorator; `leased` is by units that
//! `Redis` leased from the server on port `REDIS_PORT`.
//!
//! A binary of its own, with the feature `redis`: the others are built without it.

use std::{
    env,
    hint::black_box,
    process::ExitCode,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use tower_ratelimit::{
    Consistency, Decision, Descriptor, Policy, Quota, RateLimiter, Rule,
    backend::{Backend, Decide, Local, Receipt, Redis, Request},
    time::Timestamp,
};

/// No decision is rejected, whatever the count.
const PLENTY: u64 = 60_000_000_000;

const KEYS: usize = 25;

/// Decisions before the first that is counted: the store leases by demand.
const WARM_UP: usize = 40_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let [_, case, count] = arguments.as_slice() else { return ExitCode::FAILURE };
    let (Some(limiter), Ok(count)) = (limiter(case), count.parse()) else { return ExitCode::FAILURE };
    let tenants: Vec<String> = (0..KEYS).map(|key| format!("tenant-{key:07}")).collect();
    tenants.iter().cycle().take(WARM_UP).for_each(|tenant| drop(check(&limiter, tenant)));
    decide_repeatedly(&limiter, &tenants, count);
    ExitCode::SUCCESS
}

/// Callgrind collects only in here.
#[inline(never)]
fn decide_repeatedly(limiter: &RateLimiter, tenants: &[String], count: usize) {
    for tenant in tenants.iter().cycle().take(count) {
        black_box(check(black_box(limiter), black_box(tenant)));
    }
}

fn limiter(case: &str) -> Option<RateLimiter> {
    let rule = Rule::new("rule").tier(Quota::per_minute(PLENTY));
    let limiter = RateLimiter::builder();
    Some(
        match case {
            "decorated" => limiter.policy(Policy::new().rule(rule)).backend(Decorated(Local::new())).build(),
            "leased" => {
                let rule = rule.consistency(Consistency::Leased).sync_interval(Duration::from_secs(10));
                let url = format!("redis://127.0.0.1:{}", env::var("REDIS_PORT").ok()?);
                // Under callgrind the thread of the backend is slow as well.
                let redis = Redis::builder().url(url).deadline(Duration::from_secs(60));
                let redis = redis.connect_timeout(Duration::from_secs(60)).connect();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
                limiter.policy(Policy::new().rule(rule)).backend(runtime.block_on(redis).expect("a server")).build()
            }
            _ => return None,
        }
        .expect("a valid policy"),
    )
}

#[derive(Debug)]
struct Decorated(Local);

impl Backend for Decorated {
    fn decide(&self, request: &Request<'_>) -> Decide {
        self.0.decide(request)
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.0.refund(receipt, now);
    }
}

fn check(limiter: &RateLimiter, tenant: &str) -> Decision {
    let descriptor = Descriptor::new("/product/7").method("GET").tenant(tenant);
    block_on(limiter.check(&descriptor))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls once without a waker, as nearly all are ready then.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    wait_for(future)
}

/// Out of the way of the count.
#[cold]
#[inline(never)]
fn wait_for<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> T {
    let waker = Arc::new(Unpark(thread::current())).into();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}
