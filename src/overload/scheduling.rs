//! How late timers fire: [`SchedulingDelay`].
//!
//! Measured by the standard library's clock: Tokio's may be paused. Invariant: its task
//! ends with the signal.

#![allow(clippy::disallowed_methods, reason = "it measures timers, and decides nothing")]

use std::{
    sync::{Arc, Mutex, Weak},
    time::Instant,
};

use tokio::runtime::Handle;

use super::{
    signal::{LoadSignal, SCHEDULING_DELAY},
    ticks::Ticks,
};
use crate::sync::lock;

/// See [`scheduling_delay`](super::scheduling_delay).
#[derive(Debug, Default)]
pub(super) struct SchedulingDelay {
    /// `None` until the first request within a runtime.
    ticks: Mutex<Option<Arc<Mutex<Ticks>>>>,
}

impl LoadSignal for SchedulingDelay {
    fn load(&self) -> f64 {
        let mut ticks = lock(&self.ticks);
        if ticks.is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            let started = Arc::new(Mutex::new(Ticks::new(Instant::now())));
            runtime.spawn(tick(Arc::downgrade(&started)));
            *ticks = Some(started);
        }
        ticks.as_ref().map_or(0.0, |ticks| lock(ticks).delay(Instant::now()).as_secs_f64())
    }

    fn name(&self) -> &str {
        SCHEDULING_DELAY
    }
}

async fn tick(ticks: Weak<Mutex<Ticks>>) {
    while let Some(due) = ticks.upgrade().map(|ticks| lock(&ticks).due) {
        tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
        let Some(ticks) = ticks.upgrade() else { return };
        lock(&ticks).fire(Instant::now());
    }
}

#[cfg(test)]
mod tests;
