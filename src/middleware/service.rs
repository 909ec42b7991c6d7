//! The one [`Service`] implementation of the crate: [`RateLimit`].
//!
//! It decides nothing and writes no response. A request that is admitted at once is
//! sent to the inner service that was polled ready. A delayed request is decided in the
//! response's future, and sent to a clone that is polled ready after its wait.
//!
//! The invariant: once a request is called, this service is not ready. A service
//! that was polled ready may occupy capacity, such as a place under a
//! concurrency limit. So a request that waits or is rejected replaces it by a
//! fresh clone, which frees that capacity.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use super::{Answer, Describe, HttpAnswer, RateLimitLayer, RejectionContext, ResponseFuture, future::CallContext};
use crate::{
    decision::{Decision, RateLimitedKind},
    descriptor::{Descriptor, TenantRef},
    http::Http,
    limiter::{CallerNeeds, Next},
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
        let RateLimitLayer { limiter, describe, answer, max_wait, expose, rule, on_shadow_rejected } = &*self.settings;
        let mut decision = Decision::unlimited();
        if describe.inspect(&mut request, limiter, rule.as_deref()) {
            decision.reject(RateLimitedKind::Misconfigured, limiter.now(), None);
            return self.reject(decision, &mut request);
        }
        let follows_upstream = answer.needs_guard();
        if follows_upstream {
            limiter.subscribe_cooldowns();
        }
        let needs = CallerNeeds {
            decision: *expose || answer.needs_decision(),
            lease: follows_upstream || limiter.shares_requests(),
        };
        let (mut tenant, mut endpoint) = (None, 0);
        let describe_request = in_place(|descriptor| {
            describe.describe(&request, descriptor);
            if let Some(rule) = rule {
                descriptor.rule = Some(rule);
            }
            if *expose {
                tenant = descriptor.tenant.clone().map(TenantRef::into_owned);
            }
            if follows_upstream {
                endpoint = limiter.endpoint_key(descriptor);
            }
        });
        let (next, settles) = limiter.decide_on(describe_request, *max_wait, needs, &mut decision);
        // A rejected request has it too.
        if let (Some(tenant), Some(request)) = (tenant, D::http(&mut request)) {
            request.extensions_mut().insert(tenant);
        }
        if let Some(passed) = limiter.passed_overload().filter(|_| decision.is_allowed())
            && let Some(request) = D::http(&mut request)
        {
            request.extensions_mut().insert(passed);
        }
        let context = || CallContext {
            http: D::http,
            limiter: limiter.id(),
            max_wait: *max_wait,
            expose: *expose,
            on_shadow_rejected: on_shadow_rejected.clone(),
            settles,
            endpoint,
        };
        let guard = match next {
            Next::Done(_) if !decision.is_allowed() => return self.reject(decision, &mut request),
            Next::Done(None) if !settles && !expose => None,
            Next::Done(lease) => context().prepare(&mut request, lease, &decision),
            Next::Wait(admission) => {
                return match admission.drive_here(decision) {
                    Ok(driving) => {
                        // Frees the capacity that the readied service occupies.
                        self.inner = self.inner.clone();
                        ResponseFuture::delayed(driving, context(), answer.clone(), self.inner.clone(), request)
                    }
                    Err(decision) => self.reject(decision, &mut request),
                };
            }
        };
        ResponseFuture::calling(self.inner.call(request), answer.clone(), decision, guard)
    }
}

impl<S: Clone, D, A: Clone> RateLimit<S, D, A> {
    /// Answers a rejected request, and frees the capacity that the readied service
    /// occupies.
    fn reject<Req>(&mut self, decision: Decision, request: &mut Req) -> ResponseFuture<S, Req, A>
    where
        S: Service<Req>,
        D: Describe<Req>,
        A: Answer<S::Response, S::Error>,
    {
        self.inner = self.inner.clone();
        let RateLimitLayer { limiter, answer, .. } = &*self.settings;
        let rejection = RejectionContext::new(limiter.id(), decision, D::http(request));
        ResponseFuture::rejected(rejection, answer.clone())
    }
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

/// Tells the compiler that a closure takes a descriptor of one lifetime.
fn in_place<'d, F: FnOnce(&mut Descriptor<'d>)>(describe: F) -> F {
    describe
}
