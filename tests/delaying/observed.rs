//! Observes when the limiter admits a request, to the nanosecond.

use std::{
    cell::Cell,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use axum::extract::Request;
use tower::{Layer, Service, layer::layer_fn};
use tower_ratelimit::{
    Decision,
    middleware::{AdmissionContext, Answer, Body, HttpAnswer, RejectionContext},
    time::{Clock, SystemClock, Timestamp},
};

thread_local! {
    static STOPPED_AT: Cell<Option<Timestamp>> = const { Cell::new(None) };
}

/// The system clock, which a thread can stop for itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoppableClock(Arc<SystemClock>);

impl StoppableClock {
    /// Runs `work` at one time, and returns both.
    fn stopped<T>(&self, work: impl FnOnce() -> T) -> (Timestamp, T) {
        let now = self.0.now();
        STOPPED_AT.set(Some(now));
        let made = work();
        STOPPED_AT.set(None);
        (now, made)
    }
}

impl Clock for StoppableClock {
    fn now(&self) -> Timestamp {
        STOPPED_AT.get().unwrap_or_else(|| self.0.now())
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// When the limiter admitted it.
    pub(crate) at: Timestamp,
    /// When the handler received it.
    pub(crate) handled: Timestamp,
}

/// The time at which the handler ran, in its response's extensions.
#[derive(Clone, Copy)]
pub(crate) struct Handled(pub(crate) Timestamp);

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Observation>>>);

impl Log {
    pub(crate) fn take(&self) -> Vec<Observation> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// The usual answer, with the decision in its extensions.
#[derive(Clone, Default)]
pub(crate) struct Noted(HttpAnswer);

impl<B> Answer<http::Response<B>, Infallible> for Noted {
    type Response = http::Response<Body<B>>;
    type Error = Infallible;

    fn unready(&self, error: Infallible) -> Infallible {
        error
    }

    fn admitted(
        &self,
        result: Result<http::Response<B>, Infallible>,
        admission: AdmissionContext<'_>,
    ) -> Result<Self::Response, Infallible> {
        let decision = admission.decision().clone();
        let mut response = self.0.admitted(result, admission)?;
        response.extensions_mut().insert(decision);
        Ok(response)
    }

    fn rejected(&self, rejection: RejectionContext) -> Result<Self::Response, Infallible> {
        Answer::<http::Response<B>, Infallible>::rejected(&self.0, rejection)
    }
}

/// Directly around the layer, which decides within `call`.
#[derive(Clone)]
pub(crate) struct Observe<S> {
    limited: S,
    clock: StoppableClock,
    log: Log,
}

impl<S> Observe<S> {
    pub(crate) fn layer(clock: StoppableClock, log: Log) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |limited| Self { limited, clock: clock.clone(), log: log.clone() })
    }
}

impl<S, B> Service<Request> for Observe<S>
where
    S: Service<Request, Response = http::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.limited.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (decided, response) = self.clock.stopped(|| self.limited.call(request));
        let log = self.log.clone();
        Box::pin(async move {
            let response = response.await?;
            let decision = response.extensions().get::<Decision>().unwrap();
            let Handled(handled) = *response.extensions().get().unwrap();
            let admission = Observation { at: decided.saturating_add(decision.wait()), handled };
            log.0.lock().unwrap().push(admission);
            Ok(response)
        })
    }
}
