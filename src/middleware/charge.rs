//! What an admitted request keeps: [`InFlightGuard`] until its response has ended,
//! [`ConnectionPermit`] for as long as its connection lasts, and [`ChargeHandle`] to
//! settle its cost.
//!
//! They share the request's lease, and decide nothing. The invariant: in-flight
//! permits are released exactly once, by the guard, or by the last clone of the
//! connection's permit if there is one. The handle may outlive both.

use std::{sync::Arc, time::Duration};

use bytes::Buf;
use http::StatusCode;
use http_body::Frame;

use super::messages::MessageLimiter;
use crate::{backend::Settlement, decision::RateLimited, limiter::Lease, policy::Messages, unit::REQUESTS};

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

    fn settle(&self, unit: &str, settlement: Settlement) {
        if let Some(lease) = &self.lease {
            lease.settle(unit, settlement);
        }
    }

    /// Charges more, in units of the request's own cost, which each rule
    /// multiplies by its cost. It always succeeds, since the units have been
    /// spent: a counter may go into debt, which is paid back before the next
    /// request is admitted.
    ///
    /// Like [`Descriptor::cost`](crate::Descriptor::cost), it is for rules that count
    /// `requests`; for those of another unit, see [`add_in`](Self::add_in).
    pub fn add(&self, units: u64) {
        self.add_in(REQUESTS, units);
    }

    /// As [`add`](Self::add), for the rules of another [unit](crate::Rule::unit): no other
    /// rule is charged.
    pub fn add_in(&self, unit: &str, units: u64) {
        self.settle(unit, Settlement::Add(units));
    }

    /// Charges more, in units of the request's own cost, if every rule that settles
    /// afterwards admits that now: all or nothing, and never beyond a limit. For
    /// costs that are known before they are spent: the complexity of a GraphQL
    /// query, or the next hundred tokens of a stream. Waits for no slot. A rule's
    /// concurrency limit stays as it is.
    ///
    /// Units that were added can be given back, and are, by rules that do not
    /// charge the response's status. So is what a backend admits after the future
    /// was dropped.
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
        self.try_add_in(REQUESTS, units).await
    }

    /// As [`try_add`](Self::try_add), for the rules of another [unit](crate::Rule::unit).
    ///
    /// # Errors
    ///
    /// The rejection, which charged nothing.
    pub async fn try_add_in(&self, unit: &str, units: u64) -> Result<(), RateLimited> {
        match &self.lease {
            Some(lease) => lease.try_add(unit, units).await,
            None => Ok(()),
        }
    }

    /// Gives back a part of the charge, in units of the request's own cost. It
    /// never gives back more than was charged, and only as far as that cannot
    /// break a limit's bound.
    pub fn give_back(&self, units: u64) {
        self.give_back_in(REQUESTS, units);
    }

    /// As [`give_back`](Self::give_back), for the rules of another
    /// [unit](crate::Rule::unit).
    pub fn give_back_in(&self, unit: &str, units: u64) {
        self.settle(unit, Settlement::GiveBack(units));
    }

    /// Settles what the request has cost in all in this [unit](crate::Rule::unit): charges
    /// what it cost more than it is charged so far, or gives back the difference. It
    /// replaces what was settled before, so a stream may call it again and again.
    ///
    /// ```
    /// use axum::{Extension, Router, routing::post};
    /// use tower_ratelimit::{ChargeHandle, Policy, Quota, RateLimitLayer, RateLimiter, Rule};
    ///
    /// async fn complete(Extension(charge): Extension<ChargeHandle>) -> &'static str {
    ///     charge.settle_in("tokens", 180);
    ///     "an answer"
    /// }
    ///
    /// let policy = Policy::new()
    ///     .rule(Rule::new("requests").tier(Quota::per_minute(60)))
    ///     .rule(Rule::new("tokens").unit("tokens").tier(Quota::per_minute(10_000)).settle(true));
    /// // 500 tokens are reserved until the answer is there.
    /// let layer = RateLimitLayer::new(RateLimiter::new(policy)?).cost_in("tokens", 500);
    /// let app: Router = Router::new().route("/complete", post(complete)).layer(layer);
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn settle_in(&self, unit: &str, actual: u64) {
        if let Some(lease) = &self.lease {
            lease.settle_to(unit, actual);
        }
    }
}

/// Keeps a request in flight. Dropping it releases the in-flight permits of
/// [concurrency limits](crate::Quota::concurrent). It also reports the
/// response to rules that settle afterwards.
#[derive(Debug)]
#[must_use = "dropping it ends the request"]
pub struct InFlightGuard {
    pub(super) lease: Arc<Lease>,
    /// Limits the messages of the response.
    pub(super) messages: Option<MessageLimiter>,
    /// Whether a success upgrades the connection.
    asks_for_upgrade: bool,
    /// Set if the request asks for an upgrade: it then releases the permits.
    connection: Option<ConnectionPermit>,
    /// The endpoint, for upstream feedback.
    pub(super) endpoint: u128,
    /// The bytes of the response so far, where a rule charges them.
    sent: Option<u64>,
}

impl InFlightGuard {
    /// Boxed, since most responses have no guard, and each is moved several times.
    pub(super) fn new(lease: Arc<Lease>, endpoint: u128) -> Box<Self> {
        let sent = lease.counts_bytes().then_some(0);
        Box::new(Self { lease, messages: None, asks_for_upgrade: false, connection: None, endpoint, sent })
    }

