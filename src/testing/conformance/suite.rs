//! What every check uses: the settings of the suite ([`Suite`]), a limiter on a new
//! backend, with time to advance ([`Bench`]), and paused time that waits for backends
//! behind a network ([`Remote`]).
//!
//! Invariant: a failure of the backend never counts as a rejection.

use std::{
    cell::Cell,
    error::Error,
    fmt,
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::spawn_blocking,
    time::Instant,
};

use crate::{
    backend::{Backend, Decide, Receipt, Request},
    decision::{Decision, RateLimited, RateLimitedKind},
    descriptor::Descriptor,
    error::BackendErrorKind,
    limiter::{Permit, RateLimiter},
    policy::{Consistency, FailureMode, Policy, Rule},
    quota::Algorithm,
    testing::ManualClock,
    time::{Clock, Timestamp},
};

/// The conformance suite, with settings.
///
/// To check a backend that needs a Tokio runtime, run the suite inside one with
/// several threads. The suite blocks its thread, and asks from threads of its
/// own.
///
/// ```
/// use tower_ratelimit::{backend::Local, testing::conformance::Suite};
///
/// Suite::new(Local::new)
///     .capped(|max_keys| Local::builder().max_keys(max_keys).build())
///     .keys(100)
///     .run();
/// ```
#[must_use]
pub struct Suite {
    pub(super) make: Box<dyn Fn() -> Arc<dyn Backend> + Send + Sync>,
    pub(super) make_capped: Option<MakeCapped>,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) keys: usize,
    pub(super) waits: bool,
    pub(super) in_flight: bool,
    /// Real time, and how late a request may be admitted.
    pub(super) real_time: Option<Duration>,
    /// The time after which a refund has arrived.
    lag: Duration,
    consistency: Consistency,
}

type MakeCapped = Box<dyn Fn(usize) -> Arc<dyn Backend> + Send + Sync>;

impl Suite {
    /// A suite for backends from `make`. They may share a store, if it is
    /// empty: no two checks use the same rule.
    pub fn new<B: Backend>(make: impl Fn() -> B + Send + Sync + 'static) -> Self {
        Self {
            make: Box::new(move || Arc::new(make())),
            make_capped: None,
            algorithms: Algorithm::WINDOWED.into(),
            keys: 20_000,
            waits: true,
            in_flight: true,
            real_time: None,
            lag: Duration::ZERO,
            consistency: Consistency::Exact,
        }
    }

    /// Also checks the cap on keys, on backends that hold at most that many.
    pub fn capped<B: Backend>(mut self, make: impl Fn(usize) -> B + Send + Sync + 'static) -> Self {
        self.make_capped = Some(Box::new(move |max_keys| Arc::new(make(max_keys))));
        self
    }

    /// The algorithms that the backend supports, by default all that have a
    /// window. The token bucket must be one of them.
    pub fn algorithms(mut self, algorithms: impl IntoIterator<Item = Algorithm>) -> Self {
        self.algorithms = algorithms.into_iter().collect();
        self
    }

    /// The keys that eight threads compete for; 20,000 by default.
    pub fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    /// For a backend that never delays a request, but rejects it.
    pub fn without_waits(mut self) -> Self {
        self.waits = false;
        self
    }

    /// For a backend without concurrency limits, so without rules that use
    /// [`Quota::concurrent`](crate::Quota::concurrent).
    pub fn without_in_flight(mut self) -> Self {
        self.in_flight = false;
        self
    }

    /// For a backend with a clock of its own: real time passes. The suite then
    /// checks promised times `tolerance` later, and does not check that a
    /// request is rejected until just before.
    pub fn real_time(mut self, tolerance: Duration) -> Self {
        self.real_time = Some(tolerance);
        self
    }

    /// For a backend behind a network, which refunds in the background: the
    /// suite expects refunded units `lag` later. In [real
    /// time](Self::real_time), the tolerance must be more than twice `lag`.
    ///
    /// The backend must work on another runtime than the caller's, since the
    /// suite's own runtimes block at times. A backend built inside a runtime
    /// with several threads does.
    pub fn remote(mut self, lag: Duration) -> Self {
        self.lag = lag;
        self
    }

