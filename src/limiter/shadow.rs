//! Shadow mode: rules that are evaluated and counted, and never reject. They
//! are charged once, after the enforced rules have admitted the request, each
//! on its own. Backend failures are ignored.

use std::{
    slice,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    admission::{ShadowReplies, Step, counts_from_arrival},
    attempt::Attempt,
    current::PolicySnapshot,
    lease::Lease,
    observe,
    state::RateLimiter,
};
use crate::{
    backend::{Charge, Decide, Outcome, OutcomeKind, OwnedCharge, Request},
    error::BackendError,
    observe::RequestResult,
    time::Timestamp,
};

/// Charges the shadow rules of a request that was admitted.
#[cold]
pub(super) fn charge_shadows(attempt: &Attempt<'_>, then: Step) -> Step {
    let Attempt { limiter, snapshot, now, .. } = *attempt;
    let (mut replies, mut leases) = (Vec::new(), Vec::new());
    for charge in attempt.shadow {
        let request = Request::new(slice::from_ref(charge), now, Duration::ZERO);
        match limiter.inner.backend.decide(&request) {
            Decide::Now(result) => leases.extend(conclude(limiter, snapshot, charge, now, &result)),
            Decide::Later(reply) => replies.push((OwnedCharge::new(charge, snapshot.policy), reply)),
        }
    }
    match replies.is_empty() {
        true => then.keep(limiter, leases),
        false => Step::AskShadows(Box::new(ShadowReplies { replies, now, leases, then })),
    }
}

/// Counts what a shadow rule says; its lease, where it has anything to keep.
fn conclude(
    limiter: &RateLimiter,
    snapshot: PolicySnapshot<'_>,
    charge: &Charge<'_>,
    now: Timestamp,
    result: &Result<Outcome, BackendError>,
) -> Option<Lease> {
    let outcome = result.as_ref().ok()?;
    let result = match outcome.answer {
        OutcomeKind::Rejected { .. } | OutcomeKind::Busy { .. } => RequestResult::ShadowRejected,
        OutcomeKind::Admitted { .. } => RequestResult::ShadowAllowed,
    };
    observe::shadow(snapshot.counters, charge.rule, result, now);
    if snapshot.policy.keeps_receipts() {
        Lease::of_shadow(limiter, charge, snapshot.policy, now, outcome)
    } else {
        None
    }
}

/// Ready once all replies have arrived. Each is kept, whatever becomes of the
/// others.
pub(super) fn poll_replies(limiter: &RateLimiter, shadows: &mut ShadowReplies, cx: &mut Context<'_>) -> Poll<()> {
    let ShadowReplies { replies, now, leases, .. } = shadows;
    replies.retain_mut(|(kept, reply)| {
        let Poll::Ready(result) = reply.as_mut().poll(cx) else { return true };
        let now = if counts_from_arrival(&result) { limiter.now() } else { *now };
        leases.extend(limiter.inner.current.with(|in_force| {
            let snapshot = PolicySnapshot { policy: kept.policy(), ..in_force };
            conclude(limiter, snapshot, &kept.charge(), now, &result)
        }));
        false
    });
    if replies.is_empty() { Poll::Ready(()) } else { Poll::Pending }
}
