//! A backend that fails on demand: [`FaultyBackend`].
//!
//! It counts requests, admissions and refunds, whether or not their answers
//! arrive.

use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::{BoxFuture, ready};
use tokio::task::yield_now;

use crate::{
    backend::{Backend, Charge, CooldownNotice, Decide, Outcome, OutcomeKind, Receipt, Request, Settlement},
    error::{BackendError, BackendErrorKind},
    sync::lock,
    time::{Clock, Timestamp},
};

/// The behaviour of a [`FaultyBackend`].
///
/// ```
/// use tower_ratelimit::{error::BackendErrorKind, testing::Fault};
///
/// let fault = Fault::Error(BackendErrorKind::Unavailable);
/// assert_ne!(fault, Fault::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// No fault: the inner backend decides, as fast as it can.
    #[default]
    None,
    /// The inner backend decides. Its answer arrives at the second poll.
    Slow,
    /// An immediate error. Nothing is charged or refunded.
    Error(BackendErrorKind),
    /// The inner backend decides and charges, but the answer is lost: an error
    /// ([`BackendErrorKind::Timeout`]) at the second poll.
    LostReply,
    /// No answer, ever. Nothing is charged or refunded.
    Never,
}

/// Passes requests to another backend until told to fail. Clones share
/// everything, so a test keeps one to set faults.
///
/// ```
/// use tower_ratelimit::{
///     error::BackendErrorKind, Descriptor, FailureMode, Policy, Quota, RateLimitedKind, RateLimiter, Rule,
///     backend::Local,
///     testing::{Fault, FaultyBackend},
/// };
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let backend = FaultyBackend::new(Local::new());
/// let policy = Policy::new().rule(Rule::new("pay").tier(Quota::per_hour(5)).on_backend_failure(FailureMode::Closed));
/// let limiter = RateLimiter::builder().policy(policy).backend(backend.clone()).build().unwrap();
///
/// backend.set(Fault::Error(BackendErrorKind::Unavailable));
/// let rejected = limiter.check(&Descriptor::new("/pay")).await;
/// assert_eq!(rejected.rejection(), Some(RateLimitedKind::BackendUnavailable));
///
/// backend.set(Fault::None);
/// assert!(limiter.check(&Descriptor::new("/pay")).await.is_allowed());
/// assert_eq!((backend.requests(), backend.admitted()), (2, 1));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FaultyBackend {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Box<dyn Backend>,
    /// The backend's own clock.
    clock: Option<Box<dyn Clock>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    requests: u64,
    admitted: u64,
    refunds: u64,
}

impl FaultyBackend {
    /// Passes requests to `inner`, without a fault.
    pub fn new(inner: impl Backend) -> Self {
        Self::wrap(Box::new(inner), None)
    }

    /// A backend with its own clock, like a store that many instances use. It
    /// decides by that clock, whatever the limiter's clock reads, and says so
    /// in its outcome. A delayed request then waits from the arrival of the
    /// answer.
    pub fn with_clock(inner: impl Backend, clock: impl Clock) -> Self {
        Self::wrap(Box::new(inner), Some(Box::new(clock)))
    }

    fn wrap(inner: Box<dyn Backend>, clock: Option<Box<dyn Clock>>) -> Self {
        Self { shared: Arc::new(Shared { inner, clock, state: Mutex::default() }) }
    }

    /// Sets the fault of all later requests. Requests in progress are
    /// unaffected.
    pub fn set(&self, fault: Fault) {
        self.shared.state().fault = fault;
    }

