//! The one [`Service`] implementation of the crate: [`RateLimit`].
//!
//! A request that is admitted at once is sent to the inner service that was
//! polled ready. A delayed request is decided in the response's future, and
//! sent to a clone that is polled ready after its wait.
//!
//! Invariant: once a request is called, this service is not ready. A service
//! that was polled ready may occupy capacity, such as a place under a
//! concurrency limit. So a request that waits or is rejected replaces it by a
//! fresh clone, which frees that capacity.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    Answer, ChargeHandle, Describe, HttpAnswer, InFlightGuard, RateLimitLayer, RejectionContext, ResponseFuture,
    future::RequestHooks,
};
use crate::{
    decision::Decision,
    http::Http,
    limiter::{CallerNeeds, Lease},
    policy::Messages,
};

/// A rate-limited service, made by [`RateLimitLayer`].
pub struct RateLimit<S, D = Http, A = HttpAnswer> {
    inner: S,
    settings: Arc<RateLimitLayer<D, A>>,
}

impl<S, D: Clone, A: Clone> Layer<S> for RateLimitLayer<D, A> {
    type Service = RateLimit<S, D, A>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, settings: Arc::new(self.clone()) }
    }
}

impl<S, D, A> RateLimit<S, D, A> {
    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, Req, D, A> Service<Req> for RateLimit<S, D, A>
where
    S: Service<Req> + Clone,
    D: Describe<Req>,
    A: Answer<S::Response, S::Error> + Clone,
{
    type Response = A::Response;
    type Error = A::Error;
    type Future = ResponseFuture<S, Req, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(|error| self.settings.answer.unready(error))
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let RateLimitLayer { limiter, describe, answer, max_wait } = &*self.settings;
        let mut decision = Decision::unlimited();
        let describe = |by_tenant| match by_tenant {
            true => describe.describe_tenant(&request),
            false => describe.describe(&request),
        };
        let (admission, settles) = limiter.decide_on(
            describe,
            *max_wait,
            CallerNeeds { decision: answer.needs_decision(), lease: answer.needs_guard() },
            &mut decision,
        );
        let admission = match admission {
            None if decision.is_allowed() => {
                if settles {
                    D::attach(&mut request, ChargeHandle::empty());
                }
                return ResponseFuture::calling(self.inner.call(request), answer.clone(), decision, None);
            }
            None => {
                // Frees the capacity that the readied service occupies.
                self.inner = self.inner.clone();
                let result = answer.rejected(RejectionContext::new(decision, D::protocol(&request)));
                return ResponseFuture::rejected(result);
            }
            Some(admission) => admission,
        };
        match admission.is_done() {
            true => {
                let guard = begin::<Req, D>(&mut request, admission.take_lease(), *max_wait, settles);
                ResponseFuture::calling(self.inner.call(request), answer.clone(), decision, guard)
            }
            false => {
                // Frees the capacity that the readied service occupies.
                self.inner = self.inner.clone();
                let driving = admission.drive(decision);
                let begin = begin::<Req, D>;
                let hooks =
                    RequestHooks { begin, waited: D::waited, protocol: D::protocol, max_wait: *max_wait, settles };
                ResponseFuture::delayed(driving, hooks, answer.clone(), self.inner.clone(), request)
            }
        }
    }
}

/// Prepares an admitted request, and returns its guard. If its handler
/// `settles`, the request gets a charge handle even if nothing was charged.
fn begin<Req, D: Describe<Req>>(
    request: &mut Req,
    lease: Option<Lease>,
    max_wait: Duration,
    settles: bool,
) -> Option<InFlightGuard> {
    let mut guard = None;
    if let Some(lease) = lease {
        let counts = lease.counts(Messages::Client) || lease.counts(Messages::Server);
        let guard = guard.insert(InFlightGuard::new(lease));
        // Whatever the content type: tonic ignores it too.
        if counts && let Some(messages) = guard.limit_messages(max_wait, D::time_left(request)) {
            D::attach_messages(request, messages);
        }
    }
    let charge = guard.as_ref().and_then(InFlightGuard::charge_handle);
    if let Some(charge) = charge.or_else(|| settles.then(ChargeHandle::empty)) {
        D::attach(request, charge);
    }
    guard
}

impl<S: Clone, D, A> Clone for RateLimit<S, D, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
    }
}

impl<S: fmt::Debug, D, A> fmt::Debug for RateLimit<S, D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, settings } = self;
        f.debug_struct("RateLimit").field("inner", inner).field("limiter", &settings.limiter).finish_non_exhaustive()
    }
}
