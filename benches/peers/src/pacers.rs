//! What lets callers wait for their turn: the peers, and a timer alone.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};
use tower::{
    Service, ServiceExt,
    limit::{RateLimit, rate::Rate},
};

use crate::keys;

/// One unit every `interval` for each of so many keys, and none saved up: the
/// first goes at once.
#[derive(Clone, Copy)]
pub struct Pace {
    pub interval: Duration,
    pub keys: usize,
}

impl Pace {
    /// For those that tick: units, and the time between two ticks, which is
    /// not below what a timer can do.
    fn ticks(self) -> (u32, Duration) {
        const SHORTEST: Duration = Duration::from_millis(1);
        let units = SHORTEST.as_nanos().div_ceil(self.interval.as_nanos()) as u32;
        (units, self.interval * units)
    }
}

pub trait Pacer: Send + Sync + 'static {
    /// Waits for a turn on the key of a caller.
    fn turn(&self, who: usize) -> impl Future<Output = ()> + Send;
}

/// The keys' names, made before anything is measured.
pub struct Tenants(Vec<String>);

impl Tenants {
    pub fn new(pace: Pace) -> Self {
        Self((0..pace.keys).map(keys::tenant).collect())
    }

    pub fn of(&self, who: usize) -> &String {
        &self.0[who % self.0.len()]
    }
}

/// The floor: who comes takes the next place on a counter, and sleeps.
pub struct Sleep {
    start: Instant,
    interval: u64,
    /// For each key, the first place that is free, in nanoseconds.
    free: Vec<AtomicU64>,
}

impl Sleep {
    pub fn new(pace: Pace) -> Self {
        let free = (0..pace.keys).map(|_| AtomicU64::new(0)).collect();
        Self { start: Instant::now(), interval: pace.interval.as_nanos() as u64, free }
    }
}

impl Pacer for Sleep {
    async fn turn(&self, who: usize) {
        let now = self.start.elapsed().as_nanos() as u64;
        let free = &self.free[who % self.free.len()];
        let taken = free.fetch_update(Relaxed, Relaxed, |free| Some(free.max(now) + self.interval));
        let place = taken.expect("it is never rejected").max(now);
        if place > now {
            tokio::time::sleep_until(self.start + Duration::from_nanos(place)).await;
        }
    }
}

pub struct LeakyBucket(leaky_bucket::RateLimiter);

impl LeakyBucket {
    pub fn new(pace: Pace) -> Self {
        let (units, tick) = pace.ticks();
        // Ticks that come late bring what was missed, if there is room for it.
        let room = if units == 1 { 1 } else { units * 10 };
        let mut builder = leaky_bucket::RateLimiter::builder();
        builder.initial(1).refill(units as usize).interval(tick).max(room as usize);
        Self(builder.build())
    }
}

impl Pacer for LeakyBucket {
    async fn turn(&self, _: usize) {
        self.0.acquire_one().await;
    }
}

pub struct Governor {
    limiter: governor::DefaultKeyedRateLimiter<String>,
    tenants: Tenants,
}

impl Governor {
    pub fn new(pace: Pace) -> Self {
        let quota = governor::Quota::with_period(pace.interval).expect("an interval is not zero");
        let limiter = governor::RateLimiter::keyed(quota.allow_burst(NonZeroU32::MIN));
        Self { limiter, tenants: Tenants::new(pace) }
    }
}

impl Pacer for Governor {
    async fn turn(&self, who: usize) {
        self.limiter.until_key_ready(self.tenants.of(who)).await;
    }
}

/// It serves one owner: to share it, callers queue for a lock.
pub struct Tower(Mutex<RateLimit<Nothing>>);

impl Tower {
    pub fn new(pace: Pace) -> Self {
        let (units, tick) = pace.ticks();
        Self(Mutex::new(RateLimit::new(Nothing, Rate::new(units.into(), tick))))
    }
}

impl Pacer for Tower {
    async fn turn(&self, _: usize) {
        let mut service = self.0.lock().await;
        let Ok(ready) = service.ready().await;
        let Ok(()) = ready.call(()).await;
    }
}

struct Nothing;

impl Service<()> for Nothing {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}
