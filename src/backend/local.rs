//! The default backend, [`Local`], and [`LocalLimits`], which decides adaptive concurrency
//! limits beside a backend that decides elsewhere.
//!
//! They decide nothing themselves: the engine does. Invariant: a request is charged all of
//! its tiers or none, whichever backend counts them.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::{
    contract::{Backend, Extension, InProcess, forward_backend},
    memory::{FullQuota, MAX_KEYS, engine::Engine},
    receipt::{Receipt, Settlement},
    request::{Decide, Outcome, Request, TierState, tiers},
};
use crate::{
    algorithm::QuotaStatus,
    error::BackendError,
    policy::charge::{Charge, Charges},
    time::Timestamp,
};

/// Decides in this process. Exact, synchronous, bounded in memory.
///
/// **Bounded**: the number of counters (one for each tier of a key) is capped,
/// at 1,000,000 by default. At the cap, a new key replaces an idle counter. If a
/// short search finds none, it displaces a counter in use: of up to 128 counters
/// of the same rule and tier, the one with the most units left. If the search
/// finds none of these either, the rule with the most counters gives one up. So
/// a flood of invented tenants rejects no newcomer, displaces itself before
/// tenants that sent more than it does, and rejects no request of another rule.
/// Counters with units in flight are never displaced. Nor are those with a debt,
/// or with reservations beyond a full quota, by keys of their own rule. Where
/// counters that stay fill the store, new keys share the rule's overflow counter.
///
/// **A flood buys little quota**: a displaced counter is kept aside as it is, and
/// counts again when its key returns: its use, refill, reservations, debt and
/// refunds. It does so until about `max_keys / 8` counters were displaced after it,
/// by keys of any rule. So for every `max_keys / 8` newcomers that a flood sends, a
/// tenant may get back what it had used, at most one quota, or be forgiven a debt.
/// A newcomer counts once for each tier; so does a displaced key that returns and
/// is admitted. The share of each shard is kept separately: `max_keys / 8` is the
/// mean, and small caps vary around it. The counters that are kept aside take a fifth
/// more memory at the default cap, and up to two thirds more at smaller ones, from the
/// first that is displaced. If a flood can send so many, raise the cap: the number grows
/// with it.
///
/// A settlement charges the overflow counter at most one capacity of the quota
/// (its burst, or what a window holds) and forgives the rest, so one tenant's
/// debt does not lock out all others that share the counter.
///
/// **Sliding logs are bounded in bytes**: all logs of a backend together take at
/// most 64 bytes for each counter of the cap (64 MB by default, 2 MB at least),
/// and 64 bytes for each log, displaced ones included. At that bound a log stops
/// growing. It then admits as many requests in a window as it has entries for, at
/// least four, until logs of other keys are idle and are dropped. Reservations of
/// requests that wait are not bounded by this, but by the limits on waiters.
///
/// **All or nothing**: all tiers of all rules that apply are decided and
/// charged under their locks, taken in one order. N threads never admit N+1.
///
/// **A clock that is set back** by ten seconds or more (only a custom
/// [`Clock`](crate::time::Clock) can be) does not reject keys for the whole jump:
/// a counter that is further ahead of the clock than it can be is moved back, with
/// what it has used; of a debt, what exceeds that is forgiven. So a key waits for
/// at most its window (two for sliding windows, for buckets the time in which they
/// fill) and the longest wait that was reserved so far. When the clock is set
/// forward again, a key may be admitted one more quota.
///
/// **Alone**: it talks to no other process. Cooldowns
/// ([`cool_down`](crate::RateLimiter::cool_down)) stay in this one.
///
/// ```
/// use tower_ratelimit::{Quota, RateLimiter, backend::Local};
///
/// let limiter = RateLimiter::builder()
///     .policy(Quota::per_second(10))
///     .backend(Local::builder().max_keys(50_000).build())
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Local {
    engine: Arc<Engine<FullQuota>>,
}

/// Builds a [`Local`].
///
/// ```
/// use tower_ratelimit::backend::Local;
///
/// // For a small machine: a key takes one counter for each tier.
/// let backend = Local::builder().max_keys(50_000).build();
/// # let _ = backend;
/// ```
#[derive(Clone, Debug)]
pub struct LocalBuilder {
    max_keys: usize,
}

impl Local {
    /// A backend for up to 1,000,000 counters.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Sets up a backend.
    #[must_use]
    pub fn builder() -> LocalBuilder {
        LocalBuilder { max_keys: MAX_KEYS }
    }
}

impl Default for Local {
    fn default() -> Self {
        Self::new()
    }
}

impl LocalBuilder {
    /// The most counters that are kept; a key takes one for each tier.
    #[must_use]
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = max_keys;
        self
    }

    /// The backend.
    #[must_use]
    pub fn build(self) -> Local {
        Local { engine: Arc::new(Engine::full(self.max_keys)) }
    }
}

forward_backend!([] Local, self => self.engine, Some(self));

impl Extension for Local {
    fn engine(&self) -> Option<InProcess> {
        Some(InProcess(Arc::clone(&self.engine) as _))
    }
}

/// A backend that decides elsewhere, with adaptive concurrency limits in this process:
/// each instance finds its own limit and counts its own requests.
///
/// A request is charged by both or by neither. What was charged here is released if the
/// other backend does not admit it, or if its reply is not awaited.
#[derive(Debug)]
pub(crate) struct LocalLimits {
    inner: Box<dyn Backend>,
    engine: LocalEngine,
}

