//! The engines of this crate that decide in this process: [`InProcess`].
//!
//! The limiter calls them directly, without dynamic dispatch. It decides
//! nothing itself.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    memory::{engine::Engine, machine_source::FullQuota},
    outcome::{Outcome, TierStates},
    receipt::{Receipt, TierClaim},
    request::AcquireRequest,
    split::machines::ShareMachines,
};
use crate::{
    algorithm::{LazyStatus, QuotaStatus},
    fingerprint::Fingerprint,
    policy::{
        Target, Tier,
        charge::{AsTarget, Charge},
    },
    time::Timestamp,
};

/// An engine that decides in this process. Opaque: only this crate makes one.
#[derive(Clone, Debug)]
#[allow(unnameable_types, reason = "sealed")]
pub struct InProcess(pub(super) Kind);

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Full(Arc<Engine<FullQuota>>),
    Shares(Arc<Engine<Arc<ShareMachines>>>),
}

/// Runs one expression for whichever engine it is.
macro_rules! with_engine {
    ($in_process:expr, $engine:ident => $body:expr) => {
        match &$in_process.0 {
            Kind::Full($engine) => $body,
            Kind::Shares($engine) => $body,
        }
    };
}

impl InProcess {
    /// See [`Engine::try_charge_tier`].
    #[inline]
    pub(crate) fn try_charge_tier(&self, target: &Target<'_>, tier: &Tier, now: u64) -> Option<(LazyStatus, u64)> {
        with_engine!(self, engine => engine.try_charge_tier(target, tier, now))
    }

    /// See [`Engine::try_charge`].
    #[inline]
    pub(crate) fn try_charge<'t>(
        &self,
        targets: &[impl AsTarget<'t>],
        now: u64,
        charged: impl FnMut(&'t Tier, QuotaStatus, u64),
    ) -> bool {
        with_engine!(self, engine => engine.try_charge(targets, now, charged))
    }

    /// See [`Engine::used_up`].
    pub(crate) fn used_up(&self, target: &Target<'_>, now: u64) -> Option<(u64, TierStates)> {
        with_engine!(self, engine => engine.used_up(target, now))
    }

    pub(crate) fn decide(&self, request: &AcquireRequest<'_>) -> Outcome {
        with_engine!(self, engine => engine.decide(request))
    }

    /// See [`Engine::look`].
    pub(crate) fn look(&self, request: &AcquireRequest<'_>) -> Outcome {
        with_engine!(self, engine => engine.look(request))
    }

    /// See [`Engine::overflow_in_flight`].
    pub(crate) fn overflow_in_flight(&self, request: &AcquireRequest<'_>) -> SmallVec<[Fingerprint; 1]> {
        with_engine!(self, engine => engine.overflow_in_flight(request))
    }

    /// See [`Engine::count`].
    pub(crate) fn count(&self, charges: &[Charge<'_>], now: Timestamp) -> SmallVec<[TierClaim; 2]> {
        with_engine!(self, engine => engine.count(charges, now))
    }

    /// See [`Engine::count_more`].
    pub(crate) fn count_more(&self, receipt: &Receipt, units: u64, now: Timestamp) {
        with_engine!(self, engine => engine.count_more(receipt, units, now));
    }

    /// See [`Engine::is_last`].
    pub(crate) fn is_last(&self, receipt: &Receipt, now: Timestamp) -> bool {
        with_engine!(self, engine => engine.is_last(receipt, now))
    }

    /// Whether it counts shares of limits: a quota then does not tell how long
    /// a request may have to wait.
    pub(crate) fn has_shares(&self) -> bool {
        matches!(self.0, Kind::Shares(_))
    }

    /// Whether others decide by the same engine. What they release, this owner
    /// does not notice.
    pub(crate) fn has_other_owners(&self) -> bool {
        with_engine!(self, engine => Arc::strong_count(engine) > 1)
    }
}

impl Default for InProcess {
    fn default() -> Self {
        Self(Kind::Full(Arc::new(Engine::full(super::memory::MAX_KEYS))))
    }
}

#[cfg(test)]
mod tests;
