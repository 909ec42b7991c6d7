//! The immediate allow: a request whose counters all exist and admit it now, in this
//! process or by units that it has leased.
//!
//! It is a shortcut of `decide.rs`: it rejects nothing, and what it does not admit is
//! decided there. Without it and [`CompiledPolicy::resolve_uniform`], the leanest general
//! path that was tried takes 1,966 instructions for one tier; with it and the general
//! resolver, 1,431.
//!
//! [`CompiledPolicy::resolve_uniform`]: crate::policy::CompiledPolicy::resolve_uniform
//!
//! Invariant: it charges all of a request, or nothing.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    admission::{Decided, Next},
    attempt::{AttemptOptions, Purpose, rules},
    conclude::add_tiers,
    current::PolicySnapshot,
    grant::{Decider, FoundLimits, Grant},
    lease::{Lease, is_kept_by},
    observe,
    permit::Charged,
    state::RateLimiter,
};
use crate::{
    algorithm::{QuotaStatus, Versioned},
    backend::{Charge, ImmediateStates, Receipt},
    decision::Decision,
    observe::RequestResult,
    policy::{CompiledPolicy, Tier},
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

    /// Whether a request that is admitted now is also sent now: no key cools down. By leased
    /// units neither a permit is made, nor is the fallback limiter kept warm.
    #[inline]
    pub(super) fn is_possible(&self) -> bool {
        let Self { limiter, snapshot, now, options } = *self;
        let may_be_leased = || {
            let is_sent = options.purpose == Purpose::Send;
            limiter.inner.leases && is_sent && !snapshot.policy.fails_locally
        };
        let is_here = limiter.inner.engine.is_some() || may_be_leased();
        is_here && !options.peeks() && !limiter.inner.cooldowns.any(now)
    }

    /// Charges all rules that apply. `None` where the request is not admitted at once.
    pub(super) fn allow(&self, charges: &mut [Charge<'_>], decided: &mut Decided<'_>) -> Option<Next> {
        if self.options.needs_lease() || self.snapshot.policy.keeps_receipts() {
            return self.allow_and_keep(charges, decided);
        }
        self.charge(charges, decided.decision, |_| {}).then_some(Next::Done(None))
    }

    /// Does the same where the request may keep something of what it is charged. For that,
    /// counters of this process have to charge it, no key may resume by a schedule, and no
    /// request may be ahead in a queue.
    #[inline(never)]
    fn allow_and_keep(&self, charges: &mut [Charge<'_>], decided: &mut Decided<'_>) -> Option<Next> {
        let Self { limiter, snapshot: PolicySnapshot { policy, .. }, now, options } = *self;
        let inner = &limiter.inner;
        if inner.engine.is_none() || inner.cooldowns.is_paced() || !inner.queues.are_empty() {
            return None;
        }
        let (mut limits, mut charged) = (FoundLimits::new(), SmallVec::<[Versioned; 1]>::new());
        if policy.adapts {
            limits.extend(charges.iter_mut().filter_map(|charge| limiter.adapt(charge, now)));
        }
        if !self.charge(charges, decided.decision, |status| charged.push(status)) {
            return None;
        }
        if options.keeps_lease || charges.iter().any(is_kept_by) {
            let remaining = charged.iter().map(|(status, _)| status.remaining);
            let limits = limiter.found_in_flight(charges, remaining, limits, now);
            let charged = charged.iter().map(|(status, version)| (status.reset, *version));
            let receipt = Receipt::immediate(policy, charges, now, charged);
            let mut lease = Lease::new(limiter, Grant { limits, ..Grant::new(Decider::Backend, receipt) });
            lease.count(Vec::new(), None);
            return Some(Next::Done(Some(Arc::new(lease))));
        }
        if options.acquires() {
            decided.charged = Some(Charged::new(limiter, policy, charges, &charged));
        }
        Some(Next::Done(None))
    }

    /// Charges all of these, and counts the request, if it is admitted at once. Passes what
    /// each tier was left with to `tell`, unless units are leased.
    #[inline]
    fn charge(&self, charges: &[Charge<'_>], decision: &mut Decision, mut tell: impl FnMut(Versioned)) -> bool {
        let Self { limiter, snapshot, now, options } = *self;
        let mut add = |tier: &Tier, status: Versioned| {
            if options.reads_decision {
                let QuotaStatus { remaining, reset } = status.0;
                decision.add_tier(tier.status(remaining, reset, false));
            }
            tell(status);
        };
        let is_charged = match &limiter.inner.engine {
            Some(engine) => engine.0.charge_now(charges, now, &mut add),
            None => self.charge_leased(charges, decision),
        };
        if !is_charged {
            return false;
        }
        if options.reads_decision {
            decision.admit(now, 0);
        }
        observe::record(snapshot.counters, rules(charges), RequestResult::Allowed, decision, now);
        limiter.count_units(snapshot.counters, charges, decision, now);
        true
    }

    /// Charges all rules that apply by units that the backend has leased.
    #[inline(never)]
    fn charge_leased(&self, charges: &[Charge<'_>], decision: &mut Decision) -> bool {
        let (backend, mut states) = (self.limiter.inner.backend.extension(), ImmediateStates::default());
        let is_charged = backend.is_some_and(|backend| backend.charge_leased(charges, self.now, &mut states));
        if is_charged && self.options.reads_decision {
            add_tiers(decision, charges, &states.0);
        }
        is_charged
    }
}
