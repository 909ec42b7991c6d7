//! What an upstream's response does to the keys of its request: it starts a
//! cooldown, or changes a resume schedule or an adaptive rate.
//!
//! Invariant: no feedback admits a request earlier than the rules do.

use std::time::Duration;

use super::{
    super::{attempt::Charges, lease::Lease, observe, state::RateLimiter},
    keys::{MOST_JITTER, end},
    response::{Feedback, Pause},
    resume::{ResumeSchedule, rate},
};
use crate::{
    backend::Charge,
    time::{Timestamp, nanos},
    unit::Unit,
};

/// A pause that is shorter delays requests, in order. From this one on, it is a
/// cooldown: it rejects requests that may not wait as long, and other instances
/// learn of it.
const SHORTEST_COOLDOWN: Duration = Duration::from_secs(1);

impl Lease {
    /// Follows the response to the request: what it says of the rules of this unit, or of all.
    pub(crate) fn follow(&self, feedback: Feedback, unit: Option<Unit>, endpoint: u128) {
        let concerns = |charge: &Charge<'_>| unit.is_none() || charge.unit() == unit;
        self.report_answer(feedback, concerns);
        let follows = |charge: &Charge<'_>| charge.rule.options.upstream_feedback && concerns(charge);
        let mut charges: Charges<'_> = self.receipt().charges().filter(follows).collect();
        let (limiter, sent, now) = (&self.limiter, self.sent(), self.limiter.now());
        let cooldowns = &limiter.inner.cooldowns;
        if let (Feedback::Unavailable(Some(pause)), Some(charge)) = (feedback, charges.first()) {
            // This instance's: another one may reach a server that is well.
            cooldowns.start(endpoint, end(now, pause.most, MOST_JITTER), now.as_nanos());
            observe::cooldown_started(charge.rule, pause.most, now);
        }
        for charge in &mut charges {
            // An adaptive rate may have changed since.
            limiter.adapt(charge, now);
            if let Feedback::Success | Feedback::Exhausted(_) = feedback {
                cooldowns.admitted(charge, sent);
            }
            // What is rejected without a time lowers an adaptive rate instead.
            let adapts = charge.rule.ladder.is_some();
            match feedback {
                Feedback::Success | Feedback::Failure | Feedback::Unavailable(Some(_)) => {}
                Feedback::Exhausted(pause) => limiter.exhausted(charge, pause, now),
                Feedback::RejectedFor(pause) => limiter.rejected_for(charge, pause, sent, now),
                Feedback::Rejected | Feedback::Unavailable(None) if adapts => {}
                Feedback::Rejected | Feedback::Unavailable(None) => {
                    let pause = limiter.rejected_without_time(charge, sent, now);
                    // No cooldown starts where the service was unavailable.
                    if feedback == Feedback::Rejected && pause >= SHORTEST_COOLDOWN {
                        limiter.pause(charge, pause, MOST_JITTER, now);
                    }
                }
            }
        }
    }
}

impl RateLimiter {
    /// Nothing is left for this time. The next unit comes one interval of the
    /// rule after the least that it can be.
    fn exhausted(&self, charge: &Charge<'_>, Pause { least, most }: Pause, now: Timestamp) {
        if least.is_zero() {
            let exhausted = |schedule: &mut ResumeSchedule| schedule.exhausted(now.as_nanos(), nanos(most));
            self.inner.cooldowns.change_schedule(charge, now, exhausted);
        } else {
            let interval = rate(charge).map_or(0, |(interval, _)| interval);
            self.pause(charge, least.saturating_add(Duration::from_nanos(interval)), interval, now);
        }
    }

    /// A request that was sent at `sent` was rejected for this time.
    fn rejected_for(&self, charge: &Charge<'_>, Pause { least, most }: Pause, sent: Timestamp, now: Timestamp) {
        let bounds = (nanos(least), nanos(most));
        let rejected = |schedule: &mut ResumeSchedule| schedule.rejected_for(sent.as_nanos(), now.as_nanos(), bounds);
        let pauses = self.inner.cooldowns.change_schedule(charge, now, rejected).unwrap_or(true);
        // An adaptive rate would shrink again for each probe that is rejected.
        if pauses || charge.rule.ladder.is_some() {
            self.pause(charge, most, MOST_JITTER, now);
        }
    }

    /// A request that was sent at `sent` was rejected without a time: requests of
    /// this instance resume one by one. Returns for how long none is sent.
    fn rejected_without_time(&self, charge: &Charge<'_>, sent: Timestamp, now: Timestamp) -> Duration {
        let rejected = |schedule: &mut ResumeSchedule| schedule.rejected_without_time(sent.as_nanos(), now.as_nanos());
        let pause = self.inner.cooldowns.change_schedule(charge, now, rejected).unwrap_or(Some(SHORTEST_COOLDOWN));
        pause.unwrap_or_default()
    }

    /// Starts a cooldown of at least `time`. After it, requests resume one by
    /// one.
    fn pause(&self, charge: &Charge<'_>, time: Duration, most_jitter: u64, now: Timestamp) {
        if !time.is_zero() {
            let until = end(now, time, most_jitter);
            self.inner.cooldowns.change_schedule(charge, now, |schedule| schedule.pause_until(until));
            self.cool_down_one(charge, time, (until, now));
        }
    }
}
