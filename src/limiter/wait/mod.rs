//! Waiting: how many requests may wait, the queues that they wait in, and the
//! timer. Nothing in here decides a request or knows the limiter.
//!
//! Invariant: a waiting request is woken or has a timer, and one that is dropped
//! has left its queue.

pub(super) mod capacity;
pub(super) mod fifo;
mod shards;
pub(super) mod slots;
pub(super) mod timer;

#[cfg(all(test, tower_ratelimit_loom))]
#[path = "tests/interleavings.rs"]
mod interleavings;
