//! The inner service's capacity: a request that waits occupies none, and
//! neither does a worker between its calls.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule, testing::TokioClock};

const MILLI: Duration = Duration::from_millis(1);
const CALLS: u64 = 300;

fn limiter(quota: Quota, max_wait: Duration) -> RateLimiter {
    let rule = Rule::new("calls").tier(quota).max_wait(max_wait);
    RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default()).build().unwrap()
}

fn request() -> Request<()> {
    Request::get("http://api.example.com/").body(()).unwrap()
}

/// An upstream that takes 5 ms.
fn upstream() -> impl Service<
    Request<()>,
    Response = Response<()>,
    Error = BoxError,
    Future = impl Future<Output = Result<Response<()>, BoxError>> + Send,
> + Clone
+ Send {
    service_fn(|_: Request<()>| async {
        #[allow(clippy::disallowed_methods, reason = "time is paused, and the upstream takes some")]
        sleep(5 * MILLI).await;
        Ok::<_, BoxError>(Response::new(()))
    })
}

/// The calls that `workers` make within a minute, each by its own clone.
async fn calls_made<S>(service: S, workers: usize) -> u64
where
    S: Service<Request<()>, Response = Response<()>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    let (left, made) = (Arc::new(AtomicU64::new(CALLS)), Arc::new(AtomicU64::new(0)));
    let mut set = JoinSet::new();
    for _ in 0..workers {
        let (mut service, left, made) = (service.clone(), Arc::clone(&left), Arc::clone(&made));
        set.spawn(async move {
            while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                if service.ready().await.unwrap().call(request()).await.is_ok() {
                    made.fetch_add(1, Ordering::SeqCst);
                }
            }
            // The worker is idle from here on, and keeps its service.
            std::future::pending::<()>().await;
        });
    }
    let all = timeout(60_000 * MILLI, async { while set.join_next().await.is_some() {} });
    assert!(all.await.is_err());
    made.load(Ordering::SeqCst)
}

fn paced() -> RateLimitLayer<tower_ratelimit::middleware::Http, tower_ratelimit::middleware::UpstreamFeedback> {
    RateLimitLayer::client(limiter(Quota::per_second(100).burst(1), 10_000 * MILLI))
}

#[tokio::test(start_paused = true)]
async fn workers_over_a_concurrency_limit_make_every_call() {
    for (workers, places) in [(10, 10), (20, 3), (64, 1)] {
        let service = ServiceBuilder::new().layer(paced()).concurrency_limit(places).service(upstream());
        assert_eq!(calls_made(service, workers).await, CALLS, "{workers} workers over {places}");
    }
}

#[tokio::test(start_paused = true)]
async fn workers_over_load_shedding_are_never_shed() {
    let service = ServiceBuilder::new().layer(paced()).load_shed().concurrency_limit(10).service(upstream());
    assert_eq!(calls_made(service, 10).await, CALLS);
}

#[tokio::test(start_paused = true)]
async fn a_buffer_around_the_layer_makes_every_call() {
    for (places, workers) in [(1, 4), (1, 10), (10, 10)] {
        let service = ServiceBuilder::new().buffer(32).layer(paced()).concurrency_limit(places).service(upstream());
        assert_eq!(calls_made(service, workers).await, CALLS, "{workers} workers over {places}");
    }
}

/// A pool that counts the clones that hold a place: from being polled ready
/// until they are called or dropped.
#[derive(Debug, Default)]
struct Pool {
    holds_place: bool,
    held: Arc<AtomicUsize>,
}

impl Pool {
    fn release(&mut self) -> bool {
        let held = std::mem::take(&mut self.holds_place);
        self.held.fetch_sub(usize::from(held), Ordering::SeqCst);
        held
    }
}

impl Clone for Pool {
    fn clone(&self) -> Self {
        Self { holds_place: false, held: Arc::clone(&self.held) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.release();
    }
}

impl Service<Request<()>> for Pool {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.held.fetch_add(usize::from(!self.holds_place), Ordering::SeqCst);
        self.holds_place = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(self.release(), "called without being ready");
        ready(Ok(Response::new(())))
    }
}

#[tokio::test(start_paused = true)]
async fn neither_a_waiting_nor_a_rejected_request_holds_a_place() {
    let pool = Pool::default();
    let held = || pool.held.load(Ordering::SeqCst);
    let layer = RateLimitLayer::new(limiter(Quota::per_second(1).burst(1), 1_500 * MILLI));
    let mut service = layer.layer(pool.clone());

    // At once: the readied service itself is called.
    service.ready().await.unwrap();
    assert_eq!(held(), 1);
    assert_eq!(service.call(request()).await.unwrap().status(), 200);
    assert_eq!(held(), 0);

    let start = Instant::now();
    let delayed = service.ready().await.unwrap().call(request());
    assert_eq!(held(), 0, "while it waits");
    let rejected = service.ready().await.unwrap().call(request());
    assert_eq!(held(), 0, "after a rejection, while the caller is idle");
    assert_eq!(rejected.await.unwrap().status(), 429);
    assert_eq!(delayed.await.unwrap().status(), 200);
    assert!(start.elapsed() >= 1_000 * MILLI);
    assert_eq!(held(), 0);
}
