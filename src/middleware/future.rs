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
    http::Protocol,
    limiter::{Admission, Driving, Lease},
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
        Delayed { delayed: Box<Delayed<S, Req>>, answer: A },
        /// The inner service has the request.
        Calling { #[pin] future: S::Future, answer: A, decision: Decision, guard: Option<InFlightGuard> },
        /// Rejected. `None` once the future has completed.
        Rejected { result: Option<Result<A::Response, A::Error>> },
    }
}

/// A delayed request, and a clone of the service that will take it. The clone
/// is polled ready only when the request is admitted, so that a long wait
/// occupies no capacity of the inner service.
struct Delayed<S, Req> {
    stage: Stage,
    since: Instant,
    hooks: RequestHooks<Req>,
    /// `None` once the service has been called.
    call: Option<(S, Req)>,
}

/// What the future does to a delayed request. The functions hide how the
/// request was described.
pub(super) struct RequestHooks<Req> {
    /// Gives an admitted request its guard and its charge handle.
    pub(super) begin: fn(&mut Req, Option<Lease>, Duration, bool) -> Option<InFlightGuard>,
    /// Subtracts the wait from the request's own timeout.
    pub(super) waited: fn(&mut Req, Duration),
    /// The protocol in which to answer a rejection.
    pub(super) protocol: fn(&Req) -> Protocol,
    /// The layer's `max_wait`.
    pub(super) max_wait: Duration,
    /// Whether the request's handler expects a charge handle.
    pub(super) settles: bool,
}

enum Stage {
    /// The limiter is deciding, or the request waits. Dropping it refunds the
    /// charge.
    Waiting(Driving),
    /// Decided. Dropping it refunds the charge.
    Decided(Option<(Decision, Box<Admission>)>),
}

impl Stage {
    /// The final decision.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<&mut Option<(Decision, Box<Admission>)>> {
        if let Self::Waiting(driving) = self {
            *self = Self::Decided(Some(ready!(driving.as_mut().poll(cx))));
        }
        match self {
            Self::Decided(decided) => Poll::Ready(decided),
            Self::Waiting(_) => Poll::Pending,
        }
    }
}

impl<S, Req, A> ResponseFuture<S, Req, A>
where
    S: Service<Req>,
    A: Answer<S::Response, S::Error>,
{
    pub(super) fn calling(future: S::Future, answer: A, decision: Decision, guard: Option<InFlightGuard>) -> Self {
        Self { state: State::Calling { future, answer, decision, guard } }
    }

    pub(super) fn rejected(result: Result<A::Response, A::Error>) -> Self {
        Self { state: State::Rejected { result: Some(result) } }
    }

    pub(super) fn delayed(driving: Driving, hooks: RequestHooks<Req>, answer: A, service: S, request: Req) -> Self {
        let (stage, since) = (Stage::Waiting(driving), Instant::now());
        let delayed = Box::new(Delayed { stage, since, hooks, call: Some((service, request)) });
        Self { state: State::Delayed { delayed, answer } }
    }
}

impl<S, Req, A> Future for ResponseFuture<S, Req, A>
where
    S: Service<Req> + Clone,
    A: Answer<S::Response, S::Error> + Clone,
{
    type Output = Result<A::Response, A::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Calling { future, answer, decision, guard } => {
                    let result = ready!(future.poll(cx));
                    return Poll::Ready(answer.admitted(result, AdmissionContext::new(decision, guard.take())));
                }
                StateProjection::Rejected { result } => {
                    return result.take().map_or(Poll::Pending, Poll::Ready);
                }
                StateProjection::Delayed { delayed, answer } => {
                    let Delayed { stage, since, hooks, call } = &mut **delayed;
                    let decided = ready!(stage.poll(cx));
                    if let Some((decision, admission)) = decided
                        && decision.is_allowed()
                        && admission.restart_if_cooling_down(decision)
                    {
                        if let Some((decision, admission)) = decided.take() {
                            *stage = Stage::Waiting(admission.drive(decision));
                        }
                        // The readied service may keep capacity for this
                        // request. A fresh clone frees it.
                        if let Some((service, _)) = call {
                            *service = service.clone();
                        }
                        continue;
                    }
                    if decided.as_ref().is_some_and(|(decision, _)| decision.is_allowed())
                        && let Some((service, _)) = call
                        && let Err(error) = ready!(service.poll_ready(cx))
                    {
                        let result = Some(Err(answer.unready(error)));
                        state.as_mut().project_replace(State::Rejected { result });
                        continue;
                    }
                    match (decided.take(), call.take()) {
                        (Some((decision, admission)), Some((mut service, mut request))) if decision.is_allowed() => {
                            (hooks.waited)(&mut request, since.elapsed());
                            let guard =
                                (hooks.begin)(&mut request, admission.take_lease(), hooks.max_wait, hooks.settles);
                            State::Calling { future: service.call(request), answer: answer.clone(), decision, guard }
                        }
                        (Some((decision, _)), call) => {
                            let protocol = call.map_or(Protocol::Other, |(_, request)| (hooks.protocol)(&request));
                            State::Rejected { result: Some(answer.rejected(RejectionContext::new(decision, protocol))) }
                        }
                        (None, _) => State::Rejected { result: None },
                    }
                }
            };
            state.as_mut().project_replace(next);
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
            State::Rejected { .. } => "rejected",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish()
    }
}
