//! One runtime, for as long as it is a backend's home, and whether it still works.
//! It does not choose another one: `home` does.
//!
//! Invariant: a runtime that was left, or has ended, is never used again. What
//! fails because of that says nothing about the store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

/// A runtime that does not run a task for so long is not driven.
const PATIENCE: Duration = Duration::from_secs(1);

/// A flood of suspicions asks once in so long.
const SUSPICION_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct HomeRuntime {
    pub(crate) handle: Handle,
    status: Arc<Status>,
}

struct Status {
    /// It has ended, or was left.
    is_over: AtomicBool,
    /// Since when a sign of life is missing: milliseconds since the origin, plus 1;
    /// 0 if none is.
    suspected_since: AtomicU64,
    /// The latest suspicion, likewise.
    suspected: AtomicU64,
    origin: Instant,
    /// Told whenever one of these may have to be looked at.
    is_doubtful: Arc<AtomicBool>,
    /// Locked while connections are opened in place of others.
    reopening: tokio::sync::Mutex<()>,
}

impl HomeRuntime {
    pub(super) fn new(handle: Handle, is_doubtful: Arc<AtomicBool>) -> Self {
        let status = Status {
            is_over: AtomicBool::new(false),
            suspected_since: AtomicU64::new(0),
            suspected: AtomicU64::new(0),
            origin: Instant::now(),
            is_doubtful,
            reopening: tokio::sync::Mutex::default(),
        };
        Self { handle, status: Arc::new(status) }
    }

    /// Ends only with the runtime, which it reports.
    pub(super) fn sentinel(&self) -> impl Future<Output = ()> + Send + 'static {
        let sign = Sign { status: Arc::clone(&self.status), is_driven: false };
        async move {
            let _sign = sign;
            std::future::pending().await
        }
    }

    /// Whether it is known to have ended, or was left.
    pub(crate) fn is_over(&self) -> bool {
        self.status.is_over.load(Ordering::Acquire)
    }

    /// Whether it has ended, or was left. Unlike [`is_over`](Self::is_over), this
    /// is sure once a task of the runtime was seen to be dropped.
    pub(crate) fn check_is_over(&self) -> bool {
        // A runtime that ends accepts no task from before it drops the first one.
        if !self.is_over() {
            self.ask();
        }
        self.is_over()
    }

    /// Something took too long, so it has to show that it is driven.
    pub(super) fn suspect(&self) {
        let now = self.status.now();
        let suspected = self.status.suspected.load(Ordering::Relaxed);
        if self.is_over() || suspected > 0 && now - suspected.min(now) < SUSPICION_INTERVAL.as_millis() as u64 {
            return;
        }
        self.status.suspected.store(now, Ordering::Relaxed);
        // An earlier suspicion that was not removed counts from its start.
        let _ = self.status.suspected_since.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
        self.status.is_doubtful.store(true, Ordering::Release);
        self.ask();
    }

    pub(super) fn is_suspected(&self) -> bool {
        self.status.suspected_since.load(Ordering::Acquire) > 0
    }

    /// Whether a sign of life is missing for too long.
    pub(super) fn is_stuck(&self) -> bool {
        let since = self.status.suspected_since.load(Ordering::Acquire);
        since > 0 && self.status.now().saturating_sub(since) >= PATIENCE.as_millis() as u64
    }

    pub(super) fn leave(&self) {
        self.status.is_over.store(true, Ordering::Release);
    }

    /// Runs a future here. `None` if the runtime ends first.
    pub(crate) async fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Option<T> {
        match self.handle.spawn(future).await {
            Ok(output) => Some(output),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {
                self.leave();
                self.status.is_doubtful.store(true, Ordering::Release);
                None
            }
        }
    }

    /// Locked while connections are opened here in place of others.
    pub(super) fn reopening(&self) -> &tokio::sync::Mutex<()> {
        &self.status.reopening
    }

    fn ask(&self) {
        let mut sign = Sign { status: Arc::clone(&self.status), is_driven: false };
        self.handle.spawn(async move {
            sign.is_driven = true;
            sign.status.suspected_since.store(0, Ordering::Release);
        });
    }
}

impl Status {
    fn now(&self) -> u64 {
        1 + self.origin.elapsed().as_millis() as u64
    }
}

/// A task that is dropped before it has run shows that its runtime has ended.
struct Sign {
    status: Arc<Status>,
    is_driven: bool,
}

impl Drop for Sign {
    fn drop(&mut self) {
        if !self.is_driven {
            self.status.is_over.store(true, Ordering::Release);
            self.status.is_doubtful.store(true, Ordering::Release);
        }
    }
}
