//! How many instances the store has seen lately: [`Instances`], by its replies about
//! single counters. It asks nothing.
//!
//! Invariant: while no reply arrives, the number stays.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::sync::lock;

/// How long the largest number counts, at least: not every counter is used by all
/// instances.
pub(super) const KEPT: Duration = Duration::from_secs(10);

/// The largest number in the time before, and in the present one, which began then.
#[derive(Debug)]
pub(crate) struct Instances(Mutex<(u64, u64, Instant)>);

impl Instances {
    pub(crate) fn new() -> Self {
        Self(Mutex::new((1, 1, Instant::now())))
    }

    /// The largest number of instances that used a counter lately; at least 1.
    pub(crate) fn get(&self) -> u64 {
        let (before, recent, _) = *lock(&self.0);
        before.max(recent)
    }

    /// The store has seen so many instances use a counter.
    pub(crate) fn observe(&self, instances: u64) {
        let (before, recent, since) = &mut *lock(&self.0);
        if since.elapsed() >= KEPT {
            (*before, *recent, *since) = (*recent, 1, Instant::now());
        }
        *recent = instances.max(*recent);
    }
}
