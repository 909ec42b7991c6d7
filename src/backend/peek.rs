//! Questions that charge nothing, and counters that are forgotten: the default
//! of `Backend::peek`, and [`Reset`].
//!
//! The invariant: an answer to a question never says that more is left than the
//! backend has reported.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use smallvec::SmallVec;

use super::{
    outcome::{Outcome, OutcomeKind},
    request::{Decide, Request},
};
use crate::{
    error::{BackendError, BackendErrorKind},
    policy::charge::Charge,
    quota::{Algorithm, Quota},
    time::nanos,
};

/// The reply to [`Backend::reset`](super::Backend::reset), now or later.
#[non_exhaustive]
pub enum Reset {
    /// Done, or failed.
    Ready(Result<(), BackendError>),
    /// A remote store forgets. Dropping the future may leave it done or not.
    Pending(Resetting),
}

/// The future of a store that forgets.
pub type Resetting = Pin<Box<dyn Future<Output = Result<(), BackendError>> + Send>>;

impl fmt::Debug for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

/// When to ask again, in nanoseconds, while a concurrency limit is full.
const GUESS: u64 = 1_000_000_000;

/// What a question asks of each tier, in the order of the charges.
type Asked = SmallVec<[(u64, Quota); 2]>;

/// Asks by a charge of nothing, and compares what it leaves with the cost.
pub(super) fn by_free_charge(request: &Request<'_>, decide: impl FnOnce(&Request<'_>) -> Decide) -> Decide {
    let free: SmallVec<[Charge<'_>; 2]> = request.charges.iter().map(|charge| Charge { cost: 0, ..*charge }).collect();
    let asked = |charge: &Charge<'_>| charge.tiers().iter().map(|tier| (charge.cost, *tier.quota())).collect::<Asked>();
    let asked: Asked = request.charges.iter().flat_map(asked).collect();
    let free = Request::new(&free, request.now, Duration::ZERO).not_before(request.not_before);
    match decide(&free) {
        Decide::Now(result) => Decide::Now(result.and_then(|outcome| answer(outcome, &asked))),
        Decide::Later(reply) => Decide::later(async move { answer(reply.await?, &asked) }),
    }
}

/// The answer for the costs that were asked for, by the status of each tier.
fn answer(mut outcome: Outcome, asked: &[(u64, Quota)]) -> Result<Outcome, BackendError> {
    if outcome.tiers.len() != asked.len() {
        let reason = "the backend does not report what is left";
        return Err(BackendError::new(BackendErrorKind::Unsupported, reason));
    }
    if !outcome.is_admitted() {
        return Ok(outcome);
    }
    let mut wait = Some(0);
    for (tier, (cost, quota)) in outcome.tiers.iter_mut().zip(asked) {
        tier.violated = tier.remaining < *cost;
        if tier.violated {
            let can_pass = *cost <= quota.capacity() && quota.limit() > 0;
            let time = can_pass.then(|| longest_wait(cost - tier.remaining, quota, tier.reset));
            wait = wait.zip(time).map(|(wait, time): (u64, u64)| wait.max(time));
        }
    }
    if outcome.tiers.iter().any(|tier| tier.violated) {
        outcome.answer = OutcomeKind::Rejected { retry_after: wait };
    }
    Ok(outcome)
}

/// The longest that it takes, in nanoseconds, until so many more units are free.
fn longest_wait(missing: u64, quota: &Quota, reset: u64) -> u64 {
    match quota.counted_by() {
        Algorithm::Concurrency => GUESS,
        algorithm if algorithm.has_burst() => {
            let refill = u128::from(missing) * u128::from(nanos(quota.window())) / u128::from(quota.limit().max(1)) + 1;
            u64::try_from(refill).unwrap_or(u64::MAX).min(reset)
        }
        // The next window counts this one in part.
        Algorithm::SlidingWindow => reset.saturating_add(nanos(quota.window())),
        _ => reset,
    }
}