    /// The permit for the extensions of a request that may upgrade its connection, if
    /// a concurrency limit counts it. A success upgrades it if the request
    /// `asks_for_upgrade`; a response of 101 does in any case.
    pub(super) fn connection_permit(&mut self, asks_for_upgrade: bool) -> Option<ConnectionPermit> {
        self.asks_for_upgrade = asks_for_upgrade;
        let holds = self.lease.holds_in_flight();
        holds.then(|| self.connection.insert(ConnectionPermit::new(&self.lease)).clone())
    }

    /// Limits the messages of a stream for rules that charge them. Returns the
    /// limiter of the client's messages.
    pub(super) fn limit_messages(
        &mut self,
        max_wait: Duration,
        time_left: impl Fn() -> Duration,
    ) -> Option<MessageLimiter> {
        let lease = &self.lease;
        let limiter =
            |messages| lease.counts(messages).then(|| MessageLimiter::new(lease, messages, max_wait, time_left()));
        self.messages = limiter(Messages::Server);
        limiter(Messages::Client)
    }

    /// The handle for the request's extensions, if a rule settles afterwards.
    pub(super) fn charge_handle(&self) -> Option<ChargeHandle> {
        self.lease.is_settled_by_handler().then(|| ChargeHandle { lease: Some(Arc::clone(&self.lease)) })
    }

    /// A part of the response's body is sent.
    pub(super) fn count_bytes<D: Buf>(&mut self, frame: &Frame<D>) {
        if let (Some(sent), Some(data)) = (&mut self.sent, frame.data_ref()) {
            *sent += data.remaining() as u64;
        }
    }

    /// Reports the response's status: rules that do not charge for it refund
    /// the request. Without a report they charge it.
    pub fn report_status(&self, status: StatusCode) {
        self.lease.finish(status);
    }

    /// Reports that a layer further in has rejected the request. If it is a layer
    /// of the same limiter, all that this one has charged is given back, as by
    /// [`Permit::refund`](crate::Permit::refund). Returns whether it is.
    pub fn report_rejection(&self, rejection: &RateLimited) -> bool {
        self.lease.refund_if_rejected(rejection)
    }

    /// Reports a response of this status that upgrades its connection, which
    /// outlives the response.
    pub(super) fn report_upgrade(&self, status: StatusCode) {
        let is_upgrade = status == StatusCode::SWITCHING_PROTOCOLS || self.asks_for_upgrade && status.is_success();
        if is_upgrade && !self.connection.as_ref().is_some_and(ConnectionPermit::is_kept) {
            self.lease.upgrades();
        }
    }

    /// Puts the request's keys on a cooldown, as
    /// [`RateLimiter::cool_down`](crate::RateLimiter::cool_down) does.
    pub fn cool_down(&self, time: Duration) {
        self.lease.cool_down(time);
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if let Some(sent) = self.sent {
            self.lease.settle_bytes(sent);
        }
        if self.connection.is_none() {
            self.lease.release();
        }
    }
}

/// Keeps a connection in flight after its upgrade, such as a WebSocket: a
/// [concurrency limit](crate::Quota::concurrent) counts it until the last clone is
/// dropped.
///
/// The layer puts it into the extensions of requests that ask for an upgrade (a
/// header `Upgrade`, or `CONNECT`) and that a concurrency limit counts. **Move it
/// into the task of the connection.** Otherwise the limit counts the request only
/// until the response `101 Switching Protocols` is sent, and any number of
/// connections stay open. The layer logs that once for each rule.
///
/// It is missing if no concurrency limit applied: ask for an `Option`.
///
/// ```
/// use axum::{Extension, Router, body::Body, extract::Request, http::StatusCode, response::Response, routing::get};
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, middleware::ConnectionPermit};
///
/// async fn chat(permit: Option<Extension<ConnectionPermit>>, mut request: Request) -> Response {
///     tokio::spawn(async move {
///         // Counted until this task ends.
///         let _permit = permit;
///         let Ok(stream) = hyper::upgrade::on(&mut request).await else { return };
///         // ...
///         # drop(stream);
///     });
///     let mut response = Response::new(Body::empty());
///     *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
///     response
/// }
///
/// // Two connections at once for each tenant.
/// let limiter = RateLimiter::new(Quota::concurrent(2))?;
/// let app: Router = Router::new().route("/chat", get(chat)).layer(RateLimitLayer::new(limiter));
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "the connection is in flight until this is dropped"]
pub struct ConnectionPermit {
    own: Arc<ReleaseOnDrop>,
    /// That of an outer layer.
    _outer: Option<Arc<Self>>,
}

#[derive(Debug)]
struct ReleaseOnDrop(Arc<Lease>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl ConnectionPermit {
    fn new(lease: &Arc<Lease>) -> Self {
        Self { own: Arc::new(ReleaseOnDrop(Arc::clone(lease))), _outer: None }
    }

    /// With the permit of an outer layer.
    pub(super) fn inside(self, outer: Option<Self>) -> Self {
        Self { _outer: outer.map(Arc::new), ..self }
    }

    /// Whether another clone exists: the handler has kept one.
    fn is_kept(&self) -> bool {
        Arc::strong_count(&self.own) > 1
    }
}
