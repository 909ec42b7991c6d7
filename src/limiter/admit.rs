//! The synchronous core: decides a request, and says what it does next. Never
//! awaits, and keeps nothing of the request.
//!
//! Invariant: [`admit`] makes every decision, whatever the request waited for
//! before, except the immediate allow of `local.rs`.

use std::time::Duration;

use super::{
    attempt::{Attempt, longest_wait, rules},
    conclude::conclude,
    fallback::fall_back,
    grant::Decider,
    local::decide_local,
    observe,
    queue::longest_in_queue,
    shadow::charge_shadows,
    state::{Backing, RateLimiter},
    step::{Ask, Event, Queue, Step},
    wait::capacity::WaiterGrant,
};
use crate::{
    backend::{Acquire, AcquireRequest, Charge, InProcess, Outcome, OutcomeKind},
    decision::{Decision, RateLimitedKind},
    error::BackendError,
    observe::RequestResult,
    time::{Timestamp, nanos},
};

/// The shortest time after which the limiter counts a backend without a reply
/// as failed. It also applies to a request that may wait for less: a caller
/// with a short deadline must not be able to make a rule fail open.
const REPLIES_WITHIN: Duration = Duration::from_secs(1);

/// Decides a request.
pub(super) fn admit(limiter: &RateLimiter, attempt: &mut Attempt<'_>, event: Event, decision: &mut Decision) -> Step {
    match event {
        Event::Arrived => ask(limiter, attempt, decision),
        // A backend that has just failed is not asked for shadow rules: that
        // might take as long again.
        Event::Replied(Err(error)) => fall_back(limiter, attempt, error, decision),
        Event::Replied(Ok(outcome)) => reply(limiter, attempt, Ok(outcome), decision),
        Event::TimedOut(outcome) => {
            conclude(limiter, attempt, attempt.enforced, (&outcome, Decider::Backend), decision)
        }
    }
}

/// Asks the backend, unless a key is cooling down, or another request is ahead
/// in its queue.
fn ask(limiter: &RateLimiter, attempt: &mut Attempt<'_>, decision: &mut Decision) -> Step {
    if attempt.enforced.is_empty() {
        return reply(limiter, attempt, Ok(Outcome::admitted(Duration::ZERO)), decision);
    }
    let of_endpoint = attempt.options.endpoint_until.filter(|until| *until > attempt.now);
    if let Some(until) = limiter.cooling_until(attempt.enforced, attempt.now).max(of_endpoint) {
        return cool_down(limiter, attempt, until, decision);
    }
    if let Some(until) = limiter.inner.cooldowns.paced_until(attempt.enforced, attempt.now)
        && nanos(until.saturating_since(attempt.now)) > shortest_bound(attempt)
    {
        return cool_down(limiter, attempt, until, decision);
    }
    let blocked = limiter.blocked(attempt);
    let result = match (&limiter.inner.backend, blocked) {
        (_, Some(key)) => Ok(limiter.behind(attempt, key)),
        (Backing::InProcess(engine), None) => Ok(ask_local(limiter, engine, attempt)),
        (Backing::Other(backend), None) => {
            // Unlike a backend in this process, it is asked once: a second
            // round trip costs more than to count a waiter that never waits.
            if longest_wait(attempt.enforced, attempt.options.max_wait) > 0 {
                attempt.enter(limiter);
            }
            let is_full = matches!(attempt.waiter, WaiterGrant::Full);
            let max_wait = if is_full { Duration::ZERO } else { limiter.reserved_ahead(attempt) };
            match backend.acquire(&AcquireRequest::new(attempt.enforced, attempt.now, max_wait)) {
                Acquire::Ready(result) => result,
                Acquire::Pending(reply) => {
                    return Step::Ask(Box::new(Ask {
                        reply,
                        now: attempt.now,
                        waited: 0,
                        reply_timeout: reply_timeout(attempt),
                    }));
                }
            }
        }
    };
    reply(limiter, attempt, result, decision)
}

