//! A server whose handlers block the executor, in the virtual time of `server.rs`.
//!
//! One worker polls all tasks in their order. Deciding, handling and rejecting a request
//! wait in that queue, and so does the timer whose delay is the signal. Used by
//! `tests/sim.rs` and `benches/overload`.
#![allow(dead_code, clippy::unwrap_used, clippy::disallowed_methods, reason = "each uses some of it, in paused time")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Response, StatusCode};
use http_body_util::Empty;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until},
};
use tower::{ServiceExt, service_fn, util::BoxCloneService};
use tower_ratelimit::{
    Policy, Quota,
    overload::{self, Overload},
};

use super::{
    protections::{limited, ours},
    server::{self, Handler, Phase, Plan, Protected, Second},
};

#[path = "../../src/overload/ticks.rs"]
mod ticks;

const WORK: Duration = Duration::from_millis(5);
/// Requests a second.
pub(crate) const CAPACITY: f64 = 200.0;
/// Of a request that is rejected, in milliseconds: its connection, its head and its response.
const REJECTION: f64 = 0.1;
const THRESHOLD: f64 = 0.020;

pub(crate) struct Executor {
    worker: Semaphore,
    ticks: Mutex<ticks::Ticks>,
    /// What timers of whole milliseconds cannot wait for: left to the next request.
    rest: Mutex<f64>,
}

/// Puts a protection around a handler.
pub(crate) type Protect = fn(Handler, &Arc<Executor>) -> Protected;

pub(crate) const CONTESTANTS: [(&str, Protect); 2] = [
    ("overload", |handler, executor| ours(shedding(Policy::new(), executor), handler)),
    ("concurrent, overload", |handler, executor| ours(shedding(limited(Quota::concurrent(10)), executor), handler)),
];

/// The loads are multiples of this [`CAPACITY`].
pub(crate) fn simulate(phases: &[Phase], seed: u64, protect: Protect) -> Vec<Second> {
    let scaled = |phase: &Phase| Phase { load: phase.load * CAPACITY / server::CAPACITY, ..*phase };
    let plan = Plan { phases: phases.iter().map(scaled).collect(), bimodal: false, seed };
    server::simulate(&plan, |_, _| on_executor(protect))
}

fn shedding(policy: Policy, executor: &Arc<Executor>) -> Policy {
    let executor = Arc::clone(executor);
    let delay = move || executor.delay().as_secs_f64();
    policy.overload(Overload::new().signal(overload::named("scheduling delay", delay), THRESHOLD))
}

fn on_executor(protect: Protect) -> Protected {
    let executor = Arc::new(Executor {
        worker: Semaphore::new(1),
        ticks: Mutex::new(ticks::Ticks::new(Instant::now().into_std())),
        rest: Mutex::default(),
    });
    tokio::spawn(tick(Arc::clone(&executor)));
    let handler = BoxCloneService::new(service_fn(async |_| {
        sleep(WORK).await;
        Ok(Response::new(Empty::new()))
    }));
    let service = protect(handler, &executor);
    BoxCloneService::new(service_fn(move |request| {
        let (executor, service) = (Arc::clone(&executor), service.clone());
        async move {
            let _worker = executor.worker.acquire().await;
            let status = service.oneshot(request).await;
            if !matches!(status, Ok(StatusCode::OK)) {
                executor.reject().await;
            }
            status
        }
    }))
}

impl Executor {
    fn delay(&self) -> Duration {
        self.ticks.lock().unwrap().delay(Instant::now().into_std())
    }

    async fn reject(&self) {
        let whole = {
            let mut rest = self.rest.lock().unwrap();
            *rest += REJECTION;
            let whole = rest.floor();
            *rest -= whole;
            whole
        };
        if whole > 0.0 {
            sleep(Duration::from_millis(whole as u64)).await;
        }
    }
}

async fn tick(executor: Arc<Executor>) {
    loop {
        let due = executor.ticks.lock().unwrap().due;
        sleep_until(due.into()).await;
        let _worker = executor.worker.acquire().await;
        executor.ticks.lock().unwrap().fire(Instant::now().into_std());
    }
}
