//! How far the store's clock is ahead of the limiter's: [`Offset`], by the replies
//! with the shortest round trips. It reads no clock.
//!
//! Invariant: the error is at most half of the round trip that it was found by.

use std::sync::{
    Mutex,
    atomic::{AtomicI64, Ordering},
};

use crate::backend::redis::sync::lock;

#[derive(Debug, Default)]
pub(super) struct Offset {
    nanos: AtomicI64,
    /// The round trip that it was found by, in nanoseconds; 0 before the first. It
    /// grows with each reply, since clocks drift apart.
    round_trip: Mutex<u64>,
}

impl Offset {
    /// Nanoseconds by which the store's clock is ahead.
    #[inline]
    pub(super) fn ahead(&self) -> i64 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// The store's clock was at `store` when the limiter's was at `limiter`, give or
    /// take half of a round trip.
    pub(super) fn observe(&self, store: u64, limiter: u64, round_trip: u64) {
        let mut best = lock(&self.round_trip);
        if *best == 0 || round_trip <= *best {
            *best = round_trip.max(1);
            let ahead = i128::from(store) - i128::from(limiter);
            self.nanos.store(i64::try_from(ahead).unwrap_or(0), Ordering::Relaxed);
        } else {
            *best = best.saturating_add(*best / 8 + 1);
        }
    }
}
