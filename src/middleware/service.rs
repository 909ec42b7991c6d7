use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tower_service::Service;

use super::{Answer, Describe, Holding, Respond, ResponseFuture};
use crate::{
    decision::{Decision, RateLimited},
    http::Http,
    limiter::{Hold, RateLimiter},
};

/// A service that is limited; made by [`RateLimitLayer`](super::RateLimitLayer).
pub struct RateLimit<S, D = Http, A = Respond> {
    inner: S,
    shared: Arc<Shared<D, A>>,
}

pub(super) struct Shared<D, A> {
    pub(super) limiter: RateLimiter,
    pub(super) describe: D,
    pub(super) answer: A,
    pub(super) max_wait: Duration,
}

impl<S, D, A> RateLimit<S, D, A> {
    pub(super) fn new(inner: S, shared: Shared<D, A>) -> Self {
        Self { inner, shared: Arc::new(shared) }
    }

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
        self.inner.poll_ready(cx).map_err(|error| self.shared.answer.unready(error))
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let Shared { limiter, describe, answer, max_wait } = &*self.shared;
        let mut decision = Decision::unlimited();
        let describe = |by_tenant| match by_tenant {
            true => describe.describe_tenant(&request),
            false => describe.describe(&request),
        };
        let decided = limiter.decide_on(describe, *max_wait, answer.uses_decision(), &mut decision);
        let unfinished = match decided {
            None if decision.is_allowed() => {
                return ResponseFuture::calling(self.inner.call(request), answer.clone(), decision, None);
            }
            None => return ResponseFuture::refused(answer.refused(RateLimited::new(decision))),
            Some(unfinished) => unfinished,
        };
        match unfinished.held() {
            Ok(hold) => {
                let holding = begin::<Req, D>(&mut request, hold);
                ResponseFuture::calling(self.inner.call(request), answer.clone(), decision, holding)
            }
            // Readiness stays with the service that has it; the clone is
            // polled ready when the request's turn has come.
            Err(unfinished) => {
                let waits = unfinished.finish(decision);
                ResponseFuture::later(waits, begin::<Req, D>, answer.clone(), self.inner.clone(), request)
            }
        }
    }
}

/// A request goes that was charged; what it holds meanwhile.
fn begin<Req, D: Describe<Req>>(request: &mut Req, hold: Hold) -> Option<Holding> {
    if !hold.is_kept() {
        return None;
    }
    let holding = Holding::new(hold);
    if let Some(charge) = holding.charge() {
        D::attach(request, charge);
    }
    Some(holding)
}

impl<S: Clone, D, A> Clone for RateLimit<S, D, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug, D, A> fmt::Debug for RateLimit<S, D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, shared } = self;
        f.debug_struct("RateLimit").field("inner", inner).field("limiter", &shared.limiter).finish_non_exhaustive()
    }
}
