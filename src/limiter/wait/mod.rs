//! Waiting: how many requests may wait, the queues that they wait in, and the
//! timer. Nothing in here decides a request or knows the limiter.
//!
//! | a request waits for | in | served |
//! |---|---|---|
//! | a slot that is reserved, at a known time | `slots/queue.rs` | in order of arrival; of a `fair` rule by rounds of tenants |
//! | what cannot be reserved: in-flight units, an adaptive rate | `fifo.rs` | by priority, and in order of arrival within one |
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
