//! The engines of this crate that decide in this process: [`InProcess`].
//!
//! For what only they can tell the limiter. It decides nothing itself.

use std::sync::Arc;

use smallvec::{Array, SmallVec};

use super::{
    memory::{engine::Engine, machine_source::FullQuota},
    outcome::TierState,
    receipt::Receipt,
    request::Request,
    split::machines::ShareMachines,
};
use crate::{fingerprint::Fingerprint, policy::charge::Charge, time::Timestamp};

/// An engine that decides in this process. Opaque: only this crate makes one.
#[derive(Clone, Debug)]
#[allow(unnameable_types, reason = "sealed")]
pub struct InProcess(Kind);

#[derive(Clone, Debug)]
enum Kind {
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
    pub(super) fn full(engine: &Arc<Engine<FullQuota>>) -> Self {
        Self(Kind::Full(Arc::clone(engine)))
    }

    pub(super) fn shares(engine: &Arc<Engine<Arc<ShareMachines>>>) -> Self {
        Self(Kind::Shares(Arc::clone(engine)))
    }

    /// Charges a request, if the states of all its tiers exist and admit it at `now`; else
    /// charges nothing. Adds the status of each tier to `states`.
    pub(crate) fn charge_now(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        states: &mut SmallVec<impl Array<Item = TierState>>,
    ) -> bool {
        with_engine!(self, engine => engine.charge_now(charges, now.as_nanos(), states))
    }

    /// Whether units may be released without the limiter that holds this noticing it: a
    /// share of the limit changes, or another limiter decides by the same engine.
    pub(crate) fn may_release_unnoticed(&self) -> bool {
        // The backend has the engine too.
        matches!(self.0, Kind::Shares(_)) || with_engine!(self, engine => Arc::strong_count(engine) > 2)
    }

    /// Whether a refund of the receipt admits at its time what it was charged
    /// for: nothing was charged after it.
    pub(crate) fn is_last(&self, receipt: &Receipt, now: Timestamp) -> bool {
        with_engine!(self, engine => engine.is_last(receipt, now))
    }

    /// The overflow counters of in-flight units that such a request would be
    /// charged to, because its keys have no entry and get none. Charges
    /// nothing.
    pub(crate) fn overflow_in_flight(&self, request: &Request<'_>) -> SmallVec<[Fingerprint; 1]> {
        with_engine!(self, engine => engine.overflow_in_flight(request))
    }
}