    /// The number of requests, answered or not.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.state().requests
    }

    /// The number of requests that the inner backend has admitted and charged,
    /// whether or not the answer arrived.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.shared.state().admitted
    }

    /// The number of refunds, arrived or not.
    #[must_use]
    pub fn refunds(&self) -> u64 {
        self.shared.state().refunds
    }

    /// Whether a call without an answer reaches the inner backend.
    fn arrives(&self) -> bool {
        matches!(self.fault(), Fault::None | Fault::Slow | Fault::LostReply)
    }

    /// How a question fails, and a request to forget.
    fn failure(&self) -> Option<BackendError> {
        match self.fault() {
            Fault::None | Fault::Slow => None,
            Fault::Error(kind) => Some(set(kind)),
            Fault::LostReply | Fault::Never => Some(lost()),
        }
    }

    fn fault(&self) -> Fault {
        self.shared.state().fault
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The time on the backend's own clock, if it has one.
    fn time(&self, now: Timestamp) -> Timestamp {
        self.clock.as_ref().map_or(now, |clock| clock.now())
    }

    /// The inner backend's answer.
    fn ask(self: &Arc<Self>, request: &Request<'_>) -> Decide {
        let now = self.time(request.now);
        let shared = Arc::clone(self);
        let count = move |reply: Reply| {
            if let Ok(Outcome { answer: OutcomeKind::Admitted { .. }, .. }) = reply {
                shared.state().admitted += 1;
            }
            reply
        };
        let decided_at = self.clock.as_ref().map(|_| now.as_nanos());
        match self.inner.decide(&Request { now, ..*request }) {
            Decide::Now(reply) => Decide::Now(count(reply).map(|outcome| Outcome { decided_at, ..outcome })),
            Decide::Later(answer) => Decide::Later(Box::pin(async move { count(answer.await) })),
        }
    }
}

impl Backend for FaultyBackend {
    fn decide(&self, request: &Request<'_>) -> Decide {
        let fault = self.fault();
        if request.is_immediate() && matches!(fault, Fault::Slow | Fault::LostReply | Fault::Never) {
            return Decide::later(std::future::pending());
        }
        self.shared.state().requests += 1;
        match fault {
            Fault::None => self.shared.ask(request),
            Fault::Slow => late(self.shared.ask(request), |result| result),
            Fault::LostReply => late(self.shared.ask(request), |_| Err(lost())),
            Fault::Error(kind) => Decide::Now(Err(set(kind))),
            Fault::Never => Decide::later(std::future::pending()),
        }
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.shared.state().refunds += 1;
        if self.arrives() {
            self.shared.inner.refund(receipt, self.shared.time(now));
        }
    }

    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.shared.inner)
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        if self.arrives() {
            self.shared.inner.release(receipt, self.shared.time(now));
        }
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        if self.arrives() {
            self.shared.inner.settle(receipt, settlement, self.shared.time(now));
        }
    }

    fn peek(&self, request: &Request<'_>) -> Decide {
        let request = Request { now: self.shared.time(request.now), ..*request };
        match self.failure() {
            Some(error) => Decide::Now(Err(error)),
            None => self.shared.inner.peek(&request),
        }
    }

    fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> BoxFuture<'static, Result<u64, BackendError>> {
        match self.failure() {
            Some(error) => Box::pin(ready(Err(error))),
            None => self.shared.inner.reset(charges, self.shared.time(now)),
        }
    }

    fn share_cooldown(&self, notice: &CooldownNotice<'_>) {
        if self.arrives() {
            self.shared.inner.share_cooldown(notice);
        }
    }

    fn drain(&self, now: Timestamp) -> BoxFuture<'static, ()> {
        self.shared.inner.drain(self.shared.time(now))
    }
}

fn set(kind: BackendErrorKind) -> BackendError {
    BackendError::new(kind, "the test set this fault")
}

fn lost() -> BackendError {
    BackendError::new(BackendErrorKind::Timeout, "the reply was lost")
}

type Reply = Result<Outcome, BackendError>;

/// Delays the answer to the second poll at the earliest.
fn late(answer: Decide, then: impl FnOnce(Reply) -> Reply + Send + 'static) -> Decide {
    Decide::Later(Box::pin(async move {
        yield_now().await;
        then(match answer {
            Decide::Now(result) => result,
            Decide::Later(answer) => answer.await,
        })
    }))
}
