//! The future of a limited response: [`ResponseFuture`].
//!
//! It decides nothing: the limiter drives a delayed request. The invariant: a delayed
//! request calls the inner service only after that was polled ready again.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::time::Instant;
use tower_service::Service;

use super::{AdmissionContext, Answer, InFlightGuard, RejectionContext, call::CallContext};
use crate::{
    decision::Decision,
    limiter::{Admission, Driving},
};

pin_project_lite::pin_project! {
    /// The response to a limited request.
    pub struct ResponseFuture<S, Req, A>
    where
        S: Service<Req>,
        A: Answer<S::Response, S::Error>,
    {
        #[pin]
        state: State<S, Req, A>,
        answer: A,
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
        Calling { #[pin] future: S::Future, decision: Decision, guard: Option<Box<InFlightGuard>> },
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

    /// Sends the admitted request, or answers it.
    fn poll_next<A>(&mut self, cx: &mut Context<'_>, answer: &A) -> Poll<State<S, Req, A>>
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
            return answered(answer.rejected(self.context.rejection(decision, &mut request)));
        }
        self.context.waited(&mut request, self.since.elapsed());
        let guard = self.context.prepare(&mut request, admission.take_lease(), &decision);
        Poll::Ready(State::Calling { future: self.service.call(request), decision, guard })
    }
}

impl<S, Req, A> ResponseFuture<S, Req, A>
where
    S: Service<Req>,
    A: Answer<S::Response, S::Error>,
{
    pub(super) fn calling(future: S::Future, answer: A, decision: Decision, guard: Option<Box<InFlightGuard>>) -> Self {
        Self { state: State::Calling { future, decision, guard }, answer }
    }

    pub(super) fn rejected(rejection: RejectionContext<'_>, answer: A) -> Self {
        Self { state: State::Answered { result: Some(answer.rejected(rejection)) }, answer }
    }

    pub(super) fn delayed(driving: Driving, context: CallContext<Req>, answer: A, service: S, request: Req) -> Self {
        let (since, request) = (Instant::now(), Some(request));
        let delayed = Box::new(Delayed { driving, decided: None, since, context, service, request });
        Self { state: State::Delayed { delayed }, answer }
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
                StateProjection::Calling { future, decision, guard } => {
                    let result = ready!(future.poll(cx));
                    return Poll::Ready(this.answer.admitted(result, AdmissionContext::new(decision, guard.take())));
                }
                StateProjection::Delayed { delayed } => ready!(delayed.poll_next(cx, this.answer)),
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
        let state = match self.state {
            State::Delayed { .. } => "delayed",
            State::Calling { .. } => "calling",
            State::Answered { .. } => "answered",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish()
    }
}
