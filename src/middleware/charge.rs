//! What an admitted request keeps: [`ChargeHandle`] settles its cost,
//! [`InFlightGuard`] its in-flight permits.
//!
//! Both share the request's lease. The permits are released exactly once, when
//! the guard is dropped; the handle may outlive it.

use std::{sync::Arc, time::Duration};

use http::StatusCode;

use super::{
    connection::ConnectionPermit,
    messages::{ClientMessages, MessageLimiter},
};
use crate::{
    backend::Settlement,
    decision::RateLimited,
    limiter::{Feedback, Lease},
    policy::Messages,
    time::Timestamp,
};

/// A handle on what a request was charged, for costs that are known only
/// afterwards: tokens of a language model, bytes sent, rows read.
///
/// The layer puts it into the extensions of requests to which a rule with
/// [`Rule::settle`](crate::Rule::settle) applies. It settles those rules only.
/// It may be cloned, sent to another task, and used after the response has
/// been sent. If such a rule charged the request nothing, the handle is there
/// all the same and does nothing: its tenant may be unlimited, the rule may be
/// in shadow mode and have rejected it, or may have failed open.
///
/// It settles under the policy that admitted the request, even if another one
/// has been set since: see [`Rule::settle`](crate::Rule::settle).
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
#[derive(Clone, Debug)]
pub struct ChargeHandle {
    /// `None` if nothing was charged.
    lease: Option<Arc<Lease>>,
}

impl ChargeHandle {
    /// A handle that settles nothing.
    pub(super) fn empty() -> Self {
        Self { lease: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lease.is_none()
    }

    fn settle(&self, settlement: Settlement) {
        if let Some(lease) = &self.lease {
            lease.settle(settlement);
        }
    }

    /// Charges more, in units of the request's own cost, which each rule
    /// multiplies by its cost. It always succeeds, since the units have been
    /// spent: a counter may go into debt, which is paid back before the next
    /// request is admitted.
    pub fn add(&self, units: u64) {
        self.settle(Settlement::Add(units));
    }

    /// Charges more, in units of the request's own cost, if every rule that settles
    /// afterwards admits that now: all or nothing, and never beyond a limit. For
    /// costs that are known before they are spent: the complexity of a GraphQL
    /// query, or the next hundred tokens of a stream. Waits for no slot. A rule's
    /// concurrency limit stays as it is.
    ///
    /// Units that were added can be given back, and are, by rules that do not
    /// charge the response's status.
    ///
    /// # Errors
    ///
    /// The rejection. It charged nothing, and is a response in axum (feature
    /// `axum`): see [`RateLimited::to_response`].
    ///
    /// ```
    /// use axum::Extension;
    /// use tower_ratelimit::{ChargeHandle, RateLimited};
    ///
    /// async fn query(Extension(charge): Extension<ChargeHandle>, body: String) -> Result<&'static str, RateLimited> {
    ///     let complexity = body.matches('{').count() as u64;
    ///     // One unit was charged when the request was admitted.
    ///     charge.try_add(complexity.saturating_sub(1)).await?;
    ///     Ok("data")
    /// }
    /// ```
    pub async fn try_add(&self, units: u64) -> Result<(), RateLimited> {
        match &self.lease {
            Some(lease) => lease.try_add(units).await,
            None => Ok(()),
        }
    }

    /// Gives back a part of the charge, in units of the request's own cost. It
    /// never gives back more than was charged, and only as far as that cannot
    /// break a limit's bound.
    pub fn give_back(&self, units: u64) {
        self.settle(Settlement::GiveBack(units));
    }
}

/// Keeps a request in flight. Dropping it releases the in-flight permits of
/// [concurrency limits](crate::Quota::concurrent). It also reports the
/// response to rules that settle afterwards.
#[derive(Debug)]
#[must_use = "dropping it ends the request"]
pub struct InFlightGuard {
    // Boxed, since most responses have no guard, and each is moved several times.
    held: Box<Held>,
}

/// What a guard holds.
#[derive(Debug)]
struct Held {
    lease: Arc<Lease>,
    server_messages: Option<Box<MessageLimiter>>,
    /// Whether a success upgrades the connection.
    asks_for_upgrade: bool,
    /// Set if the request asks for an upgrade: it then releases the permits.
    connection: Option<ConnectionPermit>,
    /// The endpoint, for upstream feedback.
    endpoint: u128,
}

impl InFlightGuard {
    pub(super) fn new(lease: Lease, asks_for_upgrade: bool, endpoint: u128) -> Self {
        let lease = Arc::new(lease);
        Self { held: Box::new(Held { lease, server_messages: None, asks_for_upgrade, connection: None, endpoint }) }
    }

