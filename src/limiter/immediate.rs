//! The immediate allow: a request whose counters all exist and admit it now, in this
//! process, and for which nothing is left to do.
//!
//! It is a shortcut of `decide.rs`: it rejects nothing, and what it does not admit is
//! decided there. It takes a third of the instructions (one tier: 669, and 2,066 on the
//! leanest general path that was tried).
//! Invariant: it charges all of a request, or nothing.

use smallvec::SmallVec;

use super::{
    admission::Decided, attempt::AttemptOptions, charged::Charged, current::PolicySnapshot, observe, state::RateLimiter,
};
use crate::{backend::Charge, decision::Decision, observe::RequestResult, policy::ChargedRule, time::Timestamp};

/// A request that may be admitted at once.
#[derive(Clone, Copy)]
pub(super) struct Immediate<'a> {
    pub(super) limiter: &'a RateLimiter,
    pub(super) snapshot: PolicySnapshot<'a>,
    pub(super) now: Timestamp,
    pub(super) options: &'a AttemptOptions,
}

impl Immediate<'_> {
    /// Whether a request that is admitted now is also sent now, and keeps nothing but a
    /// permit: no key cools down. The holder of a permit also keeps to the pace of its
    /// keys.
    #[inline]
    pub(super) fn is_possible(&self) -> bool {
        let Self { limiter, now, options, .. } = *self;
        let cooldowns = &limiter.inner.cooldowns;
        let is_put_off = cooldowns.any(now) || options.acquires() && cooldowns.is_paced();
        limiter.inner.engine.is_some() && !options.keeps_lease && !options.peeks() && !is_put_off
    }

    /// Charges all rules that apply.
    #[inline]
    pub(super) fn allow(self, charges: &[Charge<'_>], decision: &mut Decision) -> Option<Decided> {
        let versions = match charges {
            [charge @ Charge { tiers: [tier], .. }] => {
                let engine = self.limiter.inner.engine.as_ref()?;
                let (status, version) = engine.try_charge_tier(charge, tier, self.now.as_nanos())?;
                if self.options.reads_decision {
                    decision.add_tier(tier.status(status.remaining, status.reset, false));
                }
                SmallVec::from_buf([version])
            }
            _ => self.charge_tiers(charges, decision)?,
        };
        if self.options.reads_decision {
            decision.admit(self.now, 0);
        }
        let rules = charges.iter().map(|charge| charge.rule);
        observe::record(self.snapshot.counters, rules, RequestResult::Allowed, decision, self.now);
        if !self.options.acquires() {
            return Some(Decided::Now);
        }
        let rules = charges.iter().map(ChargedRule::new).collect();
        Some(Decided::Charged(Charged::new(self.limiter, self.snapshot.policy, rules, versions)))
    }

    /// Returns the versions of the states after the charge; `None` if nothing was charged.
    #[inline(never)]
    fn charge_tiers(&self, charges: &[Charge<'_>], decision: &mut Decision) -> Option<SmallVec<[u64; 1]>> {
        let AttemptOptions { reads_decision, .. } = *self.options;
        let (engine, keeps_versions) = (self.limiter.inner.engine.as_ref()?, self.options.acquires());
        let mut versions = SmallVec::new();
        let is_charged = engine.try_charge(charges, self.now.as_nanos(), |tier, (status, version)| {
            if reads_decision {
                decision.add_tier(tier.status(status.remaining, status.reset, false));
            }
            if keeps_versions {
                versions.push(version);
            }
        });
        is_charged.then_some(versions)
    }
}
