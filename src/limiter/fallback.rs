//! Failure modes: what happens to a request while the backend fails. Each rule
//! has its own, and the strictest of a request's rules decides.
//!
//! Invariant: no request waits for the fallback limiter.

use std::{sync::Arc, time::Duration};

use super::{
    admission::Step,
    attempt::{Attempt, rules},
    conclude::at_local_share,
    lease::Lease,
    observe,
    state::{Decider, Grant},
    wait::WaiterGrant,
};
use crate::{
    backend::{Charge, Receipt},
    decision::{Decision, RateLimitedKind},
    error::BackendError,
    observe::RequestResult,
    policy::{FailureMode, charge::Charges},
};

/// Decides a request without the backend. If any rule fails closed, the request
/// is rejected. Else the fallback limiter decides the rules that fail local,
/// all or nothing. Rules that fail open admit.
#[cold]
pub(super) fn fall_back(attempt: &mut Attempt<'_>, error: BackendError, decision: &mut Decision) -> Step {
    attempt.options.max_wait = Duration::ZERO;
    attempt.waiter.set(WaiterGrant::NotRequested);
    let Attempt { limiter, snapshot, enforced: charges, now, options, .. } = *attempt;
    if !options.peeks() {
        limiter.inner.backend_metrics.failed(rules(charges), &error, now);
    }
    let kind = error.kind();
    let rules_that_fail = |mode| rules(charges).filter(move |(rule, _)| rule.failure_mode(kind) == mode);
    if rules_that_fail(FailureMode::Closed).next().is_some() {
        decision.reject(RateLimitedKind::BackendUnavailable, now, None);
        decision.set_error(error);
        attempt.record(rules_that_fail(FailureMode::Closed), RequestResult::FailedClosed, decision);
        return Step::Done(None);
    }
    let keeps_lease = options.needs_lease() && !charges.is_empty();
    if !options.peeks() {
        limiter.follow_instances(snapshot.policy);
    }
    let local = at_local_share(charges, |rule| rule.failure_mode(kind) == FailureMode::Local);
    if local.is_empty() {
        if options.waited > 0 {
            decision.admit(now, options.waited);
        }
        attempt.record(rules(charges), RequestResult::FailedOpen, decision);
        // Nothing is charged, but the upstream may send feedback all the same.
        return Step::Done(keeps_lease.then(|| {
            let receipt = Receipt::counted(snapshot.policy, charges, now, []);
            let mut lease = Lease::new(limiter, Grant::new(Decider::Fallback, receipt));
            lease.is_kept = true;
            Arc::new(lease)
        }));
    }
    let request = attempt.request(&local, Duration::ZERO);
    let outcome = match options.peeks() {
        true => limiter.fallback().look(&request),
        false => limiter.fallback().charge(&request),
    };
    attempt.now = attempt.now.saturating_add(Duration::from_nanos(outcome.later));
    let mut step = attempt.conclude(&local, &outcome, Decider::Fallback, decision);
    if decision.is_allowed() && !options.peeks() {
        observe::record_also(rules_that_fail(FailureMode::Open), RequestResult::FailedOpen);
    }
    if keeps_lease && let Step::Done(Some(lease)) = &mut step {
        // Upstream feedback concerns the rules that failed open as well.
        let fails_open = |charge: &&Charge<'_>| charge.rule.failure_mode(kind) == FailureMode::Open;
        let open: Charges<'_> = charges.iter().filter(fails_open).copied().collect();
        lease.add_uncharged(Receipt::counted(snapshot.policy, &open, now, []));
    }
    step
}
