//! Simulates one server and its callers on Tokio's paused time, behind any protection that
//! is a Tower service.
//!
//! The server has a fixed pool of workers and a queue without a bound. A caller gives up
//! after [`TIMEOUT`], which the server does not notice: it serves the request in vain, as a
//! thread pool or a database does. Used by `tests/sim.rs`, `benches/simulate` and
//! `benches/overload`.
#![allow(dead_code, clippy::unwrap_used, reason = "each uses some of it; a failure ends the simulation")]

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until},
};
use tower::{BoxError, ServiceExt, util::BoxCloneService};
use tower_ratelimit::{
    Priority,
    time::{Clock, Timestamp},
};

pub(crate) const WORKERS: usize = 20;
/// In milliseconds, while nothing is slow.
const MEAN_SERVICE: f64 = 20.0;
/// Requests a second.
pub(crate) const CAPACITY: f64 = WORKERS as f64 * 1_000.0 / MEAN_SERVICE;
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// What a protection is put around.
pub(crate) type Handler = BoxCloneService<Request<()>, Response<Empty<Bytes>>, Infallible>;
/// The handler behind a protection. It rejects by an error, or by a status other than 200.
pub(crate) type Protected = BoxCloneService<Request<()>, StatusCode, BoxError>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    pub(crate) seconds: usize,
    /// Arrivals, as a multiple of [`CAPACITY`].
    pub(crate) load: f64,
    /// How many times longer each request takes.
    pub(crate) slowness: f64,
}

/// A load for so many seconds, on a server that is not slow.
pub(crate) fn load(seconds: usize, load: f64) -> Phase {
    Phase { seconds, load, slowness: 1.0 }
}

/// The seed decides about everything that is random.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) phases: Vec<Phase>,
    /// Nine requests of ten take 5 ms and one 155 ms, instead of exponential times.
    pub(crate) bimodal: bool,
    pub(crate) seed: u64,
}

/// The requests that were sent within one second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Second {
    pub(crate) sent: usize,
    pub(crate) rejected: usize,
    /// Answered within [`TIMEOUT`].
    pub(crate) good: usize,
    pub(crate) critical: usize,
    pub(crate) good_critical: usize,
    /// Of each answer of the server, in milliseconds.
    pub(crate) latencies: Vec<u128>,
}

/// Some seconds together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    /// Answers in time, as a part of what the server could give.
    pub(crate) goodput: f64,
    /// Of all that was not rejected. `None` if that many were not answered at all.
    pub(crate) p99: Option<u128>,
    /// The part of critical requests that was answered in time.
    pub(crate) critical: f64,
}

/// `capacity` is what the server can answer in each of these seconds.
pub(crate) fn summary(seconds: &[Second], capacity: f64) -> Summary {
    let sum = |of: fn(&Second) -> usize| seconds.iter().map(of).sum::<usize>() as f64;
    let mut latencies: Vec<u128> = seconds.iter().flat_map(|second| second.latencies.iter().copied()).collect();
    latencies.sort_unstable();
    let allowed = sum(|second| second.sent - second.rejected);
    Summary {
        goodput: sum(|second| second.good) / (capacity * seconds.len() as f64),
        p99: latencies.get((allowed * 0.99) as usize).copied(),
        critical: sum(|second| second.good_critical) / sum(|second| second.critical),
    }
}

/// After how many seconds all but one in a hundred are answered in time, and stay so.
pub(crate) fn recovery(seconds: &[Second]) -> Option<usize> {
    // Answers to what is sent in the last second may lie behind the end.
    let seconds = &seconds[..seconds.len() - 1];
    let is_normal = |second: &&Second| second.good * 100 >= second.sent * 99;
    let normal = seconds.iter().rev().take_while(is_normal).count();
    (normal > 0).then_some(seconds.len() - normal)
}

/// A clock on Tokio's time.
#[derive(Clone, Debug)]
pub(crate) struct VirtualClock(Instant);

impl VirtualClock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(super::fleet::START).saturating_add(self.0.elapsed())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    workers: Arc<Semaphore>,
    in_flight: Arc<AtomicUsize>,
    pace: Arc<Mutex<Pace>>,
}

#[derive(Debug)]
struct Pace {
    random: Random,
    bimodal: bool,
    slowness: f64,
    /// What timers of whole milliseconds cannot wait for: left to the next request.
    rest: f64,
}

