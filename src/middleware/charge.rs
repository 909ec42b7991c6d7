use std::{fmt, sync::Arc, time::Duration};

use http::StatusCode;

use super::messages::{ClientMessages, Meter};
use crate::{backend::Settlement, limiter::Lease, policy::Messages, time::Timestamp};

/// A handle on what a request was charged, for costs that are known late:
/// tokens of a language model, bytes sent, rows read.
///
/// It stands in the extensions of requests to which a rule with
/// [`Rule::settle`](crate::Rule::settle) applies, and concerns those rules
/// alone. It may be cloned, sent to another task, and used after the response
/// has gone. Where such a rule has charged a request nothing (its tenant is
/// unlimited, say, the rule is on trial and would have rejected it, or has
/// failed open), there is one all the same, and it does nothing: who handles
/// requests need not know.
///
/// It settles by the policy that was in force when the request was admitted,
/// though another has been set since: see [`Rule::settle`](crate::Rule::settle).
///
/// ```
/// use axum::{Extension, Router, routing::post};
/// use tower_ratelimit::{ChargeHandle, Policy, Quota, RateLimitLayer, RateLimiter, Rule};
///
/// async fn complete(Extension(charge): Extension<ChargeHandle>) -> &'static str {
///     let tokens_used = 180;
///     // One unit was charged when the request was admitted.
///     charge.add(tokens_used - 1);
///     "an answer"
/// }
///
/// let tokens = Rule::new("tokens").tier(Quota::per_minute(10_000)).settle(true);
/// let limiter = RateLimiter::new(Policy::new().rule(tokens))?;
/// let app: Router = Router::new().route("/complete", post(complete)).layer(RateLimitLayer::new(limiter));
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct ChargeHandle {
    /// `None` where nothing was charged.
    hold: Option<Arc<Lease>>,
}

impl ChargeHandle {
    /// Settles nothing.
    pub(super) fn of_nothing() -> Self {
        Self { hold: None }
    }

    pub(super) fn is_of_nothing(&self) -> bool {
        self.hold.is_none()
    }

    fn settle(&self, settlement: Settlement) {
        if let Some(hold) = &self.hold {
            hold.settle(settlement);
        }
    }

    /// Charges more, in units of the request's own cost, which each rule
    /// multiplies by its own: whatever the limits say, for it has been spent.
    /// A counter may so go into debt, which is paid back before the next
    /// request is admitted.
    pub fn add(&self, units: u64) {
        self.settle(Settlement::Add(units));
    }

    /// Gives back some of what was charged, in units of the request's own
    /// cost: never more than was charged, and only where that cannot break a
    /// limit's bound.
    pub fn give_back(&self, units: u64) {
        self.settle(Settlement::GiveBack(units));
    }
}

impl fmt::Debug for ChargeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChargeHandle").field(&self.hold).finish()
    }
}

/// What is kept of a request while it is in flight: its units of limits on what
/// is in flight at once ([`Quota::concurrent`](crate::Quota::concurrent)), let
/// go of when dropped; and the means to settle what rules that are settled late
/// have charged it. Made where there is either.
#[must_use = "the request is in flight for as long as this is held"]
pub struct InFlightGuard {
    hold: Arc<Lease>,
    /// Lets what the server streams through.
    meter: Option<Box<Meter>>,
}

impl InFlightGuard {
    pub(super) fn new(hold: Lease) -> Self {
        Self { hold: Arc::new(hold), meter: None }
    }

    /// Counts what the server streams, where a rule does; the meter of what the
    /// client streams is to stand in the request's extensions.
    pub(super) fn count_messages(&mut self, max_wait: Duration, time_left: Duration) -> Option<ClientMessages> {
        let meter = |messages| {
            let counts = self.hold.counts(messages);
            counts.then(|| Meter::new(&self.hold, messages, max_wait, time_left))
        };
        let (client, server) = (meter(Messages::Client), meter(Messages::Server));
        self.meter = server.map(Box::new);
        client.map(ClientMessages::new)
    }

    pub(super) fn take_meter(&mut self) -> Option<Box<Meter>> {
        self.meter.take()
    }

    /// The handle for the request's extensions, where a rule wants one.
    pub(super) fn charge(&self) -> Option<ChargeHandle> {
        self.hold.is_settled_by_handler().then(|| ChargeHandle { hold: Some(Arc::clone(&self.hold)) })
    }

    /// The response is known: rules that do not count such ones give back
    /// what they charged.
    pub(super) fn finish(&self, status: StatusCode) {
        self.hold.finish(status);
    }

    /// Leaves the request's keys alone for a while, as
    /// [`RateLimiter::cool_down`](crate::RateLimiter::cool_down) does: its
    /// provider asks for it.
    pub fn cool_down(&self, time: Duration) {
        self.hold.cool_down(time);
    }

    /// The provider has answered: rules that [adapt](crate::Rule::adapt) learn
    /// from it.
    pub(super) fn answered(&self, rejected: bool) {
        match rejected {
            true => self.hold.rejected(),
            false => self.hold.succeeded(),
        }
    }

    /// The time on the limiter's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.hold.now()
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.hold.release();
    }
}

impl fmt::Debug for InFlightGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InFlightGuard").field(&self.hold).finish()
    }
}
