//! The real server: axum on one core, each request burns 5 ms of CPU.
//!
//! Two kinds of handler. `pool` burns in Tokio's pool of blocking threads, which has two, so
//! that the executor stays free and requests wait where the layers see them. `inline`
//! burns in the handler itself: nothing is in flight but what runs, and requests wait in
//! sockets, where no limit of concurrency can see them.

use std::{
    io::{Error, Result, Write},
    time::Duration,
};

use axum::{Router, error_handling::HandleErrorLayer, http::StatusCode, routing::get};
use tower::{BoxError, ServiceBuilder, limit::ConcurrencyLimitLayer, load_shed::LoadShedLayer};
use tower_ratelimit::{
    Policy, Priority, Quota, RateLimitLayer, RateLimiter, Rule,
    overload::{Overload, scheduling_delay},
    priority,
};
use tower_resilience_adaptive::AdaptiveLimiterLayer;

use crate::peers;

const WORK: Duration = Duration::from_millis(5);
/// Two run, and some wait: 50 ms.
const LIMIT: usize = 10;

pub(crate) const PROTECTIONS: [&str; 8] = [
    "no protection",
    "tower: ConcurrencyLimit, LoadShed",
    "tower-resilience-adaptive: Aimd",
    "tower-resilience-adaptive: Vegas",
    "tower-ratelimit: concurrent, reserve",
    "tower-ratelimit: adaptive concurrency, reserve",
    "tower-ratelimit: overload",
    "tower-ratelimit: concurrent, overload",
];

/// Serves on the loopback interface. Prints its port when it is ready.
pub(crate) fn serve(protection: &str, handler: &str) -> Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).max_blocking_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let app = match handler {
            "pool" => {
                Router::new().route("/", get(async || tokio::task::spawn_blocking(burn).await.is_ok().to_string()))
            }
            _ => Router::new().route("/", get(async || burn())),
        };
        let app = protect(protection, app).ok_or_else(|| Error::other("no such protection"))?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        std::io::stdout().flush()?;
        // Without its state, axum applies the layers again to each request, so that each
        // would have its own limit by `tower` or the peer.
        axum::serve(listener, app.with_state::<()>(())).await
    })
}

/// The CPU time of this thread, so that a busy machine makes it no shorter.
fn burn() {
    let start = cpu_time();
    while cpu_time() - start < WORK {
        std::hint::spin_loop();
    }
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every kernel has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn protect(name: &str, app: Router) -> Option<Router> {
    let shed = HandleErrorLayer::new(async |_: BoxError| StatusCode::SERVICE_UNAVAILABLE);
    let shed = ServiceBuilder::new().layer(shed).layer(LoadShedLayer::new());
    let limited =
        |quota| Policy::new().rule(Rule::new("all").per([]).tier(quota).reserve(Priority::Critical, 0.2));
    let limit = limited(Quota::concurrent(LIMIT as u64));
    let overload = || Overload::new().signal(scheduling_delay(), 0.020);
    let ours = |policy: Policy| {
        let limiter = RateLimiter::new(policy).expect("a valid policy");
        RateLimitLayer::new(limiter).priority(priority::header("x-priority"))
    };
    Some(match PROTECTIONS.iter().position(|known| *known == name)? {
        0 => app,
        1 => app.layer(shed.layer(ConcurrencyLimitLayer::new(LIMIT))),
        2 => app.layer(shed.layer(AdaptiveLimiterLayer::new(peers::aimd()))),
        3 => app.layer(shed.layer(AdaptiveLimiterLayer::new(peers::vegas()))),
        4 => app.layer(ours(limit)),
        5 => app.layer(ours(limited(Quota::adaptive_concurrency(2..=200)))),
        6 => app.layer(ours(Policy::new().overload(overload()))),
        _ => app.layer(ours(limit.overload(overload()))),
    })
}
