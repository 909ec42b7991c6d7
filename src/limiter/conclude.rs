//! The tail of every decision by a backend's outcome: fill in the decision,
//! keep what was charged, count and report.

use super::{
    attempt::{Attempt, Charges, longest_wait, rules},
    current::PolicySnapshot,
    grant::{Decider, Grant},
    lease::Lease,
    observe,
    queue::{in_flight, longest_in_queue},
    reservation::Reservation,
    state::{Backing, RateLimiter},
    step::Step,
    wait::{capacity::WaiterGrant, fair::Newcomer},
};
use crate::{
    backend::{Charge, Outcome, OutcomeKind, Receipt},
    decision::{Decision, RateLimitedKind},
    observe::RequestResult,
    policy::{CompiledRule, FailureMode},
    time::{Timestamp, nanos},
};

/// When to retry, in nanoseconds, while a concurrency limit is full: a guess,
/// since it is unknown when a request in flight will end.
const BUSY_RETRY: u64 = 1_000_000_000;

/// Makes a decision of the outcome for these charges of the attempt.
pub(super) fn conclude(
    limiter: &RateLimiter,
    attempt: &Attempt<'_>,
    charges: &[Charge<'_>],
    (outcome, decider): (&Outcome, Decider),
    decision: &mut Decision,
) -> Step {
    let Attempt { snapshot, now, options, .. } = *attempt;
    let mut states = outcome.tiers.iter();
    for charge in charges {
        for (tier, state) in charge.tiers().iter().zip(&mut states) {
            decision.add_tier(tier.status(state.remaining, state.reset, state.violated));
        }
    }
    let (result, step) = match outcome.answer {
        OutcomeKind::Admitted { wait } => {
            let is_delayed = wait > 0;
            let reservation = reserve(limiter, attempt, charges, (outcome, decider), wait);
            let slot = reservation.as_ref().filter(|_| is_delayed).map_or(now, Reservation::at);
            decision.admit(now, nanos(slot.saturating_since(now)).saturating_add(options.waited));
            let result = match decider {
                Decider::Fallback => RequestResult::FailedLocal,
                _ if is_delayed || options.waited > 0 => RequestResult::Delayed,
                _ => RequestResult::Allowed,
            };
            match reservation {
                Some(reservation) if is_delayed => (result, Step::Sleep(reservation)),
                reservation => (result, Step::Done(reservation)),
            }
        }
        OutcomeKind::Busy { .. } | OutcomeKind::Rejected { .. } => {
            let (kind, retry_after) = rejection(attempt, charges, outcome.answer);
            decision.reject(kind, now, retry_after);
            (RequestResult::Rejected, Step::Done(None))
        }
    };
    let is_counted = options.counted && decision.is_allowed();
    if !charges.is_empty() && !is_counted {
        observe::record(snapshot.counters, rules(charges), result, decision, now);
    }
    step
}

/// What the request keeps of what it was charged; `None` where that is nothing.
fn reserve(
    limiter: &RateLimiter,
    attempt: &Attempt<'_>,
    charges: &[Charge<'_>],
    (outcome, decider): (&Outcome, Decider),
    wait: u64,
) -> Option<Reservation> {
    let Attempt { snapshot, now, options, .. } = *attempt;
    let policy = snapshot.policy;
    let keeps_lease = options.keeps_lease() && !charges.is_empty()
        || policy.keeps_receipts && charges.iter().any(|charge| is_kept_by(charge));
    let is_kept = keeps_lease || wait > 0;
    let mirrors = policy.fails_locally && decider == Decider::Backend;
    let mirror = if mirrors { keep_warm(limiter, snapshot, charges, now, is_kept) } else { None };
    is_kept.then(|| {
        let grant = Grant { mirror, ..Grant::new(decider, Receipt::new(policy, charges, now, outcome)) };
        match (wait, charges) {
            (0, _) => Reservation::now(Lease::new(limiter, grant), keeps_lease),
            (_, [charge]) if charge.rule.options.fair => {
                Reservation::later(limiter, grant, keeps_lease, now, Some(newcomer(attempt, charge)))
            }
            _ => Reservation::later(limiter, grant, keeps_lease, now, None),
        }
    })
}

/// Whether anything is left to do for a charge after its request is sent.
fn is_kept_by(charge: &Charge<'_>) -> bool {
    let rule = charge.rule;
    let is_settled = rule.is_settled_late() || rule.ladder.is_some() || rule.counts_messages();
    is_settled || in_flight(charge).next().is_some()
}

/// A waiter among the tenants that wait for this charge's counter.
fn newcomer<'a>(attempt: &Attempt<'_>, charge: &Charge<'a>) -> Newcomer<'a> {
    let longest = charge.max_wait.min(nanos(attempt.options.max_wait));
    Newcomer {
        key: charge.key,
        cost: charge.cost,
        tiers: charge.tiers().as_ptr().addr(),
        tenant: charge.tenant,
        now: attempt.now,
        deadline: attempt.now.as_nanos().saturating_add(longest),
    }
}

/// Why these charges are rejected, and when to retry.
fn rejection(attempt: &Attempt<'_>, charges: &[Charge<'_>], answer: OutcomeKind) -> (RateLimitedKind, Option<u64>) {
    let max_wait = attempt.options.max_wait;
    let (may_wait, retry_after) = match answer {
        OutcomeKind::Busy { key } => (longest_in_queue(charges, key, max_wait) > 0, Some(BUSY_RETRY)),
        OutcomeKind::Rejected { retry_after: Some(after) } => (after <= longest_wait(charges, max_wait), Some(after)),
        _ => return (RateLimitedKind::NeverFits, None),
    };
    let is_full = matches!(attempt.waiter, WaiterGrant::Full);
    (if is_full && may_wait { RateLimitedKind::QueueFull } else { RateLimitedKind::QuotaExceeded }, retry_after)
}

/// Keeps the fallback limiter warm: it counts what the backend admits for rules
/// with `FailureMode::Local`, so that no key gets a whole quota again when the
/// backend fails. Returns what was counted, if it `is_kept`.
#[cold]
fn keep_warm(
    limiter: &RateLimiter,
    snapshot: PolicySnapshot<'_>,
    charges: &[Charge<'_>],
    now: Timestamp,
    is_kept: bool,
) -> Option<Box<Receipt>> {
    // A backend in this process does not fail.
    let Backing::Other(_) = limiter.inner.backend else { return None };
    let local = at_local_share(charges, |rule| rule.options.on_backend_failure == Some(FailureMode::Local));
    if local.is_empty() {
        return None;
    }
    let counted = limiter.fallback().count(&local, now);
    is_kept.then(|| Box::new(Receipt::counted(snapshot.policy, &local, now, counted)))
}

/// The charges of rules that fail local, at their local share of the limits.
pub(super) fn at_local_share<'a>(charges: &[Charge<'a>], fails_local: impl Fn(&CompiledRule) -> bool) -> Charges<'a> {
    let local = charges.iter().filter(|charge| fails_local(charge.rule));
    local.map(|charge| charge.for_fallback()).collect()
}
