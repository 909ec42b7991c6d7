//! What a permit keeps of an immediate allow: [`Charged`]. A lease is made of it only
//! where the permit is asked for more than to be dropped: making one costs several
//! times what the decision does.
//!
//! Invariant: it counts as a permit until it, or the lease made of it, is dropped.

use std::{
    fmt, mem,
    sync::{Arc, OnceLock},
};

use smallvec::SmallVec;

use super::{
    attempt::Charges,
    grant::{Decider, Grant},
    lease::Lease,
    state::RateLimiter,
};
use crate::{
    backend::{Receipt, TierClaim},
    decision::Decision,
    policy::{ChargedTarget, CompiledPolicy, charge::AsTarget},
};

/// What a permit keeps of an immediate allow.
pub(super) struct Charged {
    limiter: RateLimiter,
    policy: Arc<CompiledPolicy>,
    targets: SmallVec<[ChargedTarget; 1]>,
    versions: Versions,
    lease: OnceLock<Box<Lease>>,
}

/// The version of each tier's state, after the charge.
type Versions = SmallVec<[u64; 1]>;

/// Keeps what an immediate allow charges. A type parameter, so that a request which
/// keeps nothing pays for nothing.
pub(super) trait Keep {
    fn permits(&mut self) -> Option<&mut Permits>;

    fn add_version(&mut self, version: u64);

    /// All targets are charged.
    fn finish<'t>(&mut self, limiter: &RateLimiter, policy: &Arc<CompiledPolicy>, targets: &[impl AsTarget<'t>]);
}

/// Keeps what is charged for a permit.
#[derive(Default)]
pub(super) struct Permits {
    versions: Versions,
    pub(super) charged: Option<Charged>,
}

impl Keep for Permits {
    #[inline]
    fn permits(&mut self) -> Option<&mut Permits> {
        Some(self)
    }

    #[inline]
    fn add_version(&mut self, version: u64) {
        self.versions.push(version);
    }

    #[inline]
    fn finish<'t>(&mut self, limiter: &RateLimiter, policy: &Arc<CompiledPolicy>, targets: &[impl AsTarget<'t>]) {
        limiter.inner.permits.add();
        let mut charged = SmallVec::new();
        targets.iter().for_each(|target| charged.push(target.charged()));
        let (limiter, policy, versions) = (limiter.clone(), Arc::clone(policy), mem::take(&mut self.versions));
        self.charged = Some(Charged { limiter, policy, targets: charged, versions, lease: OnceLock::new() });
    }
}

/// `None` keeps nothing.
impl Keep for Option<&mut Permits> {
    #[inline]
    fn permits(&mut self) -> Option<&mut Permits> {
        self.as_deref_mut()
    }

    #[inline]
    fn add_version(&mut self, version: u64) {
        if let Some(permits) = self {
            permits.add_version(version);
        }
    }

    #[inline]
    fn finish<'t>(&mut self, limiter: &RateLimiter, policy: &Arc<CompiledPolicy>, targets: &[impl AsTarget<'t>]) {
        if let Some(permits) = self {
            permits.finish(limiter, policy, targets);
        }
    }
}

/// Keeps nothing.
impl Keep for () {
    #[inline]
    fn permits(&mut self) -> Option<&mut Permits> {
        None
    }

    #[inline]
    fn add_version(&mut self, _: u64) {}

    #[inline]
    fn finish<'t>(&mut self, _: &RateLimiter, _: &Arc<CompiledPolicy>, _: &[impl AsTarget<'t>]) {}
}

impl Charged {
    /// The lease of the request that was admitted with this decision.
    pub(super) fn lease(&self, decision: &Decision) -> &Lease {
        self.lease.get_or_init(|| Box::new(self.make_lease(decision)))
    }

    #[cold]
    fn make_lease(&self, decision: &Decision) -> Lease {
        let at = decision.decided_at();
        let charges: Charges<'_> = self.targets.iter().map(|target| target.charge(&self.policy)).collect();
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
    #[inline]
    fn drop(&mut self) {
        // Otherwise the lease does.
        if self.lease.get().is_none() {
            self.limiter.inner.permits.subtract();
        }
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charged").field("targets", &self.targets).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(feature = "test-util")]
mod tests;
