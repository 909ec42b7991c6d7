//! Requests that wait for a free unit of a limit on what is in flight, or for
//! a rate that may be another by then.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    Backing, RateLimiter, adapted,
    conclude::Answered,
    current::PolicySnapshot,
    decide::{Charges, Terms},
    failed::Unanswered,
    hold::Decider,
    later::{Decided, Deciding},
    line::Ticket,
    pending::{ANSWERS_WITHIN, counts_from_arrival},
    room::{Seat, Waiter},
};
use crate::{
    backend::{Acquire, AcquireRequest, Answer, Charge, Local, Outcome, OwnedCharge},
    decision::Decision,
    error::BackendError,
    fingerprint::Fingerprint,
    policy::CompiledPolicy,
    time::{Timestamp, nanos},
};

/// The number of one who is in no line: all who are came before.
pub(super) const NEWCOMER: u64 = u64::MAX;

/// A unit may have come back to a store without anybody here knowing of it, or
/// this instance's share may have grown: so the first in line asks again after
/// this time.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What was asked, to be asked again. It holds nothing meanwhile.
struct Asked {
    policy: Arc<CompiledPolicy>,
    enforced: Vec<OwnedCharge>,
    shadows: Vec<OwnedCharge>,
    terms: Terms,
    /// From when on it waits.
    came: Instant,
    /// When it was called last.
    called: Instant,
}

/// The keys under which a charge counts what is in flight.
fn in_flight<'c>(charge: &'c Charge<'_>) -> impl Iterator<Item = [Fingerprint; 2]> + 'c {
    let applied = &charge.applied;
    let tiers = charge.tiers().iter().filter(|tier| charge.cost > 0 && tier.is_in_flight());
    tiers.map(|tier| [applied.key.tier(tier.salt), applied.rule.overflow.tier(tier.salt)])
}

/// Whether those stand in the line of `key` who wait for a charge.
fn is_of(key: Fingerprint, charge: &Charge<'_>) -> bool {
    in_flight(charge).chain(adapted::turn::line(charge)).any(|keys| keys.contains(&key))
}

/// Whether anything is left to be done about a charge once its request goes.
pub(super) fn holds(charge: &Charge<'_>) -> bool {
    let rule = charge.applied.rule;
    let settled = rule.is_settled_late() || rule.ladder.is_some() || rule.counts_messages();
    settled || in_flight(charge).next().is_some()
}

