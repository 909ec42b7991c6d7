//! The immediate allow: a request whose counters all exist and admit it now, in this
//! process or by units that it has leased.
//!
//! It is a shortcut of `decide.rs`: it rejects nothing, and what it does not admit is
//! decided there. When both were measured, one tier took 1,966 instructions without it
//! and [`CompiledPolicy::uniform`], 1,431 with the general resolver, and 870 with both.
//!
//! [`CompiledPolicy::uniform`]: crate::policy::CompiledPolicy::uniform
//!
//! Invariant: it charges all of a request, or nothing.

use std::{slice, sync::Arc};

use super::{
    adaptive_limit::limits::FoundLimits,
    admission::{Decided, Next},
    attempt::{AttemptOptions, Purpose, rules},
    conclude::add_tiers,
    current::PolicySnapshot,
    lease::{Lease, is_kept_by},
    observe,
    permit::Charged,
    state::{Decider, Grant, RateLimiter},
};
use crate::{
    algorithm::QuotaStatus,
    backend::{Charge, ImmediateStates, Receipt, TierState},
    descriptor::Descriptor,
    fingerprint::Fingerprint,
    observe::RequestResult,
    policy::{CompiledPolicy, CompiledRule},
    time::Timestamp,
};

/// A request that may be admitted at once.
#[derive(Clone, Copy)]
pub(super) struct Immediate<'a> {
    pub(super) limiter: &'a RateLimiter,
    pub(super) snapshot: PolicySnapshot<'a>,
    pub(super) now: Timestamp,
    pub(super) options: &'a AttemptOptions,
}

impl<'a> Immediate<'a> {
    /// Under another policy, if there is one.
    pub(super) fn under(self, policy: Option<&'a Arc<CompiledPolicy>>) -> Self {
        let policy = policy.unwrap_or(self.snapshot.policy);
        Self { snapshot: PolicySnapshot { policy, ..self.snapshot }, ..self }
    }

    /// Whether a request that is admitted now is also sent now: no key cools down. The holder
    /// of a permit also keeps to the resume schedules of its keys. By leased units neither a
    /// permit is made, nor is the fallback limiter kept warm.
    #[inline]
    pub(super) fn is_possible(&self) -> bool {
        let Self { limiter, snapshot, now, options } = *self;
        let cooldowns = &limiter.inner.cooldowns;
        let is_put_off = cooldowns.any(now) || options.acquires() && cooldowns.is_paced();
        let may_be_leased = || {
            let is_sent = options.purpose == Purpose::Send;
            limiter.inner.leases && is_sent && !snapshot.policy.fails_locally
        };
        let is_here = limiter.inner.engine.is_some() || may_be_leased();
        is_here && !options.peeks() && !is_put_off
    }

    /// Charges the rule of a [uniform](CompiledPolicy::uniform) policy. `None` where the
    /// request is not admitted at once. A tier of which nothing is kept is charged without a
    /// [`Charge`], which is large: 154 of the 804 instructions of a decision.
    #[inline]
    pub(super) fn allow_uniform(
        &self,
        rule: &CompiledRule,
        key: Fingerprint,
        descriptor: &Descriptor<'_>,
        decided: &mut Decided<'_>,
    ) -> Option<Next> {
        let Self { limiter: RateLimiter { inner }, snapshot, now, options } = *self;
        let is_kept = self.may_keep() || options.acquires() || inner.top.is_some();
        let (Some(engine), [tier], false) = (&inner.engine, rule.uniform_tiers(), is_kept) else {
            return self.allow_charge(rule, key, descriptor, decided);
        };
        let (QuotaStatus { remaining, reset }, _) = engine.0.charge_tier(tier, key, rule.cost_of(descriptor), now)?;
        let decision = &mut *decided.decision;
        if options.reads_decision {
            decision.add_tier(tier.status(remaining, reset, false));
            decision.admit(now, 0);
        }
        let priority = descriptor.stated_priority().unwrap_or_default();
        observe::record(snapshot.counters, [(rule, priority)], RequestResult::Allowed, decision, now);
        Some(Next::Done(None))
    }

