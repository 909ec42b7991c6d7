use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Sleep;
use tower_service::Service;

use super::Answer;
use crate::{
    decision::{Decision, RateLimited},
    limiter::{Deciding, Reservation},
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
        Calling { #[pin] future: S::Future, answer: A, decision: Decision },
        /// Refused. `None` once it was said.
        Refused { result: Option<Result<A::Response, A::Error>> },
    }
}

/// A request that is held back, with a clone of the service that takes it
/// afterwards. The clone is polled ready only then: a request that waits for
/// an hour must not hold a place in the inner service meanwhile.
struct Later<S, Req> {
    stage: Stage,
    /// `None` once they have met.
    held: Option<(S, Req)>,
}

pub(super) enum Stage {
    Deciding(Deciding),
    /// The reservation is given back if the wait is dropped.
    Waiting(Pin<Box<Sleep>>, Option<Reservation>, Option<Decision>),
    Decided(Option<Decision>),
}

impl Stage {
    pub(super) fn after(decision: Decision, reservation: Option<Reservation>) -> Self {
        // What a backend took to answer is part of the wait.
        let wait = reservation.as_ref().map_or(Duration::ZERO, |reservation| reservation.remaining(&decision));
        if wait.is_zero() {
            if let Some(reservation) = reservation {
                reservation.keep();
            }
            return Self::Decided(Some(decision));
        }
        #[allow(clippy::disallowed_methods, reason = "the one place that waits: one timer a waiter")]
        let sleep = tokio::time::sleep(wait);
        Self::Waiting(Box::pin(sleep), reservation, Some(decision))
    }

    /// The decision, once it holds.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<&mut Option<Decision>> {
        loop {
            if let Self::Decided(decision) = self {
                return Poll::Ready(decision);
            }
            *self = match self {
                Self::Deciding(future) => {
                    let (decision, reservation) = ready!(future.as_mut().poll(cx));
                    Self::after(decision, reservation)
                }
                Self::Waiting(sleep, reservation, decision) => {
                    ready!(sleep.as_mut().poll(cx));
                    if let Some(reservation) = reservation.take() {
                        reservation.keep();
                    }
                    Self::Decided(decision.take())
                }
                Self::Decided(decision) => Self::Decided(decision.take()),
            };
        }
    }
}

impl<S, Req, A> ResponseFuture<S, Req, A>
where
    S: Service<Req>,
    A: Answer<S::Response, S::Error>,
{
    pub(super) fn calling(future: S::Future, answer: A, decision: Decision) -> Self {
        Self { state: State::Calling { future, answer, decision } }
    }

    pub(super) fn refused(result: Result<A::Response, A::Error>) -> Self {
        Self { state: State::Refused { result: Some(result) } }
    }

    pub(super) fn later(stage: Stage, answer: A, service: S, request: Req) -> Self {
        let later = Box::new(Later { stage, held: Some((service, request)) });
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
                StateProjection::Calling { future, answer, decision } => {
                    let result = ready!(future.poll(cx));
                    return Poll::Ready(answer.admitted(result, decision));
                }
                StateProjection::Refused { result } => {
                    return result.take().map_or(Poll::Pending, Poll::Ready);
                }
                StateProjection::Later { later, answer } => {
                    let Later { stage, held } = &mut **later;
                    let decision = ready!(stage.poll(cx));
                    if decision.as_ref().is_some_and(Decision::is_allowed)
                        && let Some((service, _)) = held
                        && let Err(error) = ready!(service.poll_ready(cx))
                    {
                        let result = Some(Err(answer.unready(error)));
                        state.as_mut().project_replace(State::Refused { result });
                        continue;
                    }
                    match (decision.take(), held.take()) {
                        (Some(decision), Some((mut service, request))) if decision.is_allowed() => {
                            State::Calling { future: service.call(request), answer: answer.clone(), decision }
                        }
                        (Some(decision), _) => {
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
