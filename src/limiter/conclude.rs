//! The tail of every decision by a backend's outcome: fill in the decision,
//! keep what was charged, count and report.

use super::{
    attempt::{Attempt, Charges, longest_wait, rules},
    current::PolicySnapshot,
    grant::{Decider, Grant},
    lease::{Lease, is_kept_by},
    observe,
    queue::longest_in_queue,
    reservation::Reservation,
    state::{Backing, RateLimiter},
    step::Step,
    upstream::Postponement,
    wait::{capacity::WaiterGrant, slots::Newcomer},
};
use crate::{
    backend::{Charge, Outcome, OutcomeKind, Receipt},
    decision::{Decision, RateLimitedKind},
    fingerprint::Scope,
    observe::RequestResult,
    policy::{CompiledRule, FailureMode},
    time::{Timestamp, nanos},
};

/// When to retry, in nanoseconds, while a concurrency limit is full: a guess,
/// since it is unknown when a request in flight will end.
pub(super) const BUSY_RETRY: u64 = 1_000_000_000;

/// Makes a decision of the outcome for these charges of the attempt.
pub(super) fn conclude(
    limiter: &RateLimiter,
    attempt: &mut Attempt<'_>,
    charges: &[Charge<'_>],
    (outcome, decider): (&Outcome, Decider),
    decision: &mut Decision,
) -> Step {
    let Attempt { snapshot, now, options, .. } = *attempt;
    let mut states = outcome.tiers.iter();
    for charge in charges {
        for (tier, state) in charge.tiers().iter().zip(&mut states) {
            decision.add_tier(tier.status(state.remaining, state.resets_in(), state.violated));
        }
    }
    let (result, step) = match outcome.answer {
        OutcomeKind::Admitted { wait: 0 } => {
            let put_off = match decider {
                Decider::Backend => limiter.inner.cooldowns.claim(charges, None, now),
                _ => None,
            };
            let wait = put_off.map_or(0, |put_off| nanos(put_off.at.saturating_since(now)));
            let reservation = reserve(limiter, attempt, charges, (outcome, decider), (0, put_off));
            decision.admit(now, wait.saturating_add(options.waited));
            let result = match decider {
                Decider::Fallback => RequestResult::FailedLocal,
                _ if wait > 0 || options.waited > 0 => RequestResult::Delayed,
                _ => RequestResult::Allowed,
            };
            match reservation {
                Some(reservation) if wait > 0 => (result, Step::Sleep(reservation)),
                reservation => (result, Step::Done(reservation)),
            }
        }
        answer => {
            let reservation = match answer {
                OutcomeKind::Admitted { wait } => reserve(limiter, attempt, charges, (outcome, decider), (wait, None)),
                OutcomeKind::Rejected { .. } if decider == Decider::Backend => free_slot(limiter, attempt, charges),
                _ => None,
            };
            match reservation {
                Some(reservation) => {
                    let wait = nanos(reservation.at().saturating_since(now));
                    decision.admit(now, wait.saturating_add(options.waited));
                    (RequestResult::Delayed, Step::Sleep(reservation))
                }
                None => {
                    let (kind, retry_after) = rejection(attempt, charges, answer);
                    decision.reject(kind, now, retry_after);
                    (RequestResult::Rejected, Step::Done(None))
                }
            }
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
    (wait, put_off): (u64, Option<Postponement>),
) -> Option<Reservation> {
    let Attempt { snapshot, now, .. } = *attempt;
    let policy = snapshot.policy;
    let keeps_lease = keeps_lease(attempt, charges);
    let is_kept = keeps_lease || wait > 0 || put_off.is_some();
    let mirrors = policy.fails_locally && decider == Decider::Backend;
    let mirror = if mirrors { keep_warm(limiter, snapshot, charges, now, is_kept) } else { None };
    is_kept.then(|| {
        let grant = Grant { mirror, ..Grant::new(decider, Receipt::new(policy, charges, now, outcome)) };
        match wait {
            0 => Reservation::now(Lease::new(limiter, grant), keeps_lease).put_off(put_off),
            _ => Reservation::later(limiter, grant, keeps_lease, newcomer(attempt, charges)),
        }
    })
}

/// A slot that the queue of these charges keeps free, where there is one in
/// time: others may have reserved all later ones. Under a fair rule, a slot of a
/// tenant that has more waiters.
fn free_slot(limiter: &RateLimiter, attempt: &mut Attempt<'_>, charges: &[Charge<'_>]) -> Option<Reservation> {
    if limiter.inner.waiters.waiting() == 0 {
        return None;
    }
    let Newcomer { now, deadline, .. } = newcomer(attempt, charges);
    if deadline <= now {
        return None;
    }
    let keeps_lease = keeps_lease(attempt, charges);
    let policy = attempt.snapshot.policy;
    let (reservation, is_taken) = Reservation::free(limiter, policy, charges, keeps_lease, newcomer(attempt, charges))?;
    if !attempt.enter(limiter) {
        if !is_taken {
            return None;
        }
        attempt.replace_waiter(limiter);
    }
    Some(reservation)
}

/// Whether a request keeps a lease after it is sent.
fn keeps_lease(attempt: &Attempt<'_>, charges: &[Charge<'_>]) -> bool {
    attempt.options.needs_lease() && !charges.is_empty()
        || attempt.snapshot.policy.keeps_receipts() && charges.iter().any(|charge| is_kept_by(charge))
}

/// A waiter in the queue of all that are charged the same.
fn newcomer(attempt: &Attempt<'_>, charges: &[Charge<'_>]) -> Newcomer {
    let tenant = match charges {
        [charge] if charge.rule.options.fair => Some(Scope::new(&["fair"]).key(charge.tenant).hash()),
        _ => None,
    };
    let now = attempt.now.as_nanos();
    let longest = charges.iter().map(|charge| charge.max_wait).min().unwrap_or(0).min(nanos(attempt.options.max_wait));
    Newcomer { tenant, now, earliest: 0, deadline: now.saturating_add(longest) }
}

/// Why these charges are rejected, and when to retry.
fn rejection(attempt: &Attempt<'_>, charges: &[Charge<'_>], answer: OutcomeKind) -> (RateLimitedKind, Option<u64>) {
    let is_full = matches!(attempt.waiter, WaiterGrant::Full);
    let max_wait = attempt.options.max_wait;
    let (lacks_place, retry_after) = match answer {
        OutcomeKind::Busy { key } => (is_full && longest_in_queue(charges, key, max_wait) > 0, BUSY_RETRY),
        OutcomeKind::Rejected { retry_after: Some(after) } => {
            (is_full && after <= longest_wait(charges, max_wait), after)
        }
        _ => return (RateLimitedKind::NeverFits, None),
    };
    let kind = if lacks_place { RateLimitedKind::QueueFull } else { RateLimitedKind::QuotaExceeded };
    (kind, Some(retry_after))
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
    limiter.follow_instances(snapshot.policy);
    let counted = limiter.fallback().count(&local, now);
    is_kept.then(|| Box::new(Receipt::counted(snapshot.policy, &local, now, counted)))
}

/// The charges of rules that fail local, at their local share of the limits.
pub(super) fn at_local_share<'a>(charges: &[Charge<'a>], fails_local: impl Fn(&CompiledRule) -> bool) -> Charges<'a> {
    let local = charges.iter().filter(|charge| fails_local(charge.rule));
    local.map(|charge| charge.for_fallback()).collect()
}
