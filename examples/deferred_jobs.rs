//! A server that defers work instead of rejecting it. A job within the limit
//! runs at once (201). A job above it reserves a slot: the server answers 202
//! with the URL of the job's status, and runs the job when its reservation is
//! due. Beyond the waiter limit the server answers 429.
//!
//! `cargo run --example deferred_jobs --features axum`, and then:
//!
//! ```sh
//! curl -i -X POST localhost:3000/jobs   # 201, twice: `Location: /jobs/1`
//! curl -i -X POST localhost:3000/jobs   # 202: `Location: /jobs/3`
//! curl localhost:3000/jobs/3            # waiting, and a second later: done
//! ```

use std::{
    collections::BTreeMap,
    env,
    future::ready,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, State},
    http::{
        StatusCode,
        header::{LOCATION, RETRY_AFTER},
    },
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::net::TcpListener;
use tower_ratelimit::{Descriptor, Permit, Quota, RateLimited, RateLimiter};

/// The waiter limit. Waiting jobs are lost when the process ends; a service
/// that promises more stores them before it answers 202.
const MAX_WAITING: usize = 10;

/// The number of jobs whose status is kept. The oldest are dropped first.
const MAX_KNOWN: usize = 10_000;

struct Jobs {
    limiter: RateLimiter,
    last: AtomicU64,
    known: Mutex<BTreeMap<u64, &'static str>>,
}

impl Jobs {
    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, &'static str>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, id: u64, state: &'static str) {
        let mut known = self.known();
        known.insert(id, state);
        while known.len() > MAX_KNOWN {
            known.pop_first();
        }
    }

    async fn run(&self, id: u64, permit: Permit) {
        // Replace this with the work.
        drop(permit);
        self.set(id, "done");
    }
}

async fn submit(State(jobs): State<Arc<Jobs>>) -> Response {
    let id = jobs.last.fetch_add(1, Relaxed) + 1;
    let location = [(LOCATION, format!("/jobs/{id}"))];
    let limiter = jobs.limiter.clone();
    // The future owns its data, so that a task can wait for it without a bound.
    let mut acquiring = Box::pin(async move { limiter.acquire(&Descriptor::new("/jobs"), Duration::MAX).await });
    // The first poll reserves the slot or rejects the job. So one poll decides
    // between 201, 202 and 429.
    tokio::select! {
        biased;
        acquired = &mut acquiring => match acquired {
            Ok(permit) => {
                jobs.run(id, permit).await;
                (StatusCode::CREATED, location, "done\n").into_response()
            }
            Err(rejection) => reject(&rejection),
        },
        () = ready(()) => {
            jobs.set(id, "waiting");
            tokio::spawn(async move {
                match acquiring.await {
                    Ok(permit) => jobs.run(id, permit).await,
                    Err(_) => jobs.set(id, "failed"),
                }
            });
            (StatusCode::ACCEPTED, location, "waiting\n").into_response()
        }
    }
}

fn reject(rejection: &RateLimited) -> Response {
    let seconds = rejection.retry_after().map_or(1, |after| after.as_millis().div_ceil(1_000));
    let headers = [(RETRY_AFTER, seconds.to_string())];
    (StatusCode::TOO_MANY_REQUESTS, headers, format!("{rejection}\n")).into_response()
}

async fn status(State(jobs): State<Arc<Jobs>>, Path(id): Path<u64>) -> Result<String, StatusCode> {
    jobs.known().get(&id).map(|state| format!("{state}\n")).ok_or(StatusCode::NOT_FOUND)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter =
        RateLimiter::builder().policy(Quota::per_second(1).burst(2)).max_waiters_per_key(MAX_WAITING).build()?;
    let jobs = Jobs { limiter, last: AtomicU64::new(0), known: Mutex::default() };
    let app = Router::new().route("/jobs", post(submit)).route("/jobs/{id}", get(status)).with_state(Arc::new(jobs));

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
