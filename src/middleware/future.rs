//! The future of a limited response: [`ResponseFuture`], and what it does to a request
//! that is sent or rejected: [`CallContext`].
//!
//! It decides nothing: the limiter drives a delayed request. The invariant: a delayed
//! request calls the inner service only after that was polled ready again.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Method, header::UPGRADE};
use tokio::time::Instant;
use tower_service::Service;

use super::{
    AdmissionContext, Answer, ChargeHandle, ClientMessages, ConnectionPermit, HttpRequest, InFlightGuard,
    RejectionContext,
    answer::{ShadowHook, report_shadows},
};
use crate::{
    decision::Decision,
    descriptor::{Deadline, grpc},
    http::RequestHead,
    limiter::{Admission, Driving, Lease},
};

pin_project_lite::pin_project! {
    /// The response to a limited request.
    pub struct ResponseFuture<S, Req, A>
    where
        S: Service<Req>,
        A: Answer<S::Response, S::Error>,
    {
        // Alone in its enum, the inner future is moved once when this is made, not twice.
        #[pin]
        state: State<S, Req, A>,
        answer: A,
        // Of the request that the inner service has.
        decision: Decision,
        guard: Option<Box<InFlightGuard>>,
    }
}

pin_project_lite::pin_project! {
    /// `Delayed` -> `Calling` -> done, or `Delayed` -> `Answered` -> done. Most
    /// futures start, and stay, at `Calling`.
    #[project = StateProjection]
    enum State<S, Req, A>
    where
        S: Service<Req>,
        A: Answer<S::Response, S::Error>,
    {
        /// Not yet sent: the limiter is deciding, or the request waits.
        Delayed { delayed: Box<Delayed<S, Req>> },
        /// The inner service has the request.
        Calling { #[pin] future: S::Future },
        /// Answered without the inner service: rejected, or that has failed. `None`
        /// once the future has completed.
        Answered { result: Option<Result<A::Response, A::Error>> },
    }
}

/// A delayed request, and a clone of the service that will take it. The clone
/// is polled ready only when the request is admitted, so that a long wait
/// occupies no capacity of the inner service.
struct Delayed<S, Req> {
    /// Decides the request. Dropping it refunds the charge.
    driving: Driving,
    /// Set once it is decided. Dropping it refunds the charge.
    decided: Option<(Decision, Box<Admission>)>,
    since: Instant,
    context: CallContext<Req>,
    service: S,
    /// `None` once it is sent.
    request: Option<Req>,
}

impl<S: Service<Req> + Clone, Req> Delayed<S, Req> {
    /// Ready once the request is rejected, or admitted and the service ready.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        loop {
            let Some((decision, admission)) = &mut self.decided else {
                self.decided = Some(ready!(self.driving.as_mut().poll(cx)));
                continue;
            };
            if !decision.is_allowed() {
                return Poll::Ready(Ok(()));
            }
            if !admission.restart_if_cooling_down(decision) {
                return self.service.poll_ready(cx);
            }
            if let Some((decision, admission)) = self.decided.take() {
                self.driving = admission.drive(decision);
            }
            // The readied service may keep capacity for this request. A fresh
            // clone frees it.
            self.service = self.service.clone();
        }
    }

    /// Sends the admitted request, and sets its decision and its guard; or answers it.
    fn poll_next<A>(
        &mut self,
        cx: &mut Context<'_>,
        answer: &A,
        decision_made: &mut Decision,
        guard: &mut Option<Box<InFlightGuard>>,
    ) -> Poll<State<S, Req, A>>
    where
        A: Answer<S::Response, S::Error>,
    {
        let answered = |result| Poll::Ready(State::Answered { result: Some(result) });
        if let Err(error) = ready!(self.poll_ready(cx)) {
            return answered(Err(answer.unready(error)));
        }
        let (Some((decision, admission)), Some(mut request)) = (self.decided.take(), self.request.take()) else {
            return Poll::Pending;
        };
        if !decision.is_allowed() {
            let CallContext { limiter, http, .. } = self.context;
            return answered(answer.rejected(RejectionContext::new(limiter, decision, http(&mut request))));
        }
        self.context.waited(&mut request, self.since.elapsed());
        *guard = self.context.prepare(&mut request, admission.take_lease(), &decision);
        *decision_made = decision;
        Poll::Ready(State::Calling { future: self.service.call(request) })
    }
}

impl<S, Req, A> ResponseFuture<S, Req, A>
where
    S: Service<Req>,
    A: Answer<S::Response, S::Error>,
{
    pub(super) fn calling(future: S::Future, answer: A, decision: Decision, guard: Option<Box<InFlightGuard>>) -> Self {
        Self { state: State::Calling { future }, answer, decision, guard }
    }

    pub(super) fn rejected(rejection: RejectionContext<'_>, answer: A) -> Self {
        Self::not_sent(State::Answered { result: Some(answer.rejected(rejection)) }, answer)
    }

    pub(super) fn delayed(driving: Driving, context: CallContext<Req>, answer: A, service: S, request: Req) -> Self {
        let (since, request) = (Instant::now(), Some(request));
        let delayed = Box::new(Delayed { driving, decided: None, since, context, service, request });
        Self::not_sent(State::Delayed { delayed }, answer)
    }

    fn not_sent(state: State<S, Req, A>, answer: A) -> Self {
        Self { state, answer, decision: Decision::unlimited(), guard: None }
    }
}

