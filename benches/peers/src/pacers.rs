//! Limiters whose callers wait for admission: the peers, and a timer as the floor.

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

/// One unit every `interval` for each key, without a burst. The first unit is
/// available at once.
#[derive(Clone, Copy)]
pub struct Pace {
    pub interval: Duration,
    pub keys: usize,
}

impl Pace {
    /// For limiters that refill in ticks: the units of a tick, and the interval
    /// between two ticks, which is at least the timer's resolution.
    fn ticks(self) -> (u32, Duration) {
        const SHORTEST: Duration = Duration::from_millis(1);
        let units = SHORTEST.as_nanos().div_ceil(self.interval.as_nanos()) as u32;
        (units, self.interval * units)
    }
}

pub trait Pacer: Send + Sync + 'static {
    /// Waits until the limiter admits a caller on its key.
    fn admit(&self, caller: usize) -> impl Future<Output = ()> + Send;
}

/// The keys' names, made before anything is measured.
pub struct Tenants(Vec<String>);

impl Tenants {
    pub fn new(pace: Pace) -> Self {
        Self((0..pace.keys).map(keys::tenant).collect())
    }

    pub fn of(&self, caller: usize) -> &String {
        &self.0[caller % self.0.len()]
    }
}

/// The floor: each caller takes the next slot from a counter and sleeps until it.
pub struct Sleep {
    start: Instant,
    interval: u64,
    /// The first free slot of each key, in nanoseconds.
    free_slots: Vec<AtomicU64>,
}

impl Sleep {
    pub fn new(pace: Pace) -> Self {
        let free_slots = (0..pace.keys).map(|_| AtomicU64::new(0)).collect();
        Self { start: Instant::now(), interval: pace.interval.as_nanos() as u64, free_slots }
    }
}

impl Pacer for Sleep {
    async fn admit(&self, caller: usize) {
        let now = self.start.elapsed().as_nanos() as u64;
        let free = &self.free_slots[caller % self.free_slots.len()];
        let taken = free.fetch_update(Relaxed, Relaxed, |free| Some(free.max(now) + self.interval));
        let slot = taken.expect("the update always returns a value").max(now);
        if slot > now {
            tokio::time::sleep_until(self.start + Duration::from_nanos(slot)).await;
        }
    }
}

pub struct LeakyBucket(leaky_bucket::RateLimiter);

impl LeakyBucket {
    pub fn new(pace: Pace) -> Self {
        let (units, tick) = pace.ticks();
        // A late tick adds the missed units, up to the bucket's capacity.
        let capacity = if units == 1 { 1 } else { units * 10 };
        let mut builder = leaky_bucket::RateLimiter::builder();
        builder.initial(1).refill(units as usize).interval(tick).max(capacity as usize);
        Self(builder.build())
    }
}

impl Pacer for LeakyBucket {
    async fn admit(&self, _: usize) {
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
    async fn admit(&self, caller: usize) {
        self.limiter.until_key_ready(self.tenants.of(caller)).await;
    }
}

/// `tower::limit::RateLimit` has one owner. To share it, callers wait for a lock.
pub struct Tower(Mutex<RateLimit<NoOp>>);

impl Tower {
    pub fn new(pace: Pace) -> Self {
        let (units, tick) = pace.ticks();
        Self(Mutex::new(RateLimit::new(NoOp, Rate::new(units.into(), tick))))
    }
}

impl Pacer for Tower {
    async fn admit(&self, _: usize) {
        let mut service = self.0.lock().await;
        let Ok(ready) = service.ready().await;
        let Ok(()) = ready.call(()).await;
    }
}

struct NoOp;

impl Service<()> for NoOp {
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