impl Server {
    /// Requests that are served or wait.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn handler(&self) -> Handler {
        let server = self.clone();
        BoxCloneService::new(tower::service_fn(move |_| {
            let server = server.clone();
            async move {
                server.serve().await;
                Ok(Response::new(Empty::new()))
            }
        }))
    }

    #[allow(clippy::disallowed_methods, reason = "in paused time")]
    async fn serve(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let worker = self.workers.acquire().await;
        let time = self.pace.lock().unwrap().draw();
        sleep(time).await;
        drop(worker);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pace {
    fn draw(&mut self) -> Duration {
        let millis = match (self.bimodal, self.random.part()) {
            (true, part) if part < 0.1 => 155.0,
            (true, _) => 5.0,
            (false, part) => -MEAN_SERVICE * part.ln(),
        };
        let exact = millis * self.slowness + self.rest;
        // At least one: latencies of 0 are none that a service has, and stop some peers.
        let whole = exact.floor().max(1.0);
        self.rest = exact - whole;
        Duration::from_millis(whole as u64)
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Above 0 and up to 1.
    pub(crate) fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ (mixed >> 31)) >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// One in ten is critical, and three are low.
    fn priority(&mut self) -> Priority {
        match self.part() {
            part if part <= 0.1 => Priority::Critical,
            part if part <= 0.4 => Priority::Low,
            _ => Priority::Normal,
        }
    }
}

/// Runs it, behind what `protect` puts around the handler.
pub(crate) fn simulate(plan: &Plan, protect: impl FnOnce(Handler, &Server) -> Protected) -> Vec<Second> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let length: usize = plan.phases.iter().map(|phase| phase.seconds).sum();
    let seconds = Arc::new(Mutex::new(vec![Second::default(); length]));
    runtime.block_on(async {
        let pace = Pace { random: Random::new(plan.seed), bimodal: plan.bimodal, slowness: 1.0, rest: 0.0 };
        let (workers, in_flight) = (Arc::new(Semaphore::new(WORKERS)), Arc::default());
        let server = Server { workers, in_flight, pace: Arc::new(Mutex::new(pace)) };
        let service = protect(server.handler(), &server);
        send(plan, &server, &service, &seconds).await;
    });
    // Requests that are still in flight get no answer.
    drop(runtime);
    Arc::into_inner(seconds).unwrap().into_inner().unwrap()
}

/// Poisson arrivals, whatever becomes of those before.
async fn send(plan: &Plan, server: &Server, service: &Protected, seconds: &Arc<Mutex<Vec<Second>>>) {
    let (start, mut random) = (Instant::now(), Random::new(!plan.seed));
    let (mut at, mut end) = (0.0, 0.0);
    for phase in &plan.phases {
        server.pace.lock().unwrap().slowness = phase.slowness;
        end += phase.seconds as f64;
        loop {
            at -= random.part().ln() / (phase.load * CAPACITY);
            if at >= end {
                break;
            }
            let due = start + Duration::from_millis((at * 1e3) as u64);
            if due > Instant::now() {
                sleep_until(due).await;
            }
            let request = call(service.clone(), random.priority(), at as usize, Arc::clone(seconds));
            tokio::spawn(request);
        }
        // Arrivals have no memory.
        at = end;
    }
    sleep_until(start + Duration::from_secs_f64(end)).await;
}

async fn call(service: Protected, priority: Priority, second: usize, seconds: Arc<Mutex<Vec<Second>>>) {
    let is_critical = usize::from(priority == Priority::Critical);
    let update = |update: &dyn Fn(&mut Second)| update(&mut seconds.lock().unwrap()[second]);
    update(&|second| {
        second.sent += 1;
        second.critical += is_critical;
    });
    let mut request = Request::new(());
    request.extensions_mut().insert(priority);
    let sent = Instant::now();
    let status = service.oneshot(request).await;
    let latency = sent.elapsed();
    update(&|second| match status {
        Ok(StatusCode::OK) => {
            second.latencies.push(latency.as_millis());
            let is_good = usize::from(latency <= TIMEOUT);
            second.good += is_good;
            second.good_critical += is_good * is_critical;
        }
        _ => second.rejected += 1,
    });
}