impl<S, Req, A> Future for ResponseFuture<S, Req, A>
where
    S: Service<Req> + Clone,
    A: Answer<S::Response, S::Error>,
{
    type Output = Result<A::Response, A::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProjection::Calling { future } => {
                    let result = ready!(future.poll(cx));
                    let admission = AdmissionContext::new(this.decision, this.guard.take());
                    return Poll::Ready(this.answer.admitted(result, admission));
                }
                StateProjection::Delayed { delayed } => {
                    ready!(delayed.poll_next(cx, this.answer, this.decision, this.guard))
                }
                StateProjection::Answered { result } => return result.take().map_or(Poll::Pending, Poll::Ready),
            };
            this.state.set(next);
        }
    }
}

impl<S, Req, A> fmt::Debug for ResponseFuture<S, Req, A>
where
    S: Service<Req>,
    A: Answer<S::Response, S::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

/// What the layer needs of a call to send its request or to reject it.
pub(super) struct CallContext<Req> {
    /// The request, if it is one of HTTP.
    pub(super) http: fn(&mut Req) -> Option<&mut dyn HttpRequest>,
    /// The id of the layer's limiter.
    pub(super) limiter: u64,
    /// The layer's bound on waits.
    pub(super) max_wait: Duration,
    /// Whether the handler sees the decision.
    pub(super) expose: bool,
    pub(super) on_shadow_rejected: Option<Arc<ShadowHook>>,
    /// Whether the handler may settle, even if nothing was charged.
    pub(super) settles: bool,
    /// Stands for the endpoint, for upstream feedback.
    pub(super) endpoint: u128,
}

impl<Req> CallContext<Req> {
    /// Gives an admitted request what its handler may need. Returns its guard, which
    /// keeps the lease.
    pub(super) fn prepare(
        &self,
        request: &mut Req,
        lease: Option<Arc<Lease>>,
        decision: &Decision,
    ) -> Option<Box<InFlightGuard>> {
        let guard = lease.map(|lease| self.guard(lease, (self.http)(request)));
        if let Some(request) = (self.http)(request) {
            let extensions = request.extensions_mut();
            // An empty handle does not replace that of an outer layer.
            if self.settles && extensions.get::<ChargeHandle>().is_none() {
                extensions.insert(ChargeHandle::empty());
            }
            if self.expose {
                extensions.insert(decision.clone());
                if let Some(hook) = &self.on_shadow_rejected {
                    report_shadows(&**hook, decision, request.head());
                }
            }
        }
        guard
    }

    fn guard(&self, lease: Arc<Lease>, http: Option<&mut dyn HttpRequest>) -> Box<InFlightGuard> {
        let mut guard = InFlightGuard::new(lease, self.endpoint);
        let time_left = || http.as_ref().map_or(Duration::MAX, |request| time_left(&request.head()));
        // Whatever the content type: tonic ignores it too.
        let messages = guard.limit_messages(self.max_wait, time_left);
        let Some(request) = http else { return guard };
        let connection = connection(&request.head(), &mut guard);
        let extensions = request.extensions_mut();
        if let Some(permit) = connection {
            let outer = extensions.remove::<ConnectionPermit>();
            extensions.insert(permit.inside(outer));
        }
        if let Some(messages) = messages {
            let outer = extensions.remove::<ClientMessages>();
            extensions.insert(ClientMessages::new(messages, outer));
        }
        if let Some(charge) = guard.charge_handle() {
            extensions.insert(charge);
        }
        guard
    }

    /// The request is sent after a wait, which counts against a timeout that it carries.
    fn waited(&self, request: &mut Req, waited: Duration) {
        let Some(request) = (self.http)(request) else { return };
        if let Some(timeout) = grpc::timeout(request.head().headers()) {
            let left = grpc::timeout_of(timeout.saturating_sub(waited));
            request.headers_mut().insert(grpc::GRPC_TIMEOUT, left);
        }
    }
}

/// The permit for a request whose connection may outlive the response.
fn connection(head: &RequestHead<'_>, guard: &mut InFlightGuard) -> Option<ConnectionPermit> {
    // A tunnel, or a WebSocket over HTTP/2 (extended CONNECT, RFC 8441): any success
    // upgrades it.
    let is_connect = *head.method() == Method::CONNECT;
    (is_connect || head.headers().contains_key(UPGRADE)).then(|| guard.connection_permit(is_connect)).flatten()
}

/// The time until the request's own deadline.
fn time_left(head: &RequestHead<'_>) -> Duration {
    let deadline = head.extensions().get::<Deadline>().map(Deadline::remaining);
    let timeout = grpc::timeout(head.headers());
    deadline.into_iter().chain(timeout).min().unwrap_or(Duration::MAX)
}
