//! Keeps the fallback limiter warm: it counts what the backend admits for rules
//! with `FailureMode::Local`, so that no key gets a whole quota again when the
//! backend fails. Decides nothing.

use super::{
    attempt::Charges,
    current::PolicySnapshot,
    state::{Backing, RateLimiter},
};
use crate::{
    backend::{Charge, Receipt},
    policy::FailureMode,
    time::Timestamp,
};

/// Counts what the backend admitted. Returns what was counted, if it `is_kept`.
#[cold]
pub(super) fn keep_warm(
    limiter: &RateLimiter,
    snapshot: PolicySnapshot<'_>,
    charges: &[Charge<'_>],
    now: Timestamp,
    is_kept: bool,
) -> Option<Box<Receipt>> {
    // A backend in this process does not fail.
    let Backing::Other(_) = limiter.inner.backend else { return None };
    let local = at_local_share(charges);
    if local.is_empty() {
        return None;
    }
    let counted = limiter.fallback().count(&local, now);
    is_kept.then(|| Box::new(Receipt::counted(snapshot.policy, &local, now, counted)))
}

/// The charges of rules that fail local, at their local share of the limits.
pub(super) fn at_local_share<'a>(charges: &[Charge<'a>]) -> Charges<'a> {
    let local = charges.iter().filter(|charge| charge.rule.on_backend_failure == FailureMode::Local);
    local.map(|charge| charge.for_fallback()).collect()
}