/// Turns the backend's reply into the next step.
fn reply(
    limiter: &RateLimiter,
    attempt: &mut Attempt<'_>,
    result: Result<Outcome, BackendError>,
    decision: &mut Decision,
) -> Step {
    let step = match result {
        Ok(mut outcome) => {
            let pause = limiter.queue_for_rate(attempt, &mut outcome);
            if let OutcomeKind::Busy { key } = outcome.answer
                && longest_in_queue(attempt.enforced, key, attempt.options.max_wait) > 0
                && attempt.enter(limiter)
            {
                return Step::Queue(Box::new(Queue { key, outcome, pause, times: None }));
            }
            conclude(limiter, attempt, attempt.enforced, (&outcome, Decider::Backend), decision)
        }
        // Shadow rules would ask in vain.
        Err(error) => return fall_back(limiter, attempt, error, decision),
    };
    match attempt.shadow.is_empty() || !decision.is_allowed() {
        true => step,
        false => charge_shadows(limiter, attempt, step),
    }
}

/// A key is cooling down: the request waits for the end, or is rejected.
#[cold]
fn cool_down(limiter: &RateLimiter, attempt: &mut Attempt<'_>, until: Timestamp, decision: &mut Decision) -> Step {
    let wait = nanos(until.saturating_since(attempt.now));
    let may_wait = wait <= shortest_bound(attempt);
    if may_wait && attempt.enter(limiter) {
        return Step::CoolDown(until);
    }
    let kind = if may_wait { RateLimitedKind::QueueFull } else { RateLimitedKind::QuotaExceeded };
    decision.reject(kind, attempt.now, Some(wait));
    observe::record(attempt.snapshot.counters, rules(attempt.enforced), RequestResult::Rejected, decision, attempt.now);
    Step::Done(None)
}

/// The longest that the request may wait for all of its rules.
fn shortest_bound(attempt: &Attempt<'_>) -> u64 {
    let of_rules = attempt.enforced.iter().map(|charge| charge.max_wait).min().unwrap_or(0);
    of_rules.min(nanos(attempt.options.max_wait))
}

/// Two passes: first tries to admit the request at once; only if it has to
/// wait, counts it as a waiter and reserves a slot. A needless reservation
/// would cost units: its refund may be forfeited if other requests have
/// reserved slots behind it.
#[inline]
fn ask_local(limiter: &RateLimiter, engine: &InProcess, attempt: &mut Attempt<'_>) -> Outcome {
    let max_wait = limiter.reserved_ahead(attempt);
    let charges = attempt.enforced;
    // A smooth rule may delay a request that could be admitted at once.
    if charges.iter().any(Charge::is_smooth) && longest_wait(charges, max_wait) > 0 {
        let max_wait = if attempt.enter(limiter) { max_wait } else { Duration::ZERO };
        return decide_local(limiter, engine, charges, &mut attempt.now, max_wait);
    }
    let outcome = decide_local(limiter, engine, charges, &mut attempt.now, Duration::ZERO);
    let OutcomeKind::Rejected { retry_after: Some(retry_after) } = outcome.answer else { return outcome };
    if max_wait.is_zero() {
        return outcome;
    }
    let longest = match engine.has_shares() || limiter.inner.cooldowns.any(attempt.now) {
        // Only the backend knows how long a share's queue is, and a cooldown
        // delays a request however short its queue.
        true => charges.iter().map(|charge| charge.max_wait).max().unwrap_or(0).min(nanos(max_wait)),
        false => longest_wait(charges, max_wait),
    };
    if retry_after > longest || !attempt.enter(limiter) {
        return outcome;
    }
    decide_local(limiter, engine, charges, &mut attempt.now, max_wait)
}

/// How long to wait for a reply: as long as the request may wait. `None` where
/// it may not wait: the backend's own deadline is then the bound. In a queue
/// there is always a bound, since other requests wait behind this one.
fn reply_timeout(attempt: &Attempt<'_>) -> Option<Duration> {
    let (charges, max_wait) = (attempt.enforced, attempt.options.max_wait);
    let longest = match attempt.queued {
        Some((key, _)) => Duration::from_nanos(longest_in_queue(charges, key, max_wait)),
        None => charges.iter().map(Charge::max_wait).max().unwrap_or_default().min(max_wait),
    };
    (attempt.queued.is_some() || !longest.is_zero()).then(|| longest.max(REPLIES_WITHIN))
}
