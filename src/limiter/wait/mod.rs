//! Waiting: how many requests may wait, the queues that they wait in, and the
//! timer. Nothing in here decides a request or knows the limiter.

pub(super) mod capacity;
pub(super) mod fifo;
mod sharded;
pub(super) mod slots;
mod sync;
pub(super) mod timer;
mod wake;

#[cfg(all(test, tower_ratelimit_loom))]
mod interleavings;