    /// The permit for the extensions of a request that asks for an upgrade, if a
    /// concurrency limit counts it.
    pub(super) fn connection_permit(&mut self) -> Option<ConnectionPermit> {
        let holds = self.held.lease.holds_in_flight();
        holds.then(|| self.held.connection.insert(ConnectionPermit::new(&self.held.lease)).clone())
    }

    /// Limits the messages of a stream for rules that charge them. Returns the
    /// limiter of the client's messages, for the request's extensions.
    pub(super) fn limit_messages(&mut self, max_wait: Duration, time_left: Duration) -> Option<ClientMessages> {
        let limiter = |messages| {
            let charges = self.held.lease.counts(messages);
            charges.then(|| MessageLimiter::new(&self.held.lease, messages, max_wait, time_left))
        };
        let (client, server) = (limiter(Messages::Client), limiter(Messages::Server));
        self.held.server_messages = server.map(Box::new);
        client.map(ClientMessages::new)
    }

    pub(super) fn take_server_messages(&mut self) -> Option<Box<MessageLimiter>> {
        self.held.server_messages.take()
    }

    /// The handle for the request's extensions, if a rule settles afterwards.
    pub(super) fn charge_handle(&self) -> Option<ChargeHandle> {
        self.held.lease.is_settled_by_handler().then(|| ChargeHandle { lease: Some(Arc::clone(&self.held.lease)) })
    }

    /// Reports the response's status: rules that do not charge for it refund
    /// the request. Without a report they charge it.
    pub fn report_status(&self, status: StatusCode) {
        self.held.lease.finish(status);
    }

    /// Reports that a layer further in has rejected the request. If it is a layer
    /// of the same limiter, all that this one has charged is given back, as by
    /// [`Permit::refund`](crate::Permit::refund). Returns whether it is.
    pub fn report_rejection(&self, rejection: &RateLimited) -> bool {
        self.held.lease.refund_if_rejected(rejection)
    }

    /// Whether anything is left to do once the response is there: to release units
    /// in flight, or to settle.
    pub(super) fn outlives_response(&self) -> bool {
        self.held.lease.outlives_response()
    }

    /// Puts the request's keys on a cooldown, as
    /// [`RateLimiter::cool_down`](crate::RateLimiter::cool_down) does.
    pub fn cool_down(&self, time: Duration) {
        self.held.lease.cool_down(time);
    }

    /// Follows the upstream's response.
    pub(super) fn follow(&self, feedback: Feedback) {
        self.held.lease.follow(feedback, self.held.endpoint);
    }

    /// Reports a response of this status that upgrades its connection, which
    /// outlives the response.
    pub(super) fn report_upgrade(&self, status: StatusCode) {
        let is_kept = || self.held.connection.as_ref().is_some_and(ConnectionPermit::is_kept);
        if (status == StatusCode::SWITCHING_PROTOCOLS || self.held.asks_for_upgrade && status.is_success())
            && !is_kept()
        {
            self.held.lease.upgrades();
        }
    }

    /// The time on the limiter's clock.
    pub(super) fn now(&self) -> Timestamp {
        self.held.lease.now()
    }
}

/// Out of line: inlined, it makes each response be copied before it is dropped, though most
/// have no guard. That took 10 of 107 ns that the layer adds.
impl Drop for Held {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        if self.connection.is_none() {
            self.lease.release();
        }
    }
}
