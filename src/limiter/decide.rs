use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    Backing, RateLimiter,
    conclude::Answered,
    current::PolicySnapshot,
    failed::Unanswered,
    hold::Decider,
    in_line::NEWCOMER,
    later::{Decided, pending},
    room::Seat,
};
use crate::{
    backend::{Acquire, AcquireRequest, Answer, Charge, LONGEST_RACE, Local, Outcome},
    decision::Decision,
    time::{Timestamp, nanos},
};

/// On what terms a request is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) max_wait: Duration,
    /// Whether the caller says how long it waits where a rule does not, and
    /// holds on to what was charged: it acquires.
    pub(super) claims: bool,
    /// Whether the caller wants what was charged to be held, to tell of it
    /// what the provider says.
    pub(super) heeds: bool,
    /// Nanoseconds for which the request has waited already.
    pub(super) waited: u64,
    /// Whether it has had a turn already, and so was counted as one that goes
    /// after a wait.
    pub(super) counted: bool,
}

impl Terms {
    /// Whether what is charged is held in any case.
    pub(super) fn keeps(self) -> bool {
        self.claims || self.heeds
    }
}

/// How often in a row a thread may be held up between reading the clock and
/// having the lock.
const MOST_RACES: usize = 16;

pub(super) type Charges<'a> = SmallVec<[Charge<'a>; 2]>;

