//! What the tests of pools share: requests of one tenant, by one rule.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use super::plan::PlanContext;
use crate::{
    backend::{Charge, Request},
    descriptor::Descriptor,
    policy::{CompiledPolicy, Consistency, Policy, Resolved, Rule},
    quota::Quota,
    time::Timestamp,
};

/// Nanoseconds.
pub(super) const MILLISECOND: u64 = 1_000_000;

/// A rule of this level for all requests.
pub(super) fn policy(quota: Quota, level: Consistency, interval: Duration) -> Arc<CompiledPolicy> {
    let rule = Rule::new("all").tier(quota).consistency(level).sync_interval(interval);
    Arc::new(CompiledPolicy::new(Policy::new().rule(rule)).unwrap())
}

/// One server, which decides by its own clock or by the limiter's.
pub(super) fn context(uses_limiter_time: bool) -> PlanContext {
    PlanContext {
        prefix: "rl".into(),
        lease: Duration::from_secs(30),
        longest_wait: AtomicU64::new(0),
        uses_limiter_time,
        is_single_slot: true,
    }
}

/// Runs `with` on a request of `cost` units at `now` that does not wait, and on its
/// charge.
pub(super) fn request<R>(
    policy: &CompiledPolicy,
    cost_at: (u64, u64),
    with: impl FnOnce(&Request<'_>, &Charge<'_>) -> R,
) -> R {
    request_of("acme", policy, cost_at, with)
}

/// The same for another tenant.
pub(super) fn request_of<R>(
    tenant: &str,
    policy: &CompiledPolicy,
    (cost, now): (u64, u64),
    with: impl FnOnce(&Request<'_>, &Charge<'_>) -> R,
) -> R {
    let descriptor = Descriptor::new("/").tenant(tenant).cost(cost);
    policy.resolve(&descriptor, |Resolved { enforced: charges, .. }| {
        with(&Request::new(charges, Timestamp::from_nanos(now), Duration::ZERO), &charges[0])
    })
}
