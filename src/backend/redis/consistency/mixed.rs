//! Requests that are charged by rules of both levels.
//!
//! Invariant: all or nothing. What was taken of a pool is put back unless the store
//! admits the rest, also if the request is dropped meanwhile.

use smallvec::SmallVec;

use super::{Levels, is_leased, pool_key::may_wait};
use crate::{
    backend::{Charge, Decide, Outcome, OutcomeKind, Request, TierState},
    policy::charge::Charges,
};

impl Levels {
    #[cold]
    pub(super) fn acquire_mixed(&self, request: &Request<'_>) -> Decide {
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
