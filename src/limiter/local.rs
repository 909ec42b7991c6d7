//! Deciding by a backend in this process, whose clock is the limiter's.

use std::time::Duration;

use super::state::RateLimiter;
use crate::{
    backend::{Charge, InProcess, LONGEST_RACE, Outcome, OutcomeKind},
    time::Timestamp,
};

/// How often in a row a thread may be overtaken between reading the clock and
/// taking the lock.
const MOST_RACES: usize = 16;

/// Decides in this process. Another thread may read the clock later and take
/// the lock first. The state is then ahead of this request's time, and the
/// request is rejected for a wait that may already be over. If it is, the
/// request is decided again, at the clock's current time.
pub(super) fn decide_local(
    limiter: &RateLimiter,
    engine: &InProcess,
    charges: &[Charge<'_>],
    now: &mut Timestamp,
    max_wait: Duration,
) -> Outcome {
    let mut outcome = engine.decide(&limiter.request(charges, *now, max_wait));
    for _ in 0..MOST_RACES {
        let OutcomeKind::Rejected { retry_after: Some(retry_after @ ..=LONGEST_RACE) } = outcome.answer else { break };
        let later = limiter.now();
        if later.as_nanos().saturating_sub(now.as_nanos()) < retry_after {
            break;
        }
        *now = later;
        outcome = engine.decide(&limiter.request(charges, later, max_wait));
    }
    outcome
}
