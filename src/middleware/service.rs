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
    decision::{Decision, RateLimitedKind},
    descriptor::{Descriptor, Tenant, TenantRef},
    http::Http,
    limiter::{Admission, CallerNeeds, Lease},
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
        let RateLimitLayer { limiter, describe, answer, max_wait, expose, rule } = &*self.settings;
        let mut decision = Decision::unlimited();
        if describe.inspect(&mut request, limiter, rule.as_deref()) {
            decision.reject(RateLimitedKind::Misconfigured, limiter.now(), None);
            return self.reject(decision, &mut request);
        }
        let (mut tenant, mut endpoint) = (None, 0);
        let gives_feedback = answer.needs_guard();
        if gives_feedback {
            limiter.subscribe_cooldowns();
        }
        let needs = CallerNeeds {
            decision: *expose || answer.needs_decision(),
            lease: gives_feedback || limiter.shares_requests(),
        };
        let (admission, settles) = limiter.decide_on(
            |by_tenant, descriptor| {
                // A client's cooldowns may concern one path.
                match by_tenant && rule.is_none() && !gives_feedback {
                    true => describe.describe_tenant(&request, descriptor),
                    false => *descriptor = describe.describe(&request),
                }
                if let Some(rule) = rule {
                    descriptor.rule = Some(rule);
                }
                if *expose {
                    tenant = owned_tenant(descriptor);
                }
                if gives_feedback {
                    endpoint = limiter.endpoint_key(descriptor);
                }
            },
            *max_wait,
            needs,
            &mut decision,
        );
        if let Some(tenant) = tenant {
            D::attach_tenant(&mut request, tenant);
        }
        match admission {
            None if decision.is_allowed() => {
                if settles {
                    D::attach(&mut request, ChargeHandle::empty());
                }
                if *expose {
                    D::attach_decision(&mut request, decision.clone());
                }
                let answer = answer.clone();
                ResponseFuture::calling(self.inner.call(request), answer, decision, None)
            }
            None => self.reject(decision, &mut request),
            Some(admission) => self.call_with(admission, request, decision, (settles, endpoint)),
        }
    }
}

impl<S, D, A> RateLimit<S, D, A> {
    /// Frees the capacity that the readied service occupies.
    fn unready(&mut self)
    where
        S: Clone,
    {
        self.inner = self.inner.clone();
    }

    /// Kept out of line, as all but the immediate allow.
    #[inline(never)]
    fn reject<Req>(&mut self, decision: Decision, request: &mut Req) -> ResponseFuture<S, Req, A>
    where
        S: Service<Req> + Clone,
        D: Describe<Req>,
        A: Answer<S::Response, S::Error> + Clone,
    {
        self.unready();
        let RateLimitLayer { limiter, answer, .. } = &*self.settings;
        let rejection = RejectionContext::new::<Req, D>(limiter.id(), decision, request);
        ResponseFuture::rejected(answer.rejected(rejection), answer.clone())
    }

    /// Sends a request that keeps a lease, or has it wait.
    #[inline(never)]
    fn call_with<Req>(
        &mut self,
        admission: Box<Admission>,
        mut request: Req,
        decision: Decision,
        (settles, endpoint): (bool, u128),
    ) -> ResponseFuture<S, Req, A>
    where
        S: Service<Req> + Clone,
        D: Describe<Req>,
        A: Answer<S::Response, S::Error> + Clone,
    {
        let RateLimitLayer { limiter, answer, max_wait, expose, .. } = &*self.settings;
        if admission.is_done() {
            let guard = begin::<Req, D>(&mut request, admission.take_lease(), *max_wait, (settles, endpoint));
            if *expose {
                D::attach_decision(&mut request, decision.clone());
            }
            return ResponseFuture::calling(self.inner.call(request), answer.clone(), decision, guard);
        }
        let (answer, max_wait) = (answer.clone(), *max_wait);
        let hooks = RequestHooks {
            begin: begin::<Req, D>,
            waited: D::waited,
            attach_decision: expose.then_some(D::attach_decision),
            reject: |limiter, decision, request| RejectionContext::new::<Req, D>(limiter, decision, request),
            limiter: limiter.id(),
            max_wait,
            settles,
            endpoint,
        };
        match admission.drive_here(decision) {
            Ok(driving) => {
                self.unready();
                ResponseFuture::delayed(driving, hooks, answer, self.inner.clone(), request)
            }
            Err(decision) => self.reject(decision, &mut request),
        }
    }
}

/// The tenant, for the request's extensions.
#[inline(never)]
fn owned_tenant(descriptor: &Descriptor<'_>) -> Option<Tenant> {
    descriptor.tenant.clone().map(TenantRef::into_owned)
}

/// Prepares an admitted request, and returns its guard. If its handler
/// `settles`, the request gets a charge handle even if nothing was charged.
fn begin<Req, D: Describe<Req>>(
    request: &mut Req,
    lease: Option<Lease>,
    max_wait: Duration,
    (settles, endpoint): (bool, u128),
) -> Option<InFlightGuard> {
    let mut guard = None;
    if let Some(lease) = lease {
        let counts = lease.counts(Messages::Client) || lease.counts(Messages::Server);
        let guard = guard.insert(InFlightGuard::new(lease, D::asks_for_upgrade(request), endpoint));
        if D::may_upgrade(request)
            && let Some(permit) = guard.connection_permit()
        {
            D::attach_connection(request, permit);
        }
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
