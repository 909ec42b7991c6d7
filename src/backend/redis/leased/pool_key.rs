//! Which pool a request of leased rules takes its units from, and how many. It takes
//! none.
//!
//! Invariant: a unit of a pool is one charge of every rule of the request, at the
//! rule's own cost.

use crate::{
    backend::{Charge, Request, redis::plan::is_leasable},
    fingerprint::Fingerprint,
    policy::Consistency,
    time::nanos,
};

/// Names a pool and the policy that it is asked under.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolKey {
    pub(super) key: Fingerprint,
    pub(super) version: u64,
    /// Nanoseconds.
    pub(super) interval: u64,
}

/// The pool of a request, and how many of its units the request takes. `None` where a
/// rule is not leased, or the charges do not all take the same number of units.
pub(super) fn pool_of(charges: &[Charge<'_>]) -> Option<(PoolKey, u64)> {
    let (first, rest) = charges.split_first()?;
    let (mut pool, units_of_first) = (pool_key(first)?, units(first)?);
    let mut key = pool.key.to_u128();
    for charge in rest {
        let other = pool_key(charge)?;
        key = key.rotate_left(9) ^ other.key.to_u128();
        pool.version = pool.version.rotate_left(9) ^ other.version;
        pool.interval = pool.interval.min(other.interval);
        if units(charge)? != units_of_first {
            return None;
        }
    }
    Some((PoolKey { key: Fingerprint::from_u128(key), ..pool }, units_of_first))
}

/// Whether a pool may decide the request. Only the store decides what a smooth rule
/// may delay.
pub(super) fn fits_pool(request: &Request<'_>) -> bool {
    request.max_wait.is_zero() || !request.charges.iter().any(Charge::is_smooth)
}

/// Whether a pool may have units of a charge: its rule is leased, and so may its tiers be.
pub(super) fn is_leased(charge: &Charge<'_>) -> bool {
    charge.rule.options.consistency == Consistency::Leased
        && charge.tiers().iter().all(|tier| is_leasable(tier.quota().counted_by()))
}

fn pool_key(charge: &Charge<'_>) -> Option<PoolKey> {
    let key = || PoolKey { key: charge.key, version: charge.local_version(), interval: nanos(charge.sync_interval()) };
    is_leased(charge).then(key)
}

/// How many times the rule's own cost the request takes.
fn units(charge: &Charge<'_>) -> Option<u64> {
    let each = charge.rule.options.cost;
    (each > 0 && charge.cost.is_multiple_of(each)).then(|| charge.cost / each)
}

pub(super) fn one_unit<'a>(charge: &Charge<'a>) -> Charge<'a> {
    Charge { cost: charge.rule.options.cost, ..*charge }
}
