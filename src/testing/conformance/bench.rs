use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};

use super::Checked;
use crate::{
    backend::Backend,
    decision::{Decision, RateLimited, RateLimitedKind},
    descriptor::Descriptor,
    limiter::{Admission, Permit, RateLimiter},
    policy::{FailureMode, Policy, Rule},
    testing::ManualClock,
};

/// Where futures run that are not ready at once.
pub(super) enum Executor {
    Callers(Handle),
    Own(Runtime),
}

impl Executor {
    pub(super) fn of_caller() -> Self {
        match Handle::try_current() {
            Ok(handle) => Self::Callers(handle),
            Err(_) => Self::Own(Builder::new_current_thread().enable_all().build().expect("a runtime")),
        }
    }

    pub(super) fn enter(&self) -> EnterGuard<'_> {
        match self {
            Self::Callers(handle) => handle.enter(),
            Self::Own(runtime) => runtime.enter(),
        }
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self {
            Self::Callers(handle) => handle.block_on(future),
            Self::Own(runtime) => runtime.block_on(future),
        }
    }

    /// Without a runtime's help where the answer is there at the first poll:
    /// then the threads really are at the backend together.
    fn answer<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => self.block_on(future),
        }
    }
}

/// How time passes.
pub(super) enum Time {
    Manual(ManualClock),
    /// With this tolerance.
    Real(Duration),
}

impl Time {
    pub(super) fn manual() -> Self {
        Self::Manual(ManualClock::new())
    }
}

/// A limiter on a backend that is being checked.
pub(super) struct Bench<'s> {
    pub(super) limiter: RateLimiter,
    executor: &'s Executor,
    time: Time,
}

impl Checked<'_> {
    /// A limiter on a new backend.
    pub(super) fn bench(&self, policy: Policy) -> Bench<'_> {
        self.bench_on((self.suite.make)(), policy)
    }

    pub(super) fn bench_on(&self, backend: Arc<dyn Backend>, policy: Policy) -> Bench<'_> {
        let time = self.time();
        let builder = RateLimiter::builder().policy(policy).backend(backend);
        let builder = match &time {
            Time::Manual(clock) => builder.clock(clock.clone()),
            Time::Real(_) => builder,
        };
        Bench { limiter: builder.build().expect("a valid policy"), executor: self.executor, time }
    }
}

impl Bench<'_> {
    /// Lets futures of this thread find the runtime.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.executor.enter()
    }

    /// Decides a request that does not wait.
    pub(super) fn ask(&self, request: &Descriptor<'_>) -> Decision {
        let _guard = self.enter();
        answered(self.executor.answer(self.limiter.check(request)))
    }

    /// How many of `tries` requests of cost 1 pass.
    pub(super) fn admitted(&self, path: &str, tenant: &str, tries: usize) -> usize {
        let request = Descriptor::new(path).tenant(tenant);
        (0..tries).filter(|_| self.ask(&request).is_allowed()).count()
    }

    /// Leave for a request that does not wait.
    pub(super) fn take(&self, request: &Descriptor<'_>) -> Result<Permit, RateLimited> {
        let _guard = self.enter();
        self.executor.answer(self.limiter.acquire(request, Duration::ZERO))
    }

    /// Decides a request that may wait, as the middleware does.
    pub(super) fn reserve(&self, request: &Descriptor<'_>, max_wait: Duration) -> (Decision, Option<Box<Admission>>) {
        let _guard = self.enter();
        let mut decision = Decision::unlimited();
        let mut admission = self.limiter.decide(request, max_wait, &mut decision);
        while let Some(asking) = admission.as_mut().filter(|admission| !admission.has_slot()) {
            self.executor.answer(asking.next(&mut decision));
        }
        let reservation = admission.filter(|admission| !admission.is_done());
        (answered(decision), reservation)
    }

    /// Lets time pass: by hand where it can be, else for real and, since what
    /// comes after it counts on it, for the tolerance longer.
    #[allow(clippy::disallowed_methods, reason = "what has a clock of its own cannot be stepped")]
    pub(super) fn pass(&self, duration: Duration) {
        match &self.time {
            Time::Manual(clock) => clock.advance(duration),
            Time::Real(tolerance) => {
                let duration = duration.saturating_add(*tolerance);
                self.executor.block_on(async { tokio::time::sleep(duration).await });
            }
        }
    }

    /// Whether time stands still by itself, so that its every moment can be
    /// asked about.
    pub(super) fn is_exact(&self) -> bool {
        matches!(self.time, Time::Manual(_))
    }

    /// How far a time may be from what was promised.
    pub(super) fn tolerance(&self) -> Duration {
        if let Time::Real(tolerance) = self.time { tolerance } else { Duration::ZERO }
    }
}

/// Checks that the backend did decide.
fn answered(decision: Decision) -> Decision {
    assert_ne!(decision.rejection(), Some(RateLimitedKind::BackendUnavailable), "the backend gave no answer");
    decision
}

/// A rule that shows when the backend gives no answer.
pub(super) fn rule(id: &str) -> Rule {
    Rule::new(format!("conformance-{id}")).on_backend_failure(FailureMode::Closed)
}