impl RateLimiter {
    /// Decides on these charges, by one call of the backend.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "the way of all requests of more than one tier; who comes anew is cold")]
    pub(super) fn enforce(
        &self,
        snapshot: PolicySnapshot<'_>,
        enforced: &[Charge<'_>],
        shadows: &[Charge<'_>],
        now: Timestamp,
        terms: Terms,
        decision: &mut Decision,
    ) -> Decided {
        let mut now = now;
        if let Some(until) = self.held_off(enforced, now) {
            return self.hold_off(snapshot, (enforced, shadows), (now, until), terms, decision);
        }
        let lines_up = snapshot.policy.has_in_flight || snapshot.policy.adapts;
        let ahead = if snapshot.policy.adapts { self.reserved_ahead(enforced, terms.max_wait) } else { terms.max_wait };
        let blocked = if lines_up { self.blocked(enforced, now, NEWCOMER) } else { None };
        let (answer, mut seat) = match (&self.inner.backend, blocked) {
            _ if enforced.is_empty() => (Acquire::Ready(Ok(Outcome::admitted(Duration::ZERO))), Seat::NotAsked),
            (_, Some(key)) => (Acquire::Ready(Ok(self.behind(enforced, now, terms.max_wait, key))), Seat::NotAsked),
            (Backing::Local(local), None) => {
                let (outcome, seat) = self.ask_locally(local, enforced, &mut now, ahead);
                (Acquire::Ready(Ok(outcome)), seat)
            }
            (Backing::Other(backend), None) => {
                // To ask twice would cost more than to take a seat in vain.
                let waits = longest_wait(enforced, terms.max_wait) > 0;
                let seat = if waits { self.seat(enforced) } else { Seat::NotAsked };
                let max_wait = if let Seat::Full = seat { Duration::ZERO } else { ahead };
                (backend.acquire(&AcquireRequest::new(enforced, now, max_wait)), seat)
            }
        };
        let decided = match answer {
            Acquire::Ready(Ok(mut outcome)) => {
                if snapshot.policy.adapts {
                    self.line_up_by_rate(enforced, now, terms.max_wait, &mut outcome);
                }
                if let Answer::Busy { .. } = outcome.answer
                    && let Some(waits) =
                        self.line_up(snapshot, (enforced, shadows), terms, &mut seat, &outcome, Instant::now())
                {
                    return pending(waits);
                }
                let answered =
                    Answered { now, waited: terms.waited, outcome: &outcome, terms, seat, decider: Decider::Backend };
                self.conclude(snapshot, enforced, answered, decision)
            }
            Acquire::Ready(Err(error)) => self.without_backend(
                snapshot,
                enforced,
                Unanswered { now, waited: terms.waited, error, terms },
                decision,
            ),
            Acquire::Pending(answer) => {
                return self.decide_later(snapshot, enforced, shadows, (now, terms, seat), answer);
            }
        };
        if shadows.is_empty() { decided } else { self.decide_shadows(snapshot, shadows, now, decided, decision) }
    }

    /// Asks first whether the request goes at once. Only where it has to wait
    /// is there to be a seat for it, before anything is charged: a
    /// reservation that is taken back may have been built upon.
    #[inline]
    fn ask_locally(
        &self,
        local: &Local,
        charges: &[Charge<'_>],
        now: &mut Timestamp,
        max_wait: Duration,
    ) -> (Outcome, Seat) {
        if charges.iter().any(Charge::is_smooth) && longest_wait(charges, max_wait) > 0 {
            // What could go at once may wait for its pace.
            return match self.seat(charges) {
                Seat::Taken(waiter) => (self.decide_locally(local, charges, now, max_wait), Seat::Taken(waiter)),
                seat => (self.decide_locally(local, charges, now, Duration::ZERO), seat),
            };
        }
        let outcome = self.decide_locally(local, charges, now, Duration::ZERO);
        let Answer::Rejected { retry_after: Some(retry_after) } = outcome.answer else {
            return (outcome, Seat::NotAsked);
        };
        let longest = match local.is_shared() || self.inner.cooldowns.any(*now) {
            // How long a share's queue is, only the backend knows; and what is
            // held back waits whatever its queue is.
            true => charges.iter().map(|charge| charge.max_wait).max().unwrap_or(0).min(nanos(max_wait)),
            false => longest_wait(charges, max_wait),
        };
        if retry_after > longest {
            return (outcome, Seat::NotAsked);
        }
        match self.seat(charges) {
            Seat::Taken(waiter) => (self.decide_locally(local, charges, now, max_wait), Seat::Taken(waiter)),
            seat => (outcome, seat),
        }
    }

    /// Decides here. Another thread may have read the clock later and yet have
    /// been first: to the state, this request then comes from the past, and
    /// has to wait until a time that is over. So it is asked again at a later
    /// time, if by then it would have passed.
    pub(super) fn decide_locally(
        &self,
        local: &Local,
        charges: &[Charge<'_>],
        now: &mut Timestamp,
        max_wait: Duration,
    ) -> Outcome {
        let mut outcome = local.decide(&self.request(charges, *now, max_wait));
        for _ in 0..MOST_RACES {
            let Answer::Rejected { retry_after: Some(retry_after @ ..=LONGEST_RACE) } = outcome.answer else { break };
            let later = self.inner.clock.now();
            if later.as_nanos().saturating_sub(now.as_nanos()) < retry_after {
                break;
            }
            *now = later;
            outcome = local.decide(&self.request(charges, later, max_wait));
        }
        outcome
    }

    /// What a backend in this process is asked.
    #[inline]
    pub(super) fn request<'a>(
        &self,
        charges: &'a [Charge<'a>],
        now: Timestamp,
        max_wait: Duration,
    ) -> AcquireRequest<'a> {
        let request = AcquireRequest::new(charges, now, max_wait);
        match self.inner.cooldowns.until(charges, now) {
            None => request,
            Some(until) => request.not_before(until),
        }
    }
}

/// The longest wait, in nanoseconds, that any of the charges could be let
/// have: where it is not enough, the backend need not be asked for it.
pub(super) fn longest_wait(charges: &[Charge<'_>], max_wait: Duration) -> u64 {
    let of_charge = |charge: &Charge<'_>| {
        let queue = charge.tiers().iter().map(|tier| tier.machine.longest_wait()).max();
        charge.max_wait.min(queue.unwrap_or(0))
    };
    charges.iter().map(of_charge).max().unwrap_or(0).min(nanos(max_wait))
}
