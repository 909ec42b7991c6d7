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
    /// Later -> Calling -> done, Later -> done; or starts at either of the last
    /// two. Nearly always it starts, and stays, at Calling.
    #[project = StateProjection]
    #[project_replace = StateReplaced]
    enum State<S, Req, A>
    where
        S: Service<Req>,
        A: Answer<S::Response, S::Error>,
    {
        /// Not yet sent: being decided on, or waiting for its turn.
        Later { later: Box<Later<S, Req>>, answer: A },
        /// With the inner service.
        Calling { #[pin] future: S::Future, answer: A, decision: Decision, holding: Option<InFlightGuard> },
        /// Rejected. `None` once it was said.
        Rejected { result: Option<Result<A::Response, A::Error>> },
    }
}

/// A request that is held back, with a clone of the service that takes it
/// afterwards. The clone is polled ready only then: a request that waits for
/// an hour must not hold a place in the inner service meanwhile.
struct Later<S, Req> {
    stage: Stage,
    since: Instant,
    seams: Seams<Req>,
    /// `None` once they have met.
    held: Option<(S, Req)>,
}

/// What is done to a request that was held back; the future does not know how
/// it was described.
pub(super) struct Seams<Req> {
    /// Readies a request that goes with what it holds.
    pub(super) begin: fn(&mut Req, Option<Lease>, Duration, bool) -> Option<InFlightGuard>,
    /// Tells a request that goes how long it has waited.
    pub(super) waited: fn(&mut Req, Duration),
    /// How a rejection of it has to be answered.
    pub(super) protocol: fn(&Req) -> Protocol,
    /// The layer's own.
    pub(super) max_wait: Duration,
    /// Whether whoever handles the request expects to be able to settle it.
    pub(super) settles: bool,
}

enum Stage {
    /// Being decided on, or waiting for its slot.
    Waiting(Driving),
    /// Given back if it is not sent after all.
    Decided(Option<(Decision, Box<Admission>)>),
}

impl Stage {
    /// The decision, once it holds.
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
    pub(super) fn calling(future: S::Future, answer: A, decision: Decision, holding: Option<InFlightGuard>) -> Self {
        Self { state: State::Calling { future, answer, decision, holding } }
    }

    pub(super) fn rejected(result: Result<A::Response, A::Error>) -> Self {
        Self { state: State::Rejected { result: Some(result) } }
    }

    pub(super) fn later(waits: Driving, seams: Seams<Req>, answer: A, service: S, request: Req) -> Self {
        let (stage, since) = (Stage::Waiting(waits), Instant::now());
        let later = Box::new(Later { stage, since, seams, held: Some((service, request)) });
        Self { state: State::Later { later, answer } }
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
                StateProjection::Calling { future, answer, decision, holding } => {
                    let result = ready!(future.poll(cx));
                    return Poll::Ready(answer.admitted(result, AdmissionContext::new(decision, holding.take())));
                }
                StateProjection::Rejected { result } => {
                    return result.take().map_or(Poll::Pending, Poll::Ready);
                }
                StateProjection::Later { later, answer } => {
                    let Later { stage, since, seams, held } = &mut **later;
                    let decided = ready!(stage.poll(cx));
                    if let Some((decision, admission)) = decided
                        && decision.is_allowed()
                        && admission.restart_if_cooling_down(decision)
                    {
                        if let Some((decision, admission)) = decided.take() {
                            *stage = Stage::Waiting(admission.drive(decision));
                        }
                        // What the service may have kept for it is another's.
                        if let Some((service, _)) = held {
                            *service = service.clone();
                        }
                        continue;
                    }
                    if decided.as_ref().is_some_and(|(decision, _)| decision.is_allowed())
                        && let Some((service, _)) = held
                        && let Err(error) = ready!(service.poll_ready(cx))
                    {
                        let result = Some(Err(answer.unready(error)));
                        state.as_mut().project_replace(State::Rejected { result });
                        continue;
                    }
                    match (decided.take(), held.take()) {
                        (Some((decision, admission)), Some((mut service, mut request))) if decision.is_allowed() => {
                            (seams.waited)(&mut request, since.elapsed());
                            let holding =
                                (seams.begin)(&mut request, admission.take_lease(), seams.max_wait, seams.settles);
                            State::Calling { future: service.call(request), answer: answer.clone(), decision, holding }
                        }
                        (Some((decision, _)), held) => {
                            let protocol = held.map_or(Protocol::Other, |(_, request)| (seams.protocol)(&request));
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
            State::Later { .. } => "held back",
            State::Calling { .. } => "calling",
            State::Rejected { .. } => "rejected",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish()
    }
}
