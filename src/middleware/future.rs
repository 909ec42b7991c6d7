use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tower_service::Service;

use super::{Answer, Holding};
use crate::{
    decision::{Decision, RateLimited},
    limiter::{Finishing, Hold, Slot},
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
        Calling { #[pin] future: S::Future, answer: A, decision: Decision, holding: Option<Holding> },
        /// Refused. `None` once it was said.
        Refused { result: Option<Result<A::Response, A::Error>> },
    }
}

/// A request that is held back, with a clone of the service that takes it
/// afterwards. The clone is polled ready only then: a request that waits for
/// an hour must not hold a place in the inner service meanwhile.
struct Later<S, Req> {
    stage: Stage,
    begin: Begin<Req>,
    /// `None` once they have met.
    held: Option<(S, Req)>,
}

/// Readies a request that goes with what it holds.
pub(super) type Begin<Req> = fn(&mut Req, Hold) -> Option<Holding>;

enum Stage {
    /// Being decided on, or waiting for its turn. What it holds meanwhile is
    /// given back if it is dropped.
    Waiting(Finishing),
    /// Given back if it does not go after all.
    Decided(Option<(Decision, Slot)>),
}

impl Stage {
    /// The decision, once it holds.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<&mut Option<(Decision, Slot)>> {
        if let Self::Waiting(finishing) = self {
            let (decision, hold) = ready!(finishing.as_mut().poll(cx));
            *self = Self::Decided(Some((decision, Slot::new(hold))));
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
    pub(super) fn calling(future: S::Future, answer: A, decision: Decision, holding: Option<Holding>) -> Self {
        Self { state: State::Calling { future, answer, decision, holding } }
    }

    pub(super) fn refused(result: Result<A::Response, A::Error>) -> Self {
        Self { state: State::Refused { result: Some(result) } }
    }

    pub(super) fn later(waits: Finishing, begin: Begin<Req>, answer: A, service: S, request: Req) -> Self {
        let later = Box::new(Later { stage: Stage::Waiting(waits), begin, held: Some((service, request)) });
        Self { state: State::Later { later, answer } }
    }
}

impl<S, Req, A> Future for ResponseFuture<S, Req, A>
where
    S: Service<Req>,
    A: Answer<S::Response, S::Error> + Clone,
{
    type Output = Result<A::Response, A::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Calling { future, answer, decision, holding } => {
                    let result = ready!(future.poll(cx));
                    return Poll::Ready(match holding.take() {
                        None => answer.admitted(result, decision),
                        Some(holding) => {
                            if let Some(status) = answer.status(&result) {
                                holding.finish(status);
                            }
                            answer.admitted_holding(result, decision, holding)
                        }
                    });
                }
                StateProjection::Refused { result } => {
                    return result.take().map_or(Poll::Pending, Poll::Ready);
                }
                StateProjection::Later { later, answer } => {
                    let Later { stage, begin, held } = &mut **later;
                    let decided = ready!(stage.poll(cx));
                    if decided.as_ref().is_some_and(|(decision, _)| decision.is_allowed())
                        && let Some((service, _)) = held
                        && let Err(error) = ready!(service.poll_ready(cx))
                    {
                        let result = Some(Err(answer.unready(error)));
                        state.as_mut().project_replace(State::Refused { result });
                        continue;
                    }
                    match (decided.take(), held.take()) {
                        (Some((decision, hold)), Some((mut service, mut request))) if decision.is_allowed() => {
                            let holding = hold.take().and_then(|hold| begin(&mut request, hold));
                            State::Calling { future: service.call(request), answer: answer.clone(), decision, holding }
                        }
                        (Some((decision, _)), _) => {
                            State::Refused { result: Some(answer.refused(RateLimited::new(decision))) }
                        }
                        (None, _) => State::Refused { result: None },
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
            State::Refused { .. } => "refused",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish()
    }
}
