//! How many instances the store has seen lately: [`Instances`], by its replies about
//! single counters. It asks nothing.
//!
//! Invariant: while no reply arrives, the number stays.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::backend::redis::sync::lock;

/// How long the largest number counts, at least: not every counter is used by all
/// instances.
pub(super) const KEPT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Instances {
    most: AtomicU64,
    /// The largest number since a time.
    recent: Mutex<(u64, Instant)>,
}

impl Instances {
    pub(crate) fn new() -> Self {
        Self { most: AtomicU64::new(1), recent: Mutex::new((1, Instant::now())) }
    }

    /// The largest number of instances that used a counter lately; at least 1.
    pub(crate) fn get(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// The store has seen so many instances use a counter.
    pub(crate) fn observe(&self, instances: u64) {
        let (recent, since) = &mut *lock(&self.recent);
        *recent = instances.max(*recent);
        if since.elapsed() >= KEPT {
            self.most.store(*recent, Ordering::Relaxed);
            (*recent, *since) = (1, Instant::now());
        } else {
            self.most.fetch_max(*recent, Ordering::Relaxed);
        }
    }
}
