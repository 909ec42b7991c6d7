//! Limits and numbers of instances that change by hot reload under load. A
//! binary of its own: the other tests of sources measure time.
#![allow(clippy::unwrap_used)]

#[path = "watch/fake.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod fake;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
use tower_ratelimit::{
    Descriptor, Policy, Quota, RateLimiter,
    backend::{Share, Split},
    policy_source::{Document, Watch, WatchHandle},
    testing::ManualClock,
};

use self::fake::{Script, fake};

fn yaml(limit: u64) -> String {
    format!("rules: [{{ id: all, tiers: [{{ limit: {limit}, window: 1h, algorithm: fixed-window }}] }}]")
}

/// An instance under load from background threads, until it is stopped.
struct Instance {
    limiter: RateLimiter,
    script: Script,
    handle: WatchHandle,
    admitted: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    load: Vec<std::thread::JoinHandle<()>>,
}

impl Instance {
    async fn start(clock: &ManualClock, split: Option<(u64, u64)>, limit: u64, threads: usize) -> Self {
        let builder = RateLimiter::builder().policy(Policy::from(Quota::per_hour(0))).clock(clock.clone());
        let (script, source) = fake();
        let (limiter, source, document) = match split {
            Some((index, count)) => {
                let (sender, shares) = watch::channel(Share::new(index, count).unwrap());
                let limiter = builder.backend(Split::watch(shares)).build().unwrap();
                (limiter, Watch::new(source).share(index, sender), Document::yaml(yaml(limit)).instances(count))
            }
            None => (builder.build().unwrap(), Watch::new(source), Document::yaml(yaml(limit))),
        };
        let handle = limiter.watch(source).unwrap();
        let (admitted, asked, stop) = <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let mut instance = Self { limiter, script, handle, admitted, asked, stop, load: Vec::new() };
        instance.reload(1, document).await;
        instance.load = (0..threads).map(|_| instance.loaded()).collect();
        instance
    }

    fn loaded(&self) -> std::thread::JoinHandle<()> {
        let limiter = self.limiter.clone();
        let (admitted, asked) = (Arc::clone(&self.admitted), Arc::clone(&self.asked));
        let stop = Arc::clone(&self.stop);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                while !stop.load(Ordering::SeqCst) {
                    if limiter.check(&Descriptor::new("/")).await.is_allowed() {
                        admitted.fetch_add(1, Ordering::SeqCst);
                    }
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            });
        })
    }

    async fn reload(&mut self, nth: u64, document: Document) {
        self.script.holds(document);
        let status = self.handle.wait_for(|status| status.applied >= nth).await.unwrap();
        assert_eq!((status.applied, status.error), (nth, None));
    }

    /// Waits until it has decided often enough to use up its limit.
    async fn saturate(&self) {
        let from = self.asked.load(Ordering::SeqCst);
        let mut ticks = tokio::time::interval(Duration::from_millis(2));
        let start = tokio::time::Instant::now();
        while self.asked.load(Ordering::SeqCst) < from + 5_000 {
            ticks.tick().await;
            assert!(start.elapsed() < Duration::from_secs(30), "timed out waiting for load");
        }
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::SeqCst)
    }

    fn stop(&mut self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.load.drain(..).for_each(|thread| thread.join().unwrap());
        self.admitted()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_limit_that_changes_under_load_keeps_its_count() {
    let clock = ManualClock::new();
    let mut instance = Instance::start(&clock, None, 1_000, 2).await;
    instance.saturate().await;
    assert_eq!(instance.admitted(), 1_000);
    let mut max = 1_000;
    for (nth, limit) in (2..).zip([500, 1_500, 10, 1_400, 2_000, 2_001, 0, 2_500]) {
        instance.reload(nth, Document::yaml(yaml(limit))).await;
        instance.saturate().await;
        max = max.max(limit);
        assert_eq!(instance.admitted(), max, "limits up to {max}, now {limit}");
    }
    assert_eq!(instance.stop(), 2_500);
}

#[tokio::test]
async fn a_fleet_that_grows_and_shrinks_under_load_keeps_the_larger_limit() {
    const LIMIT: u64 = 1_000;
    let clock = ManualClock::new();
    let mut fleet = Vec::new();
    for index in 0..4 {
        fleet.push(Instance::start(&clock, Some((index, 4)), LIMIT, 1).await);
    }
    let mut before = 0;
    let mut largest = LIMIT;
    for (nth, (count, limit)) in (2..).zip([(3, 1_000), (4, 1_200), (4, 600), (2, 900), (3, 1_000), (4, 1_000)]) {
        largest = largest.max(limit);
        // Instances of a fleet reload one after another.
        for instance in &mut fleet {
            instance.reload(nth, Document::yaml(yaml(limit)).instances(count)).await;
            instance.saturate().await;
        }
        let all: u64 = fleet.iter().map(Instance::admitted).sum();
        assert!(all - before <= largest, "{} in a window, {count} instances, limit {limit}", all - before);
        // The next window: every instance has its new share.
        clock.advance(Duration::from_secs(3_600));
        for instance in &fleet {
            instance.saturate().await;
        }
        let now: u64 = fleet.iter().map(Instance::admitted).sum();
        // Load continues while the clock is stepped. The last window was used
        // up, so all that is counted belongs to this one.
        assert_eq!(now - all, limit, "{count} instances converge within a window");
        (before, largest) = (all, limit);
    }
    fleet.iter_mut().for_each(|instance| {
        instance.stop();
    });
}

/// The change that admits less comes first, so the pair never admits more than
/// before and after.
#[tokio::test]
async fn changing_limit_and_share_at_once_never_admits_more() {
    let (sender, shares) = watch::channel(Share::none());
    let limiter = RateLimiter::new(Policy::new()).unwrap();
    let (script, source) = fake();
    let mut handle = limiter.watch(Watch::new(source).share(0, sender)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let looking = {
        let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
        let all = [4_u64, 100].map(|limit| (limit, Policy::from_yaml(&yaml(limit)).unwrap()));
        std::thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !stop.load(Ordering::SeqCst) {
                // The same before and after, and so in between.
                let before = limiter.policy();
                let count = shares.borrow().count();
                if !Arc::ptr_eq(&before, &limiter.policy()) {
                    continue;
                }
                seen.extend(all.iter().find(|(_, policy)| policy == &*before).map(|(limit, _)| (*limit, count)));
            }
            seen
        })
    };
    for nth in 1..=200 {
        let (limit, count) = if nth % 2 == 0 { (4, 1) } else { (100, 25) };
        script.holds(Document::yaml(yaml(limit)).instances(count));
        handle.wait_for(|status| status.applied == nth).await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let seen = looking.join().unwrap();
    assert!(seen.is_superset(&BTreeSet::from([(4, 1), (100, 25)])), "{seen:?}");
    assert!(!seen.contains(&(100, 1)), "the larger limit without a split: {seen:?}");
}