/// The engine that counts them: also that of the fallback limiter, so that they hold while
/// the backend fails.
pub(crate) type LocalEngine = Arc<OnceLock<Engine<FullQuota>>>;

/// The engine of the fallback limiter.
pub(crate) fn engine(engine: &LocalEngine) -> &Engine<FullQuota> {
    engine.get_or_init(|| Engine::full(MAX_KEYS))
}

impl LocalLimits {
    pub(crate) fn new(inner: Box<dyn Backend>, engine: LocalEngine) -> Self {
        Self { inner, engine }
    }

    /// Calls `change` with the engine and the receipt of what is counted here, and with the
    /// other backend and the rest.
    fn divide(&self, receipt: &Receipt, change: impl Fn(&dyn Backend, &Receipt)) {
        if !receipt.charges().any(|charge| charge.is_adaptive()) {
            return change(&*self.inner, receipt);
        }
        if let Some(receipt) = receipt.clone().only(|charge| charge.is_adaptive()) {
            change(engine(&self.engine), &receipt);
        }
        if let Some(receipt) = receipt.clone().only(|charge| !charge.is_adaptive()) {
            change(&*self.inner, &receipt);
        }
    }

    /// Decides each part of a request, the local one first; or asks, and charges nothing. The
    /// other part is asked for only if the local one is admitted.
    fn decide_parts(&self, request: &Request<'_>, charges: bool) -> Decide {
        let ask_inner = |request: &Request<'_>| match charges {
            true => self.inner.decide(request),
            false => self.inner.peek(request),
        };
        if !request.charges.iter().any(|charge| charge.is_adaptive()) {
            return ask_inner(request);
        }
        let (own, others): (Charges<'_>, Charges<'_>) =
            request.charges.iter().copied().partition(|charge| charge.is_adaptive());
        let parts = Parts::new(request.charges);
        let (of_own, of_others) = (Request { charges: &own, ..*request }, Request { charges: &others, ..*request });
        let mut guard = RefundGuard { engine: Arc::clone(&self.engine), receipt: None };
        let local = match request.policy.filter(|_| charges) {
            Some(policy) => {
                let local = engine(&self.engine).charge(&of_own);
                guard.receipt = local.is_admitted().then(|| Receipt::new(policy, &own, request.now, &local));
                local
            }
            None => engine(&self.engine).look(&of_own),
        };
        if !local.is_admitted() {
            let tiers = parts.merge(&local, &Outcome::undecided());
            return Decide::Now(Ok(Outcome { tiers, ..local }));
        }
        if others.is_empty() {
            guard.keep();
            return Decide::Now(Ok(local));
        }
        match ask_inner(&of_others) {
            Decide::Now(result) => Decide::Now(parts.join(&local, guard, result)),
            Decide::Later(reply) => Decide::later(async move { parts.join(&local, guard, reply.await) }),
        }
    }
}

impl Backend for LocalLimits {
    fn decide(&self, request: &Request<'_>) -> Decide {
        self.decide_parts(request, true)
    }

    fn peek(&self, request: &Request<'_>) -> Decide {
        self.decide_parts(request, false)
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.divide(receipt, |backend, part| backend.refund(part, now));
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        self.divide(receipt, |backend, part| backend.release(part, now));
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        self.divide(receipt, |backend, part| backend.settle(part, settlement, now));
    }

    fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> BoxFuture<'static, Result<u64, BackendError>> {
        let others: Charges<'_> = charges.iter().filter(|charge| !charge.is_adaptive()).copied().collect();
        match others.is_empty() {
            true => Box::pin(std::future::ready(Ok(0))),
            false => self.inner.reset(&others, now),
        }
    }

    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }
}

/// The tiers of a request in their order: whether each is counted here, and what it holds.
struct Parts(SmallVec<[(bool, u64); 4]>);

impl Parts {
    fn new(charges: &[Charge<'_>]) -> Self {
        Self(tiers(charges).map(|(charge, tier)| (charge.is_adaptive(), tier.quota().capacity())).collect())
    }

    /// The outcome of the other part, with the tiers of both. Keeps what is charged if that is
    /// admitted.
    fn join(
        &self,
        local: &Outcome,
        guard: RefundGuard,
        result: Result<Outcome, BackendError>,
    ) -> Result<Outcome, BackendError> {
        let outcome = result?;
        if outcome.is_admitted() {
            guard.keep();
        }
        Ok(Outcome { tiers: self.merge(local, &outcome), ..outcome })
    }

    /// The states of all tiers. One that the backend does not report counts as unused.
    fn merge(&self, local: &Outcome, other: &Outcome) -> SmallVec<[TierState; 2]> {
        let (mut own, mut others) = (local.tiers.iter(), other.tiers.iter());
        let state = |(is_local, remaining): &(bool, u64)| {
            let known = if *is_local { own.next() } else { others.next() };
            known
                .copied()
                .unwrap_or_else(|| TierState::new((QuotaStatus { remaining: *remaining, reset: 0 }, 0), false))
        };
        self.0.iter().map(state).collect()
    }
}

/// What was charged here, if anything, until the other part is decided.
struct RefundGuard {
    engine: LocalEngine,
    receipt: Option<Receipt>,
}

impl RefundGuard {
    fn keep(mut self) {
        self.receipt = None;
    }
}

impl Drop for RefundGuard {
    fn drop(&mut self) {
        if let Some(receipt) = &self.receipt {
            engine(&self.engine).release(receipt, receipt.decided());
        }
    }
}
