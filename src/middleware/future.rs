//! The future of a limited response: [`ResponseFuture`].
//!
//! A delayed request calls the inner service only after that was polled ready
//! again.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Instant;
use tower_service::Service;

use super::{AdmissionContext, Answer, InFlightGuard, RejectionContext};
use crate::{
    decision::Decision,
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
        guard: Option<InFlightGuard>,
    }
}

pin_project_lite::pin_project! {
    /// `Delayed` -> `Calling` -> done, or `Delayed` -> `Rejected` -> done. Most
    /// futures start, and stay, at `Calling`.
    #[project = StateProjection]
    #[project_replace = StateReplaced]
    enum State<S, Req, A>
    where
        S: Service<Req>,
        A: Answer<S::Response, S::Error>,
    {
        /// Not yet sent: the limiter is deciding, or the request waits.
        Delayed { delayed: Box<Delayed<S, Req>> },
        /// The inner service has the request.
        Calling { #[pin] future: S::Future },
        /// Rejected. `None` once the future has completed.
        Rejected { result: Option<Result<A::Response, A::Error>> },
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
    hooks: RequestHooks<Req>,
    service: S,
    request: Req,
}

/// Takes the request, its lease, the layer's `max_wait`, whether the handler
/// expects a charge handle, and the endpoint.
type Begin<Req> = fn(&mut Req, Option<Lease>, Duration, (bool, u128)) -> Option<InFlightGuard>;

/// What the future does to a delayed request. The functions hide how the
/// request was described.
pub(super) struct RequestHooks<Req> {
    /// Gives an admitted request its guard and its charge handle.
    pub(super) begin: Begin<Req>,
    /// Subtracts the wait from the request's own timeout.
    pub(super) waited: fn(&mut Req, Duration),
    /// Gives an admitted request its decision, if the layer exposes it.
    pub(super) attach_decision: Option<fn(&mut Req, Decision)>,
    /// The context by which a rejection is answered.
    pub(super) reject: fn(u64, Decision, &mut Req) -> RejectionContext<'_>,
    /// The id of the layer's limiter.
    pub(super) limiter: u64,
    /// The layer's `max_wait`.
    pub(super) max_wait: Duration,
    /// Whether the request's handler expects a charge handle.
    pub(super) settles: bool,
    /// Stands for the request's endpoint, for upstream feedback.
    pub(super) endpoint: u128,
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

    /// Sends the admitted request, and sets its decision and its guard; or rejects it.
    fn finish<A: Answer<S::Response, S::Error>>(
        self,
        answer: &A,
        decision_made: &mut Decision,
        guard: &mut Option<InFlightGuard>,
    ) -> State<S, Req, A> {
        let Self { decided, since, hooks, mut service, mut request, .. } = self;
        match decided {
            Some((decision, admission)) if decision.is_allowed() => {
                (hooks.waited)(&mut request, since.elapsed());
                if let Some(attach) = hooks.attach_decision {
                    attach(&mut request, decision.clone());
                }
                *guard = (hooks.begin)(
                    &mut request,
                    admission.take_lease(),
                    hooks.max_wait,
                    (hooks.settles, hooks.endpoint),
                );
                *decision_made = decision;
                State::Calling { future: service.call(request) }
            }
            decided => State::Rejected {
                result: decided
                    .map(|(decision, _)| answer.rejected((hooks.reject)(hooks.limiter, decision, &mut request))),
            },
        }
    }
}

impl<S, Req, A> ResponseFuture<S, Req, A>
where
    S: Service<Req>,
    A: Answer<S::Response, S::Error>,
{
    #[inline]
    pub(super) fn calling(future: S::Future, answer: A, decision: Decision, guard: Option<InFlightGuard>) -> Self {
        Self { state: State::Calling { future }, answer, decision, guard }
    }

    pub(super) fn rejected(result: Result<A::Response, A::Error>, answer: A) -> Self {
        Self::not_sent(State::Rejected { result: Some(result) }, answer)
    }

    pub(super) fn delayed(driving: Driving, hooks: RequestHooks<Req>, answer: A, service: S, request: Req) -> Self {
        let delayed = Delayed { driving, decided: None, since: Instant::now(), hooks, service, request };
        Self::not_sent(State::Delayed { delayed: Box::new(delayed) }, answer)
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

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        if let StateProjection::Calling { future } = this.state.project() {
            let result = ready!(future.poll(cx));
            return Poll::Ready(this.answer.admitted(result, AdmissionContext::new(this.decision, this.guard.take())));
        }
        self.poll_delayed(cx)
    }
}

impl<S, Req, A> ResponseFuture<S, Req, A>
where
    S: Service<Req> + Clone,
    A: Answer<S::Response, S::Error>,
{
    /// Kept out of line, as all but the immediate allow.
    #[inline(never)]
    fn poll_delayed(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<A::Response, A::Error>> {
        let mut this = self.as_mut().project();
        let next = match this.state.as_mut().project() {
            StateProjection::Calling { .. } => return self.poll(cx),
            StateProjection::Rejected { result } => return result.take().map_or(Poll::Pending, Poll::Ready),
            StateProjection::Delayed { delayed } => {
                let ready = ready!(delayed.poll_ready(cx)).map_err(|error| this.answer.unready(error));
                match (this.state.as_mut().project_replace(State::Rejected { result: None }), ready) {
                    (StateReplaced::Delayed { delayed }, Ok(())) => {
                        delayed.finish(this.answer, this.decision, this.guard)
                    }
                    (_, ready) => State::Rejected { result: ready.err().map(Err) },
                }
            }
        };
        this.state.project_replace(next);
        self.poll(cx)
    }
}

impl<S, Req, A> fmt::Debug for ResponseFuture<S, Req, A>
where
    S: Service<Req>,
    A: Answer<S::Response, S::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Delayed { .. } => "delayed",
            State::Calling { .. } => "calling",
            State::Rejected { .. } => "rejected",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish()
    }
}
