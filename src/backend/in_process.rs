//! What an engine in this process can tell the limiter, beside what every backend can:
//! [`InProcess`].
//!
//! It decides nothing itself. Invariant: the limiter has one only where no decorator stands
//! before the engine.

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use super::{memory::counter::Versioned, outcome::ImmediateStates, receipt::Receipt, request::Request};
use crate::{
    fingerprint::Fingerprint,
    policy::{Tier, charge::Charge},
    time::Timestamp,
};

/// An engine that decides in this process. Opaque: only this crate makes one.
#[derive(Clone, Debug)]
#[allow(unnameable_types, reason = "sealed")]
pub struct InProcess(pub(crate) Arc<dyn InProcessEngine>);

pub(crate) trait InProcessEngine: fmt::Debug + Send + Sync {
    /// Charges one tier of a key, if its state exists and admits the cost at `now`; else
    /// charges nothing.
    fn charge_tier(&self, tier: &Tier, key: Fingerprint, cost: u64, now: Timestamp) -> Option<Versioned>;

    /// Charges a request, if the states of all its tiers exist and admit it at `now`; else
    /// charges nothing. Adds the status of each tier to `states`.
    fn charge_now(&self, charges: &[Charge<'_>], now: Timestamp, states: &mut ImmediateStates) -> bool;

    /// Whether a refund of the receipt admits at its time what it was charged
    /// for: nothing was charged after it.
    fn is_last(&self, receipt: &Receipt, now: Timestamp) -> bool;

    /// The overflow counters of in-flight units that such a request would be
    /// charged to, because its keys have no entry and get none. Charges
    /// nothing.
    fn overflow_in_flight(&self, request: &Request<'_>) -> SmallVec<[Fingerprint; 1]>;

    /// Whether it counts shares of the limits, which may change.
    fn counts_shares(&self) -> bool;
}

impl InProcess {
    /// Whether units may be released without the limiter that holds this noticing it: a
    /// share of the limit changes, or another limiter decides by the same engine.
    pub(crate) fn may_release_unnoticed(&self) -> bool {
        // The backend has the engine too.
        self.0.counts_shares() || Arc::strong_count(&self.0) > 2
    }
}