    /// The level at which all rules of the suite are decided; exact by default. A
    /// single instance that decides on leased units keeps the whole contract.
    pub fn consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }

    /// The policy with all rules at the level that is checked.
    pub(super) fn at_level(&self, mut policy: Policy) -> Policy {
        policy.rules.iter_mut().for_each(|rule| rule.consistency = self.consistency);
        policy
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").finish_non_exhaustive()
    }
}

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

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self {
            Self::Callers(handle) => handle.block_on(future),
            Self::Own(runtime) => runtime.block_on(future),
        }
    }

    /// Polls once without the runtime, so that threads with a ready answer
    /// reach the backend at the same time.
    fn answer<F: Future>(&self, future: F) -> F::Output {
        let _guard = match self {
            Self::Callers(handle) => handle.enter(),
            Self::Own(runtime) => runtime.enter(),
        };
        let mut future = pin!(future);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => self.block_on(future),
        }
    }
}

/// What a check runs on.
pub(super) struct Fixture<'s> {
    pub(super) suite: &'s Suite,
    pub(super) executor: &'s Executor,
}

/// A limiter on a backend under test.
pub(super) struct Bench<'s> {
    pub(super) limiter: RateLimiter,
    fixture: &'s Fixture<'s>,
    /// Unused where time is real.
    clock: ManualClock,
    made: Instant,
}

impl Fixture<'_> {
    /// Waits until refunds have arrived.
    pub(super) fn settle(&self) {
        pause(self.suite.lag);
    }

    /// The algorithms that admit bursts.
    pub(super) fn bursting(&self) -> impl Iterator<Item = Algorithm> {
        self.suite.algorithms.iter().copied().filter(|algorithm| *algorithm != Algorithm::LeakyBucket)
    }

    /// A limiter on a new backend.
    pub(super) fn bench(&self, policy: Policy) -> Bench<'_> {
        self.bench_on((self.suite.make)(), policy)
    }

    pub(super) fn bench_on(&self, backend: Arc<dyn Backend>, policy: Policy) -> Bench<'_> {
        let clock = ManualClock::new();
        Bench { limiter: self.limiter(backend, policy, clock.clone()), fixture: self, clock, made: Instant::now() }
    }

    /// A limiter on a backend, which reads the clock unless time is real.
    pub(super) fn limiter(&self, backend: impl Backend, policy: Policy, clock: impl Clock) -> RateLimiter {
        let builder = RateLimiter::builder().policy(self.suite.at_level(policy)).backend(backend);
        let builder = if self.suite.real_time.is_some() { builder } else { builder.clock(clock) };
        builder.build().expect("a valid policy")
    }
}

