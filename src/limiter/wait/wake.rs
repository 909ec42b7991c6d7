//! Runs wakers, which are foreign code: one may panic, or do anything else.
//!
//! Invariant: a waker runs and is dropped when no lock is held and the change
//! that it announces is complete. Its panic is reported by the panic hook, and
//! reaches neither the request that caused the wake nor the other wakers.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

/// Wakes each of them, also if one panics.
pub(super) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| run(|| waker.wake()));
}

/// Drops a waker that is not needed any more.
pub(super) fn discard(waker: Option<Waker>) {
    run(|| drop(waker));
}

fn run(foreign: impl FnOnce()) {
    _ = catch_unwind(AssertUnwindSafe(foreign));
}
