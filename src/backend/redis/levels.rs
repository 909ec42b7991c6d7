//! The levels of consistency: stands between a request and `dispatch`, and decides
//! in this process what no round trip is needed for. Charges of exact rules pass
//! through unchanged.
//!
//! A request that is charged by rules of both levels is all or nothing: leased units
//! are taken first, the store decides last, and what was taken is put back if it
//! rejects. A request that may wait, or for which units are missing, is decided by the
//! store as a whole.
//!
//! Invariant: no level has a connection, a batch or a queue of its own. What it
//! needs of the store it asks the dispatcher for.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    dispatch::Dispatcher,
    leased::{level::Leased, pool_key::may_wait},
};
use crate::{
    backend::{Charge, Decide, Outcome, OutcomeKind, Request, Reset, TierState},
    policy::{Consistency, charge::Charges},
    time::Timestamp,
};

/// Decides requests at the level that each of their rules asks for.
pub(super) struct Levels {
    pub(super) dispatcher: Arc<Dispatcher>,
    leased: Arc<Leased>,
}

impl Levels {
    pub(super) fn new(dispatcher: Arc<Dispatcher>) -> Self {
        Self { leased: Leased::new(&dispatcher), dispatcher }
    }

    pub(super) fn decide(&self, request: &Request<'_>) -> Decide {
        let leased = request.charges.iter().filter(|charge| is_leased(charge)).count();
        match leased {
            0 => self.dispatcher.acquire(request),
            all if all == request.charges.len() => self.leased.acquire(request),
            _ => self.acquire_mixed(request),
        }
    }

    pub(super) fn peek(&self, request: &Request<'_>) -> Decide {
        match request.charges.iter().all(is_leased) {
            true => self.leased.peek(request),
            false => self.dispatcher.peek(request),
        }
    }

    /// Forgets what these charges have used, here and in the store.
    pub(super) fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Reset {
        let leased: Charges<'_> = charges.iter().filter(|charge| is_leased(charge)).copied().collect();
        if !leased.is_empty() {
            self.leased.forget(&leased, now);
        }
        self.dispatcher.reset(charges, now)
    }

    /// Gives back all that is reserved.
    pub(super) async fn drain(&self, now: Timestamp) {
        self.leased.drain(now).await;
    }
}

impl Levels {
    /// Units of the pool are taken first, and put back unless the store admits the rest,
    /// also if the request is dropped meanwhile.
    fn acquire_mixed(&self, request: &Request<'_>) -> Decide {
        let (leased, exact): (Charges<'_>, Charges<'_>) = request.charges.iter().copied().partition(is_leased);
        let taken = match may_wait(request) {
            true => None,
            false => self.leased.take(&Request { charges: &leased, ..*request }),
        };
        let Some((here, units)) = taken else { return self.dispatcher.acquire(request) };
        let tiers = tiers_of(request.charges);
        let conclude = move |decided: Result<Outcome, _>| {
            let outcome = decided?;
            if let OutcomeKind::Admitted { .. } = outcome.answer {
                units.keep();
            }
            Ok(merged(&tiers, here, outcome))
        };
        match self.dispatcher.acquire(&Request { charges: &exact, ..*request }) {
            Decide::Now(result) => Decide::Now(conclude(result)),
            Decide::Later(reply) => Decide::Later(Box::pin(async move { conclude(reply.await) })),
        }
    }
}

/// For each tier of a request whether it is leased, and its limit.
type Tiers = SmallVec<[(bool, u64); 4]>;

fn tiers_of(charges: &[Charge<'_>]) -> Tiers {
    let of_charge = |charge: &Charge<'_>| {
        let is_leased = is_leased(charge);
        let tiers = charge.tiers().iter().map(|tier| (is_leased, tier.quota().limit()));
        tiers.collect::<Tiers>()
    };
    charges.iter().flat_map(of_charge).collect()
}

/// The outcome of the store's part, with the status of all tiers. The status of a
/// leased tier keeps the time at which it was known.
fn merged(tiers: &Tiers, here: Outcome, store: Outcome) -> Outcome {
    let behind = match (here.decided_at, store.decided_at) {
        (Some(own), Some(whole)) => Some((own, whole)),
        _ => None,
    };
    let (mut leased, mut exact) = (here.tiers.into_iter(), store.tiers.into_iter());
    let status = |(is_leased, limit): &(bool, u64)| {
        let state = if *is_leased { leased.next() } else { exact.next() };
        let state = state.unwrap_or_else(|| TierState::unused(*limit));
        match behind {
            Some((own, whole)) if *is_leased => {
                TierState { age: whole.saturating_sub(own.saturating_sub(state.age)), ..state }
            }
            _ => state,
        }
    };
    Outcome { tiers: tiers.iter().map(status).collect(), ..store }
}

fn is_leased(charge: &Charge<'_>) -> bool {
    charge.rule.options.consistency == Consistency::Leased
}
