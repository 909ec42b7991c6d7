//! What a permit keeps where nothing is left to do but perhaps to refund: [`Charged`].
//! A lease is made of it only where the permit is asked for more than to be dropped: it
//! allocates, and takes several times what the decision does.
//!
//! Invariant: it counts as a permit until it, or the lease made of it, is dropped.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use smallvec::SmallVec;

use super::{
    grant::{Decider, Grant},
    lease::Lease,
    state::RateLimiter,
};
use crate::{
    backend::{Receipt, TierClaim},
    decision::Decision,
    policy::{ChargedRule, CompiledPolicy, charge::Charges},
};

/// What was charged at once, in this process.
pub(super) struct Charged {
    limiter: RateLimiter,
    policy: Arc<CompiledPolicy>,
    rules: SmallVec<[ChargedRule; 1]>,
    /// The version of each tier's state, after the charge.
    versions: SmallVec<[u64; 1]>,
    lease: OnceLock<Box<Lease>>,
}

impl Charged {
    /// `versions` are those of each tier's state, after the charge.
    pub(super) fn new(
        limiter: &RateLimiter,
        policy: &Arc<CompiledPolicy>,
        rules: SmallVec<[ChargedRule; 1]>,
        versions: SmallVec<[u64; 1]>,
    ) -> Self {
        limiter.inner.permits.add();
        Self { limiter: limiter.clone(), policy: Arc::clone(policy), rules, versions, lease: OnceLock::new() }
    }

    /// The lease of the request that was admitted with this decision.
    pub(super) fn lease(&self, decision: &Decision) -> &Lease {
        self.lease.get_or_init(|| Box::new(self.make_lease(decision)))
    }

    fn make_lease(&self, decision: &Decision) -> Lease {
        let at = decision.decided_at();
        let charges: Charges<'_> = self.rules.iter().map(|rule| rule.charge(&self.policy)).collect();
        let tiers = charges.iter().flat_map(|charge| charge.tiers().iter().map(move |tier| (charge.cost, tier)));
        let claims = tiers.zip(decision.tiers()).zip(&self.versions).map(|(((cost, tier), status), version)| {
            let full_at = at.as_nanos().saturating_add(status.reset);
            TierClaim { claim: tier.machine.claim(at.as_nanos(), cost, full_at, *version), shared: false }
        });
        let receipt = Receipt::counted(&self.policy, &charges, at, claims);
        Lease::new(&self.limiter, Grant::new(Decider::Backend, receipt)).counted_before()
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        // Otherwise the lease does.
        if self.lease.get().is_none() {
            self.limiter.inner.permits.subtract();
        }
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charged").field("rules", &self.rules).finish_non_exhaustive()
    }
}
