//! What an upstream's response does to the keys of its request: a cooldown, a
//! slower pace, or a change of an adaptive rate.
//!
//! Invariant: no feedback admits a request earlier than the rules do.

use std::time::Duration;

use super::{
    super::{adaptive::UpstreamAnswer, attempt::Charges, lease::Lease, state::RateLimiter},
    keys::{MOST_JITTER, end},
    pace::{Pace, rate},
};
use crate::{backend::Charge, time::Timestamp};

/// A pause that is shorter delays requests, in order. From this one on, it is a
/// cooldown: it rejects requests that may not wait as long, and other instances
/// learn of it.
const SHORTEST_COOLDOWN: Duration = Duration::from_secs(1);

/// What an upstream's response says about its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feedback {
    /// Neither a rejection nor a failure.
    Success,
    /// A failure that says nothing about a limit.
    Failure,
    /// Not a rejection, but nothing is left for at least this time.
    Exhausted(Duration),
    /// A rejection that asks for a cooldown.
    RejectedFor(Duration),
    /// A rejection without a time.
    Rejected,
}

impl Lease {
    /// Follows the response to the request.
    pub(crate) fn follow(&self, feedback: Feedback) {
        match feedback {
            Feedback::Failure => {}
            Feedback::Success => self.report_answer(UpstreamAnswer::Success),
            // Nothing left also means that the rate is too high, although
            // nothing has been rejected yet.
            _ => self.report_answer(UpstreamAnswer::Rejection),
        }
        let follows = |charge: &Charge<'_>| charge.rule.options.upstream_feedback;
        let charges: Charges<'_> = self.receipt().charges().filter(follows).collect();
        let (limiter, sent, now) = (&self.limiter, self.sent(), self.limiter.now());
        let cooldowns = &limiter.inner.cooldowns;
        for charge in &charges {
            if let Feedback::Success | Feedback::Exhausted(_) = feedback {
                cooldowns.admitted(charge.fingerprint(), sent);
            }
            match feedback {
                Feedback::Success | Feedback::Failure => {}
                Feedback::Exhausted(time) => limiter.exhausted(charge, time, now),
                Feedback::RejectedFor(time) => {
                    cooldowns.change_pace(charge, now, |pace| pace.rejected(sent.as_nanos(), now.as_nanos()));
                    limiter.pause(charge, time, MOST_JITTER, now);
                }
                // Its rate is lowered instead.
                Feedback::Rejected if charge.rule.ladder.is_some() => {}
                Feedback::Rejected => limiter.rejected(charge, sent, now),
            }
        }
    }
}

impl RateLimiter {
    /// Nothing is left for at least `time`. The next unit comes one interval of
    /// the rule later.
    fn exhausted(&self, charge: &Charge<'_>, time: Duration, now: Timestamp) {
        if time.is_zero() {
            self.inner.cooldowns.change_pace(charge, now, |pace| pace.exhausted(now.as_nanos()));
        } else {
            let interval = rate(charge).map_or(0, |(interval, _)| interval);
            self.pause(charge, time.saturating_add(Duration::from_nanos(interval)), interval, now);
        }
    }

    /// A request that was sent at `sent` was rejected without a time.
    fn rejected(&self, charge: &Charge<'_>, sent: Timestamp, now: Timestamp) {
        let rejected = |pace: &mut Pace| pace.rejected_without_time(sent.as_nanos(), now.as_nanos());
        let pause = self.inner.cooldowns.change_pace(charge, now, rejected).unwrap_or(Some(SHORTEST_COOLDOWN));
        if let Some(pause) = pause.filter(|pause| *pause >= SHORTEST_COOLDOWN) {
            self.pause(charge, pause, MOST_JITTER, now);
        }
    }

    /// Starts a cooldown of at least `time`. After it, requests resume one by
    /// one.
    fn pause(&self, charge: &Charge<'_>, time: Duration, most_jitter: u64, now: Timestamp) {
        if !time.is_zero() {
            let until = end(now, time, most_jitter);
            self.inner.cooldowns.change_pace(charge, now, |pace| pace.resume_at(until));
            self.cool_down_one(charge, time, (until, now));
        }
    }
}