    #[inline(never)]
    fn allow_charge(
        &self,
        rule: &CompiledRule,
        key: Fingerprint,
        descriptor: &Descriptor<'_>,
        decided: &mut Decided<'_>,
    ) -> Option<Next> {
        self.allow(slice::from_mut(&mut rule.uniform_charge(key, descriptor)), decided)
    }

    /// Whether the request may keep a lease.
    fn may_keep(&self) -> bool {
        self.options.keeps_lease || self.snapshot.policy.keeps_receipts()
    }

    /// Charges all rules that apply. `None` where the request is not admitted at once.
    #[inline]
    pub(super) fn allow(&self, charges: &mut [Charge<'_>], decided: &mut Decided<'_>) -> Option<Next> {
        let Self { limiter, snapshot, now, options } = *self;
        let may_keep = self.may_keep();
        let limits = if may_keep { Some(self.limits(charges)?) } else { None };
        let mut states = ImmediateStates::default();
        let is_charged = match &limiter.inner.engine {
            Some(engine) => engine.0.charge_now(charges, now, &mut states),
            None => self.charge_leased(charges, &mut states),
        };
        if !is_charged {
            return None;
        }
        // First, so that what is charged has an owner if a report panics.
        let lease = limits.and_then(|limits| self.lease(charges, &states.0, limits));
        let decision = &mut *decided.decision;
        if options.reads_decision {
            add_tiers(decision, charges, &states.0);
            decision.admit(now, 0);
        }
        observe::record(snapshot.counters, rules(charges), RequestResult::Allowed, decision, now);
        observe::count_units(limiter.inner.top.as_deref(), snapshot.counters, charges, decision, now);
        if lease.is_none() && options.acquires() {
            decided.charged = Some(Charged::new(limiter, snapshot.policy, charges, &states.0));
        }
        Some(Next::Done(lease))
    }

    /// The limits that were found for these charges, which may keep a lease: to look them up
    /// again took 157 instructions. `None` where they may not be charged here: for a lease,
    /// counters of this process have to count the request, no key may resume by a schedule, and
    /// no request may be ahead in a queue.
    #[inline(never)]
    fn limits(&self, charges: &mut [Charge<'_>]) -> Option<FoundLimits> {
        let inner = &self.limiter.inner;
        if inner.engine.is_none() || inner.cooldowns.is_paced() || !inner.queues.are_empty() {
            return None;
        }
        if !self.snapshot.policy.adapts {
            return Some(FoundLimits::new());
        }
        Some(charges.iter_mut().filter_map(|charge| self.limiter.adapt(charge, self.now)).collect())
    }

    /// The lease that a request keeps of these charges.
    #[inline(never)]
    fn lease(&self, charges: &[Charge<'_>], states: &[TierState], limits: FoundLimits) -> Option<Arc<Lease>> {
        let Self { limiter, snapshot: PolicySnapshot { policy, .. }, now, options } = *self;
        if !options.keeps_lease && !charges.iter().any(is_kept_by) {
            return None;
        }
        let receipt = Receipt::immediate(policy, charges, now, states.iter().map(|state| (state.reset, state.mark)));
        let limits = limiter.found_in_flight(charges, states, limits, now);
        let mut lease = Lease::new(limiter, Grant { limits, ..Grant::new(Decider::Backend, receipt) });
        lease.count();
        Some(Arc::new(lease))
    }

    /// Charges all rules that apply by units that the backend has leased.
    #[inline(never)]
    fn charge_leased(&self, charges: &[Charge<'_>], states: &mut ImmediateStates) -> bool {
        let backend = self.limiter.inner.backend.extension();
        backend.is_some_and(|backend| backend.charge_leased(charges, self.now, states))
    }
}
