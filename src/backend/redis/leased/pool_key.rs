//! Which pool a request of leased rules takes its units from, and how many. It takes
//! none.
//!
//! Invariant: a unit of a pool is one charge of every rule of the request, at the
//! rule's own cost.

use std::time::Duration;

use super::pools::PoolKey;
use crate::{
    backend::{Charge, Request, redis::plan::Kind},
    fingerprint::Fingerprint,
    policy::{CompiledRule, Tier},
    time::nanos,
};

/// The pool of a request, and how many of its units the request takes. `None`
/// where the charges do not all take the same number of units.
#[inline]
pub(crate) fn pool_of(request: &Request<'_>) -> Option<(PoolKey, u64)> {
    match request.charges {
        [charge] => Some((pool_key(charge), units(charge)?)),
        charges => pool_of_many(charges),
    }
}

/// Whether a pool may decide the request. Only the store decides what a smooth rule
/// may delay, and several units in flight at once: each is released on its own.
#[inline]
pub(crate) fn fits_pool(request: &Request<'_>, units: u64) -> bool {
    let charges = request.charges;
    let is_smooth = request.max_wait > Duration::ZERO && charges.iter().any(Charge::is_smooth);
    !is_smooth && (units <= 1 || !holds_in_flight(charges))
}

/// A request that may wait is decided by the store: nothing is reserved in the future
/// on units of this process.
pub(crate) fn may_wait(request: &Request<'_>) -> bool {
    request.max_wait > Duration::ZERO && request.charges.iter().any(|charge| charge.max_wait > 0)
}

/// Whether a request holds units while it is in flight.
pub(crate) fn holds_in_flight(charges: &[Charge<'_>]) -> bool {
    charges.iter().any(|charge| charge.tiers().iter().any(Tier::is_in_flight))
}

/// Whether the store records what it leases for a request: all units end with a window.
pub(crate) fn is_recorded(charges: &[Charge<'_>]) -> bool {
    charges.iter().all(|charge| charge.tiers().iter().all(|tier| Kind::of(tier).is_window()))
}

fn pool_key(charge: &Charge<'_>) -> PoolKey {
    PoolKey { key: charge.key, version: charge.local_version(), interval: nanos(charge.sync_interval()) }
}

/// How many times the rule's own cost the request takes.
fn units(charge: &Charge<'_>) -> Option<u64> {
    units_of(charge.cost, charge.rule)
}

#[inline]
pub(crate) fn units_of(cost: u64, rule: &CompiledRule) -> Option<u64> {
    match rule.options.cost {
        1 => Some(cost),
        0 => None,
        each => cost.is_multiple_of(each).then(|| cost / each),
    }
}

pub(crate) fn one_unit<'a>(charge: &Charge<'a>) -> Charge<'a> {
    Charge { cost: charge.rule.options.cost, ..*charge }
}

#[cold]
fn pool_of_many(charges: &[Charge<'_>]) -> Option<(PoolKey, u64)> {
    let (first, rest) = charges.split_first()?;
    let (mut pool, units_of_first) = (pool_key(first), units(first)?);
    let mut key = pool.key.to_u128();
    for charge in rest {
        let other = pool_key(charge);
        key = key.rotate_left(9) ^ other.key.to_u128();
        pool.version = pool.version.rotate_left(9) ^ other.version;
        pool.interval = pool.interval.min(other.interval);
        if units(charge)? != units_of_first {
            return None;
        }
    }
    Some((PoolKey { key: Fingerprint::from_u128(key), ..pool }, units_of_first))
}