impl Bench<'_> {
    fn answer<F: Future>(&self, future: F) -> F::Output {
        self.fixture.executor.answer(future)
    }

    /// Decides a request that does not wait.
    pub(super) fn ask(&self, request: &Descriptor<'_>) -> Decision {
        answered(self.answer(self.limiter.check(request)))
    }

    /// Asks without charging; `None` if the backend does not support it.
    pub(super) fn peek(&self, request: &Descriptor<'_>) -> Option<Decision> {
        let decision = self.answer(self.limiter.peek(request));
        (decision.rejection() != Some(RateLimitedKind::BackendUnavailable)).then_some(decision)
    }

    /// Forgets what was used, and returns how many counters that was; `None` if the backend
    /// does not support it.
    pub(super) fn reset(&self, request: &Descriptor<'_>) -> Option<u64> {
        match self.answer(self.limiter.reset(request)) {
            Ok(forgotten) => Some(forgotten),
            Err(error) if error.kind() == BackendErrorKind::Unsupported => None,
            Err(error) => panic!("the backend failed: {error}"),
        }
    }

    /// The number of admitted requests out of `tries`.
    pub(super) fn admits(&self, request: &Descriptor<'_>, tries: usize) -> usize {
        (0..tries).filter(|_| self.ask(request).is_allowed()).count()
    }

    /// As [`admits`](Self::admits), at cost 1.
    pub(super) fn admitted(&self, path: &str, tenant: &str, tries: usize) -> usize {
        self.admits(&Descriptor::new(path).tenant(tenant), tries)
    }

    /// Acquires a permit without waiting.
    pub(super) fn take(&self, request: &Descriptor<'_>) -> Result<Permit, RateLimited> {
        self.answer(self.limiter.acquire(request, Duration::ZERO))
    }

    /// Advances the time. Real time passes for the tolerance longer, since
    /// later checks depend on it.
    #[allow(clippy::disallowed_methods, reason = "a backend's own clock cannot be advanced by hand")]
    pub(super) fn pass(&self, duration: Duration) {
        match self.fixture.suite.real_time {
            None => self.clock.advance(duration),
            Some(tolerance) => {
                let duration = duration.saturating_add(tolerance);
                self.fixture.executor.block_on(async { tokio::time::sleep(duration).await });
            }
        }
    }

    /// Sets manual time.
    pub(super) fn set(&self, time: Timestamp) {
        self.clock.set(time);
    }

    /// Whether the time is manual, so that every moment can be checked.
    pub(super) fn is_exact(&self) -> bool {
        self.fixture.suite.real_time.is_none()
    }

    /// How much earlier than promised a request may be admitted: real time has passed
    /// since the first one.
    pub(super) fn tolerance(&self) -> Duration {
        self.fixture.suite.real_time.map_or(Duration::ZERO, |tolerance| tolerance + self.made.elapsed())
    }
}

/// Checks that the backend answered.
fn answered(decision: Decision) -> Decision {
    if decision.rejection() == Some(RateLimitedKind::BackendUnavailable) {
        let rejected = decision.into_result().err();
        let cause = rejected.as_ref().and_then(Error::source).map(ToString::to_string).unwrap_or_default();
        panic!("the backend failed: {cause}");
    }
    decision
}

/// A rule that fails closed, so that a backend failure shows.
pub(super) fn rule(id: &str) -> Rule {
    Rule::new(format!("conformance-{id}")).on_backend_failure(FailureMode::Closed)
}

thread_local! {
    /// The pending answers for this thread.
    static PENDING: Cell<usize> = const { Cell::new(0) };
}

/// The longest time for an answer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Stops paused time while an answer is pending. Otherwise time would jump to
/// the next timer, which is the deadline of the call.
#[derive(Debug)]
pub(super) struct Remote(pub(super) Arc<dyn Backend>);

impl Backend for Remote {
    fn decide(&self, request: &Request<'_>) -> Decide {
        match self.0.decide(request) {
            Decide::Later(answering) => {
                // Time stops at once, not when the future is polled.
                let stopped = StoppedTime::new();
                Decide::later(async move {
                    let answer = answering.await;
                    drop(stopped);
                    answer
                })
            }
            now => now,
        }
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.0.refund(receipt, now);
    }

    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.0)
    }
}

/// Blocks a thread of the runtime, which stops paused time.
struct StoppedTime {
    _ends_when_dropped: mpsc::Sender<()>,
}

impl StoppedTime {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        spawn_blocking(move || receiver.recv());
        PENDING.set(PENDING.get() + 1);
        Self { _ends_when_dropped: sender }
    }
}

impl Drop for StoppedTime {
    fn drop(&mut self) {
        PENDING.set(PENDING.get() - 1);
    }
}

/// Polls until a value is found, or no answer is pending on this thread.
pub(super) fn settled<T>(mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let mut left = LONGEST_WAIT;
    loop {
        let found = poll();
        if found.is_some() || PENDING.get() == 0 || left.is_zero() {
            return found;
        }
        left = left.saturating_sub(POLL_INTERVAL);
        pause(POLL_INTERVAL);
    }
}

/// Lets real time pass, whatever clock the limiter uses.
#[allow(clippy::disallowed_methods, reason = "nothing signals that a network has delivered a message")]
fn pause(duration: Duration) {
    if !duration.is_zero() {
        thread::sleep(duration);
    }
}
