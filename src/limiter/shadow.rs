//! Shadow mode: rules that are evaluated and counted, and never reject. They
//! are charged once, after the enforced rules have admitted the request, each
//! on its own. Backend failures are ignored. A peek asks them whatever the enforced
//! rules say.

use std::{
    iter, slice,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    admission::{ShadowReplies, Step, counts_from_arrival},
    attempt::{Attempt, AttemptOptions},
    conclude::{BUSY_RETRY, add_tiers, state_status},
    current::PolicySnapshot,
    lease::Lease,
    observe,
    state::{Decider, Grant, RateLimiter},
};
use crate::{
    backend::{Charge, Decide, Outcome, OutcomeKind, OwnedCharge, Receipt, Request},
    decision::{Decision, RateLimitedKind},
    error::BackendError,
};

/// Asks the shadow rules of a request that was admitted, or is peeked at.
#[cold]
pub(super) fn ask_shadows(attempt: &Attempt<'_>, then: Step, decision: &mut Decision) -> Step {
    let Attempt { limiter, snapshot, now, path, options, .. } = *attempt;
    let (mut replies, mut leases) = (Vec::new(), Vec::new());
    for charge in attempt.shadow {
        let request = Request::new(slice::from_ref(charge), now, Duration::ZERO);
        let backend = &limiter.inner.backend;
        match if options.peeks() { backend.peek(&request) } else { backend.decide(&request) } {
            Decide::Now(result) => leases.extend(attempt.conclude_shadow(charge, &result, decision)),
            Decide::Later(reply) => replies.push((OwnedCharge::new(charge, snapshot.policy), reply)),
        }
    }
    if replies.is_empty() {
        return then.keep(limiter, leases);
    }
    let path = path.map(str::to_owned);
    Step::AskShadows(Box::new(ShadowReplies { replies, now, leases, path, then }))
}

impl Attempt<'_> {
    /// Adds to the decision what a shadow rule says, and counts it; its lease, where it has
    /// anything to keep.
    fn conclude_shadow(
        &self,
        charge: &Charge<'_>,
        result: &Result<Outcome, BackendError>,
        decision: &mut Decision,
    ) -> Option<Lease> {
        let Self { limiter, snapshot, now, path, options, .. } = *self;
        let outcome = result.as_ref().ok()?;
        let mut own = Decision::unlimited();
        add_tiers(&mut own, slice::from_ref(charge), &outcome.tiers);
        match outcome.answer {
            OutcomeKind::Admitted { .. } => own.admit(now, 0),
            OutcomeKind::Busy { .. } => own.reject(RateLimitedKind::Concurrency, now, Some(BUSY_RETRY)),
            OutcomeKind::Rejected { retry_after: None } => own.reject(RateLimitedKind::NeverFits, now, None),
            OutcomeKind::Rejected { retry_after } => own.reject(RateLimitedKind::QuotaExceeded, now, retry_after),
        }
        let (charges, is_allowed) = (slice::from_ref(charge), own.is_allowed());
        if !is_allowed {
            state_status(iter::once(charge.rule), &mut own);
        }
        if !options.peeks() {
            observe::shadow(snapshot.counters, charge, path, &own, now);
            let top = limiter.inner.top.as_deref();
            match is_allowed {
                true => observe::count_units(top, snapshot.counters, charges, &own, now),
                false => observe::count_rejection(top, charges, &own, now),
            }
        }
        decision.add_shadow(own);
        let has_more_to_do = charge.is_in_flight() || charge.rule.is_settled_late();
        (is_allowed && has_more_to_do && !options.peeks()).then(|| {
            let receipt = Receipt::new(snapshot.policy, charges, now, outcome);
            Lease::new(limiter, Grant::new(Decider::Backend, receipt))
        })
    }
}

/// Ready once all replies have arrived. Each is kept, whatever becomes of the
/// others.
pub(super) fn poll_replies(
    limiter: &RateLimiter,
    options: AttemptOptions,
    shadows: &mut ShadowReplies,
    decision: &mut Decision,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let ShadowReplies { replies, now, leases, path, .. } = shadows;
    replies.retain_mut(|(kept, reply)| {
        let Poll::Ready(result) = reply.as_mut().poll(cx) else { return true };
        let now = if counts_from_arrival(&result) { limiter.now() } else { *now };
        leases.extend(limiter.inner.current.with(|in_force| {
            let snapshot = PolicySnapshot { policy: kept.policy(), ..in_force };
            let mut attempt = Attempt::new(limiter, snapshot, (&[], &[]), now, options);
            attempt.path = path.as_deref();
            attempt.conclude_shadow(&kept.charge(), &result, decision)
        }));
        false
    });
    if replies.is_empty() { Poll::Ready(()) } else { Poll::Pending }
}
