//! What a backend with a store decides in this process without a future: [`AtOnce`].
//!
//! The limiter asks it before the backend. Invariant: it charges all of a request,
//! or nothing; it never rejects.

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use crate::{algorithm::QuotaStatus, policy::charge::LocalCharge};

/// The status of each tier after a charge.
pub(crate) type QuotaStatuses = SmallVec<[QuotaStatus; 4]>;

pub(crate) trait ChargeAtOnce: Send + Sync {
    /// Makes a charge that needs no call, and adds the status of each tier. `now` is
    /// the limiter's, in nanoseconds. False if the backend has to decide; then nothing
    /// has changed. Statuses go where they stay: a result that is returned would be
    /// copied before it is written.
    fn try_charge(&self, charge: &LocalCharge<'_>, now: u64, statuses: &mut QuotaStatuses) -> bool;
}

/// Makes charges that need no call. Opaque: only this crate makes one.
#[derive(Clone)]
#[allow(unnameable_types, reason = "sealed")]
pub struct AtOnce(Arc<dyn ChargeAtOnce>);

impl AtOnce {
    #[cfg(feature = "redis")]
    pub(crate) fn new(charges: Arc<dyn ChargeAtOnce>) -> Self {
        Self(charges)
    }

    #[inline]
    pub(crate) fn try_charge(&self, charge: &LocalCharge<'_>, now: u64, statuses: &mut QuotaStatuses) -> bool {
        self.0.try_charge(charge, now, statuses)
    }
}

impl fmt::Debug for AtOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtOnce").finish_non_exhaustive()
    }
}
