//! The lock and the atomics of the wait queues. With
//! `--cfg tower_ratelimit_loom` they are those of loom, which runs a test with
//! every interleaving of its threads: see `scripts/loom`.

#[cfg(all(test, tower_ratelimit_loom))]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};
#[cfg(not(all(test, tower_ratelimit_loom)))]
pub(super) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};