/// How long, in nanoseconds, a request may wait for a unit of `key`: as long
/// as the rule lets it that it is of.
pub(super) fn longest_in_line(charges: &[Charge<'_>], key: Fingerprint, max_wait: Duration) -> u64 {
    let of_rule = charges.iter().find(|charge| is_of(key, charge));
    // A backend of its own kind may call its keys something else.
    let rule = of_rule.map(|charge| charge.max_wait);
    rule.or_else(|| charges.iter().map(|charge| charge.max_wait).min()).unwrap_or(0).min(nanos(max_wait))
}

impl RateLimiter {
    /// A key of the charges for which others wait who came before `number`:
    /// nobody overtakes them, even if a unit is free.
    pub(super) fn blocked(&self, charges: &[Charge<'_>], now: Timestamp, number: u64) -> Option<Fingerprint> {
        let lines = &self.inner.lines;
        if lines.are_empty() {
            return None;
        }
        let mut keys = charges.iter().flat_map(in_flight).chain(adapted::turn::lines(charges)).map(|[own, _]| own);
        keys.find(|key| lines.has_before(*key, number)).or_else(|| self.blocked_by_others(charges, now, number))
    }

    /// The same where a limit on what is in flight is counted with the rule's
    /// other keys: only the backend knows, which is asked if anybody waits.
    fn blocked_by_others(&self, charges: &[Charge<'_>], now: Timestamp, number: u64) -> Option<Fingerprint> {
        let Backing::Local(local) = &self.inner.backend else { return None };
        let waits = |key: &Fingerprint| self.inner.lines.has_before(*key, number);
        if !charges.iter().flat_map(in_flight).any(|[_, shared]| waits(&shared)) {
            return None;
        }
        local.shared_in_flight(&self.request(charges, now, Duration::ZERO)).into_iter().find(waits)
    }

    /// The answer to who is blocked: it would have to overtake.
    pub(super) fn behind(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        max_wait: Duration,
        key: Fingerprint,
    ) -> Outcome {
        let mut outcome = Outcome::admitted(Duration::ZERO);
        if let Backing::Local(local) = &self.inner.backend {
            outcome = local.look(&self.request(charges, now, max_wait));
            // What will never pass, or not in time, need not stand in line.
            if let Answer::Rejected { .. } = outcome.answer {
                return outcome;
            }
            let tiers = charges.iter().flat_map(|charge| charge.tiers().iter().map(move |tier| (charge, tier)));
            for ((charge, tier), state) in tiers.zip(&mut outcome.tiers) {
                let applied = &charge.applied;
                state.violated =
                    [applied.key, applied.rule.overflow].iter().any(|counter| counter.tier(tier.salt) == key);
            }
        }
        Outcome { answer: Answer::Busy { key }, ..outcome }
    }

    /// Lets a request wait for a unit of `key`, if it may and there is a seat.
    pub(super) fn line_up(
        &self,
        snapshot: PolicySnapshot<'_>,
        (enforced, shadows): (&[Charge<'_>], &[Charge<'_>]),
        terms: Terms,
        seat: &mut Seat,
        outcome: &Outcome,
        came: Instant,
    ) -> Option<Deciding> {
        let Answer::Busy { key } = outcome.answer else { return None };
        if longest_in_line(enforced, key, terms.max_wait) == 0 {
            return None;
        }
        if let Seat::NotAsked = seat {
            *seat = self.seat(enforced);
        }
        let waiter = match std::mem::replace(seat, Seat::NotAsked) {
            Seat::Taken(waiter) => waiter,
            other => {
                *seat = other;
                return None;
            }
        };
        let keep = |charges| OwnedCharge::all(charges, snapshot.policy);
        let policy = Arc::clone(snapshot.policy);
        let asked = Asked { policy, enforced: keep(enforced), shadows: keep(shadows), terms, came, called: came };
        // From here on its place is kept, polled or not.
        let ticket = Ticket::join(self, key);
        Some(Box::pin(self.clone().in_line(asked, ticket, waiter, outcome.clone())))
    }

    /// Waits to be called, and asks for everything anew; until it goes, is
    /// rejected for another reason, or may wait no longer.
    async fn in_line(
        self,
        mut asked: Asked,
        mut ticket: Ticket,
        waiter: Waiter,
        mut outcome: Outcome,
    ) -> (Decision, Decided) {
        let mut pause = None;
        loop {
            let called = self.call_of(&asked, &ticket, pause.take()).await;
            if called {
                asked.has_waited_for(ticket.key());
                asked.catch_up(&self.inner.current.policy());
                let now = self.now();
                if let Some(until) = self.held_off(&asked.charges(0), now) {
                    // It is in nobody's way, who may be held back less.
                    drop((ticket, waiter));
                    return self.hold_off_in_line(&asked, now, until);
                }
                asked.at_their_rates(&self);
            }
            let mut now = self.now();
            let mut waited = nanos(asked.came.elapsed());
            let mut result = if called { self.ask_again(&asked, &ticket, &mut now, waited).await } else { Ok(outcome) };
            if called && counts_from_arrival(&result) {
                (now, waited) = (self.now(), nanos(asked.came.elapsed()));
            }
            if let (true, Ok(outcome)) = (called, &mut result) {
                let left = asked.terms.max_wait.saturating_sub(Duration::from_nanos(waited));
                pause = self.line_up_by_rate(&asked.charges(waited), now, left, outcome);
            }
            match result {
                Ok(busy) if called && matches!(busy.answer, Answer::Busy { .. }) => {
                    if let Answer::Busy { key } = busy.answer
                        && key != ticket.key()
                    {
                        ticket = ticket.move_to(key);
                    }
                    outcome = busy;
                }
                result => {
                    let decided = self.conclude_in_line(&asked, result, now, waited, waiter);
                    // Only now is it the next one's turn.
                    drop(ticket);
                    return decided;
                }
            }
        }
    }

    /// Whether it was called, rather than had to wait for too long.
    async fn call_of(&self, asked: &Asked, ticket: &Ticket, pause: Option<Duration>) -> bool {
        let enforced: Charges<'_> = asked.enforced.iter().map(OwnedCharge::charge).collect();
        let longest = Duration::from_nanos(longest_in_line(&enforced, ticket.key(), asked.terms.max_wait));
        drop(enforced);
        let left = longest.saturating_sub(asked.came.elapsed());
        let unheard = match &self.inner.backend {
            Backing::Local(local) => local.is_shared(),
            Backing::Other(_) => true,
        };
        let asks_again = unheard && ticket.is_first();
        // By the rate of today its turn is no sooner.
        let pause = pause.filter(|_| ticket.is_first()).unwrap_or(left);
        let nap = if asks_again { pause.min(left).min(ASK_AGAIN) } else { pause.min(left) };
        timeout(nap, ticket.called()).await.is_ok() || nap < left
    }

    /// Its turn has come, but its key is held back: it asks for another one
    /// when that is over, or is rejected if it may not wait for that.
    #[cold]
    fn hold_off_in_line(&self, asked: &Asked, now: Timestamp, until: Timestamp) -> (Decision, Decided) {
        let waited = nanos(asked.came.elapsed());
        let mut decision = Decision::unlimited();
        let decided = self.under(&asked.policy, |snapshot| {
            let enforced = asked.charges(waited);
            let shadows: Charges<'_> = asked.shadows.iter().map(OwnedCharge::charge).collect();
            let max_wait = asked.terms.max_wait.saturating_sub(Duration::from_nanos(waited));
            let terms = Terms { max_wait, waited: asked.terms.waited.saturating_add(waited), ..asked.terms };
            self.hold_off(snapshot, (&enforced, &shadows), (now, until), terms, &mut decision)
        });
        (decision, decided)
    }

    async fn ask_again(
        &self,
        asked: &Asked,
        ticket: &Ticket,
        now: &mut Timestamp,
        waited: u64,
    ) -> Result<Outcome, BackendError> {
        let (answer, left) = {
            let enforced = asked.charges(waited);
            let max_wait = asked.terms.max_wait.saturating_sub(Duration::from_nanos(waited));
            let ahead = self.reserved_ahead(&enforced, max_wait);
            let answer = match (&self.inner.backend, self.blocked(&enforced, *now, ticket.number())) {
                (_, Some(key)) => Acquire::Ready(Ok(self.behind(&enforced, *now, max_wait, key))),
                (Backing::Local(local), None) => Acquire::Ready(Ok(self.decide_seated(local, &enforced, now, ahead))),
                (Backing::Other(backend), None) => backend.acquire(&AcquireRequest::new(&enforced, *now, ahead)),
            };
            (answer, Duration::from_nanos(longest_in_line(&enforced, ticket.key(), max_wait)))
        };
        match answer {
            Acquire::Ready(result) => result,
            // A backend that never answers must not hold the line for ever. But
            // an answer that is not waited for may have taken a unit.
            Acquire::Pending(answer) => {
                let left = left.max(ANSWERS_WITHIN);
                let late =
                    |_| Ok(Outcome { answer: Answer::Busy { key: ticket.key() }, ..Outcome::admitted(Duration::ZERO) });
                timeout(left, answer).await.unwrap_or_else(late)
            }
        }
    }

    /// For one who has a seat: at once if it can be, else after a wait.
    fn decide_seated(&self, local: &Local, charges: &[Charge<'_>], now: &mut Timestamp, max_wait: Duration) -> Outcome {
        if charges.iter().any(Charge::is_smooth) {
            return self.decide_locally(local, charges, now, max_wait);
        }
        let outcome = self.decide_locally(local, charges, now, Duration::ZERO);
        match outcome.answer {
            Answer::Rejected { retry_after: Some(_) } => self.decide_locally(local, charges, now, max_wait),
            _ => outcome,
        }
    }

    fn conclude_in_line(
        &self,
        asked: &Asked,
        result: Result<Outcome, BackendError>,
        now: Timestamp,
        waited: u64,
        waiter: Waiter,
    ) -> (Decision, Decided) {
        let mut decision = Decision::unlimited();
        let decided = self.inner.current.with(|view| {
            let snapshot = PolicySnapshot { policy: &asked.policy, counters: &view.counters };
            let enforced = asked.charges(waited);
            let shadows: Charges<'_> = asked.shadows.iter().map(OwnedCharge::charge).collect();
            let max_wait = asked.terms.max_wait.saturating_sub(Duration::from_nanos(waited));
            // It may have waited before it stood in line.
            let waited = asked.terms.waited.saturating_add(waited);
            let terms = Terms { max_wait, waited, ..asked.terms };
            let decided = match result {
                Ok(outcome) => {
                    let seat = Seat::Taken(waiter);
                    let decider = Decider::Backend;
                    let answered = Answered { now, waited, outcome: &outcome, terms, seat, decider };
                    self.conclude(snapshot, &enforced, answered, &mut decision)
                }
                Err(error) => {
                    let unanswered = Unanswered { now, waited, error, terms };
                    return self.without_backend(snapshot, &enforced, unanswered, &mut decision);
                }
            };
            self.decide_shadows(snapshot, &shadows, now, decided, &mut decision)
        });
        (decision, decided)
    }
}

impl Asked {
    /// From here on it asks at the rates that have been found by now.
    fn at_their_rates(&mut self, limiter: &RateLimiter) {
        if self.policy.adapts {
            for charge in &mut self.enforced {
                let place = limiter.at_its_rate(charge.charge().applied, limiter.now()).place;
                charge.stand_at(place);
            }
        }
    }

    /// The time since it was called last counts towards the bound of the rule
    /// whose rate it waited for, and of no other; a wait for what is in flight
    /// counts towards all.
    fn has_waited_for(&mut self, key: Fingerprint) {
        let time = nanos(std::mem::replace(&mut self.called, Instant::now()).elapsed());
        let by_rate = adapted::turn::lines(&self.charges(0)).any(|keys| keys.contains(&key));
        if by_rate {
            let others = self.enforced.iter_mut().filter(|kept| !is_of(key, &kept.charge()));
            others.for_each(|kept| kept.may_wait_longer(time));
        }
    }

    /// With what is left of the wait.
    fn charges(&self, waited: u64) -> Charges<'_> {
        self.enforced.iter().map(|kept| kept.charge().having_waited(waited)).collect()
    }

    /// From here on it asks by the policy in force, if that has room for all
    /// that it is charged; a rule on trial may end meanwhile. A receipt is by
    /// one policy, so that it is all or nothing.
    fn catch_up(&mut self, policy: &Arc<CompiledPolicy>) {
        if Arc::ptr_eq(policy, &self.policy) {
            return;
        }
        let enforced: Option<Vec<_>> = self.enforced.iter().map(|charge| charge.under(policy)).collect();
        if let Some(enforced) = enforced {
            self.shadows = self.shadows.iter().filter_map(|charge| charge.under(policy)).collect();
            self.enforced = enforced;
            self.policy = Arc::clone(policy);
        }
    }
}
