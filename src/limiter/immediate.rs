//! The immediate allow: a request whose counters all exist and admit it now, in this
//! process or by units that it has leased, and for which nothing is left to do.
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

use super::{
    admission::Decided,
    attempt::{AttemptOptions, Purpose, rules},
    conclude::add_tiers,
    current::PolicySnapshot,
    observe,
    permit::Charged,
    state::RateLimiter,
};
use crate::{
    backend::{Charge, ImmediateStates},
    observe::RequestResult,
    policy::CompiledPolicy,
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

    /// Whether a request that is admitted now is also sent now, and keeps nothing but a
    /// permit: no key cools down. The holder of a permit also keeps to the resume
    /// schedules of its keys. By leased units neither a permit is made, nor is the fallback
    /// limiter kept warm.
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
        is_here && !options.keeps_lease && !options.peeks() && !is_put_off
    }

    /// Charges all rules that apply. Returns whether the request is admitted.
    #[inline]
    pub(super) fn allow(&self, charges: &[Charge<'_>], decided: &mut Decided<'_>) -> bool {
        let Self { limiter, snapshot, now, options } = *self;
        let mut states = ImmediateStates::default();
        let is_charged = match &limiter.inner.engine {
            Some(engine) => engine.0.charge_now(charges, now, &mut states),
            None => self.charge_leased(charges, &mut states),
        };
        if !is_charged {
            return false;
        }
        let decision = &mut *decided.decision;
        if options.reads_decision {
            add_tiers(decision, charges, &states.0);
            decision.admit(now, 0);
        }
        observe::record(snapshot.counters, rules(charges), RequestResult::Allowed, decision, now);
        limiter.count_units(snapshot.counters, charges, decision, now);
        if options.acquires() {
            decided.charged = Some(Charged::new(limiter, snapshot.policy, charges, &states.0));
        }
        true
    }

    /// Charges all rules that apply by units that the backend has leased.
    #[inline(never)]
    fn charge_leased(&self, charges: &[Charge<'_>], states: &mut ImmediateStates) -> bool {
        let backend = self.limiter.inner.backend.extension();
        backend.is_some_and(|backend| backend.charge_leased(charges, self.now, states))
    }
}
