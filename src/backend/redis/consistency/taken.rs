//! What a level that decides in this process made of its part of a request.
//!
//! Invariant: what is admitted is charged already, and can be undone.

use std::time::Duration;

use crate::{
    backend::{AcquireRequest, Charge, Outcome},
    policy::{Consistency, charge::Charges},
};

/// What a level that decides in this process made of its part of a request.
pub(super) enum Taken {
    /// Its charges are made. If another part rejects, they are undone.
    Admitted(Outcome, Undo),
    /// It rejects the request, and has charged nothing.
    Rejected(Outcome),
    /// Only the store can decide; nothing is charged.
    Undecided,
}

/// Puts back what a level took for a request that another part rejected.
pub(super) type Undo = Box<dyn FnOnce() + Send>;

/// A request that may wait is decided by the store: a level that decides here
/// reserves nothing in the future.
pub(super) fn may_wait(request: &AcquireRequest<'_>) -> bool {
    request.max_wait > Duration::ZERO && request.charges.iter().any(|charge| charge.max_wait > 0)
}

/// Those of some charges that are of one level.
pub(super) fn of_level<'a>(charges: impl IntoIterator<Item = Charge<'a>>, level: Consistency) -> Charges<'a> {
    charges.into_iter().filter(|charge| charge.consistency() == level).collect()
}
