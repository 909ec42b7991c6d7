//! Deciding in this process: one engine, whichever machines count.
//!
//! `engine` decides, `transaction` holds the locks and the states of one decision,
//! `counter` charges one tier, and `backend` makes a `Backend` of the engine. The engine
//! asks a [`MachineSource`] for machines, and does not know whether they count the whole
//! quota or a share of it.
//!
//! Not here: what a share of a limit is (`split`), and the public backends over
//! the engine.

mod backend;
mod counter;
pub(super) mod engine;
#[cfg(test)]
mod tests;
mod transaction;

use std::fmt;

use super::request::TierState;
use crate::{
    algorithm::Machine,
    fingerprint::Fingerprint,
    policy::{Tier, charge::Charge},
};

/// The most counters that a backend keeps by default.
pub(crate) const MAX_KEYS: usize = 1_000_000;

/// Where an engine's machines come from.
pub(crate) trait MachineSource: fmt::Debug + Send + Sync + 'static {
    /// The machines of some tiers.
    type Machines<'m>: Machines;

    /// Whether they count shares, which may change.
    const COUNTS_SHARES: bool = true;

    /// Runs `run` with the machines of all tiers.
    fn with<R>(&self, charges: &[Charge<'_>], now: u64, run: impl FnOnce(Self::Machines<'_>) -> R) -> R;

    /// Runs `run` with the machine of one tier of a key.
    fn with_one<R>(&self, key: Fingerprint, tier: &Tier, now: u64, run: impl FnOnce(&Machine) -> R) -> R;

    /// Does the same for a cost, which is counted as asked for where `run` charges it. It may
    /// leave it to [`with`](Self::with).
    #[inline]
    fn charge_one<R>(
        &self,
        (key, tier): (Fingerprint, &Tier),
        _cost: u64,
        now: u64,
        run: impl FnOnce(&Machine) -> Option<R>,
    ) -> Option<R> {
        self.with_one(key, tier, now, run)
    }

    /// What was asked for is not admitted now, by the tiers that are violated.
    #[inline]
    fn count_refused(&self, _: &[Charge<'_>], _: &[TierState]) {}

    /// Leaves the fleet that shares the quotas, if there is one.
    #[cfg(feature = "gossip")]
    fn leave(&self) -> futures_util::future::BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The machines of the tiers that were asked for.
pub(crate) trait Machines: Copy {
    fn of<'t>(&'t self, key: Fingerprint, tier: &'t Tier) -> &'t Machine;

    /// Counts what a request asks each rule for, once for all tiers of the rule.
    #[inline]
    fn count_asked(self, _: &[Charge<'_>]) {}
}

/// Counts the whole quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FullQuota;

impl MachineSource for FullQuota {
    type Machines<'m> = Self;

    const COUNTS_SHARES: bool = false;

    #[inline]
    fn with<R>(&self, _: &[Charge<'_>], _: u64, run: impl FnOnce(Self) -> R) -> R {
        run(Self)
    }

    #[inline]
    fn with_one<R>(&self, _: Fingerprint, tier: &Tier, _: u64, run: impl FnOnce(&Machine) -> R) -> R {
        run(&tier.machine)
    }
}

impl Machines for FullQuota {
    #[inline]
    fn of<'t>(&'t self, _: Fingerprint, tier: &'t Tier) -> &'t Machine {
        &tier.machine
    }
}
