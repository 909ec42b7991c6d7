//! Adaptive concurrency limits beside a backend that decides elsewhere: [`LocalLimits`].
//!
//! Each instance finds its own limit and counts its own requests, so these charges are
//! decided in this process, and all others by the backend. Invariant: a request is charged
//! all of them or none; what was charged here is released if the backend does not admit it,
//! or if its reply is not awaited.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::{
    contract::Backend,
    memory::{MAX_KEYS, engine::Engine, machine_source::FullQuota},
    outcome::{Outcome, TierState},
    receipt::{Receipt, Settlement},
    request::{Decide, Request},
};
use crate::{
    algorithm::QuotaStatus,
    error::BackendError,
    policy::charge::{Charge, Charges},
    time::Timestamp,
};

/// The engine that counts them: also that of the fallback limiter, so that they hold while
/// the backend fails.
pub(crate) type LocalEngine = Arc<OnceLock<Engine<FullQuota>>>;

/// A backend, with adaptive concurrency limits in this process.
#[derive(Debug)]
pub(crate) struct LocalLimits {
    inner: Box<dyn Backend>,
    engine: LocalEngine,
}

/// The engine of the fallback limiter.
pub(crate) fn engine(engine: &LocalEngine) -> &Engine<FullQuota> {
    engine.get_or_init(|| Engine::full(MAX_KEYS))
}

impl LocalLimits {
    pub(crate) fn new(inner: Box<dyn Backend>, engine: LocalEngine) -> Self {
        Self { inner, engine }
    }

    /// Calls `local` with the receipt of what is counted here, and `other` with the rest.
    fn divide(
        &self,
        receipt: &Receipt,
        local: impl FnOnce(&Engine<FullQuota>, &Receipt),
        other: impl FnOnce(&dyn Backend, &Receipt),
    ) {
        if !receipt.charges().any(|charge| charge.is_adaptive()) {
            return other(&*self.inner, receipt);
        }
        if let Some(receipt) = receipt.clone().only(|charge| charge.is_adaptive()) {
            local(engine(&self.engine), &receipt);
        }
        if let Some(receipt) = receipt.clone().only(|charge| !charge.is_adaptive()) {
            other(&*self.inner, &receipt);
        }
    }

    /// Asks for each part of a request, the local one first. The other one is asked only if
    /// that admits it.
    fn decide_parts(&self, request: &Request<'_>, charges: bool) -> Decide {
        let (own, others): (Charges<'_>, Charges<'_>) =
            request.charges.iter().copied().partition(|charge| charge.is_adaptive());
        let parts = Parts::new(request.charges);
        let (of_own, of_others) = (Request { charges: &own, ..*request }, Request { charges: &others, ..*request });
        let (local, held) = match (charges, request.policy) {
            (true, Some(policy)) => {
                let local = engine(&self.engine).charge(&of_own);
                let receipt = local.is_admitted().then(|| Receipt::new(policy, &own, request.now, &local));
                (local, receipt.map(|receipt| Held { engine: Arc::clone(&self.engine), receipt: Some(receipt) }))
            }
            _ => (engine(&self.engine).look(&of_own), None),
        };
        if !local.is_admitted() {
            let tiers = parts.merge(&local, &Outcome::undecided());
            return Decide::Now(Ok(Outcome { tiers, ..local }));
        }
        if others.is_empty() {
            held.into_iter().for_each(Held::keep);
            return Decide::Now(Ok(local));
        }
        let asked = if charges { self.inner.decide(&of_others) } else { self.inner.peek(&of_others) };
        match asked {
            Decide::Now(result) => Decide::Now(parts.join(&local, held, result)),
            Decide::Later(reply) => Decide::later(async move { parts.join(&local, held, reply.await) }),
        }
    }
}

impl Backend for LocalLimits {
    fn decide(&self, request: &Request<'_>) -> Decide {
        match request.charges.iter().any(|charge| charge.is_adaptive()) {
            true => self.decide_parts(request, true),
            false => self.inner.decide(request),
        }
    }

    fn peek(&self, request: &Request<'_>) -> Decide {
        match request.charges.iter().any(|charge| charge.is_adaptive()) {
            true => self.decide_parts(request, false),
            false => self.inner.peek(request),
        }
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.divide(receipt, |engine, own| engine.refund(own, now), |inner, others| inner.refund(others, now));
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        self.divide(receipt, |engine, own| engine.release(own, now), |inner, others| inner.release(others, now));
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        self.divide(receipt, |_, _| {}, |inner, others| inner.settle(others, settlement, now));
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
        let tiers = charges.iter().flat_map(|charge| charge.tiers().iter().map(|tier| (charge.is_adaptive(), tier)));
        Self(tiers.map(|(is_local, tier)| (is_local, tier.quota().capacity())).collect())
    }

    /// The outcome of the other part, with the tiers of both. Keeps what is held if that is
    /// admitted.
    fn join(
        &self,
        local: &Outcome,
        held: Option<Held>,
        result: Result<Outcome, BackendError>,
    ) -> Result<Outcome, BackendError> {
        let outcome = result?;
        if outcome.is_admitted() {
            held.into_iter().for_each(Held::keep);
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

/// What was charged here, until the other part is decided.
struct Held {
    engine: LocalEngine,
    receipt: Option<Receipt>,
}

impl Held {
    fn keep(mut self) {
        self.receipt = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(receipt) = &self.receipt {
            engine(&self.engine).release(receipt, receipt.decided());
        }
    }
}
