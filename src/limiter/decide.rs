//! Entry points: they resolve a described request to its charges, try the
//! immediate allow, and otherwise start an attempt. They decide nothing.

use std::{iter, time::Duration};

use super::{
    admission::Admission,
    attempt::{Attempt, AttemptOptions, rules},
    current::PolicySnapshot,
    local::ImmediateAllow,
    observe,
    state::{Backing, RateLimiter},
};
use crate::{
    backend::Charge,
    decision::{Decision, RateLimitedKind},
    descriptor::Descriptor,
    observe::RequestResult,
    policy::{CompiledRule, Resolved},
    time::Timestamp,
};

/// What a caller reads of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerNeeds {
    /// The decision of an admitted request. Otherwise it may be left unwritten.
    pub(crate) decision: bool,
    /// A lease, to report upstream feedback to.
    pub(crate) lease: bool,
}

impl RateLimiter {
    /// Decides a request and fills in `decision`, which must be
    /// [`Decision::unlimited`].
    #[inline]
    pub(crate) fn decide(
        &self,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        let needs = CallerNeeds { decision: true, lease: false };
        self.inner.current.with(|snapshot| self.decide_under(snapshot, descriptor, max_wait, needs, decision))
    }

    /// Decides the request that `describe` describes. Its argument says whether
    /// the tenant suffices. The boolean that is returned says whether the
    /// request needs an empty charge handle: a rule lets its handler settle, but
    /// no lease of the request can be settled.
    #[inline]
    pub(crate) fn decide_on<'d>(
        &self,
        describe: impl FnOnce(bool) -> Descriptor<'d>,
        max_wait: Duration,
        needs: CallerNeeds,
        decision: &mut Decision,
    ) -> (Option<Box<Admission>>, bool) {
        if needs.lease {
            self.subscribe_cooldowns();
        }
        self.inner.current.with(|snapshot| {
            let descriptor = describe(snapshot.policy.is_uniform());
            let admission = self.decide_under(snapshot, &descriptor, max_wait, needs, decision);
            let is_settled = || admission.as_ref().is_some_and(|admission| admission.is_settled_by_handler());
            let settles = snapshot.policy.settles && !is_settled() && snapshot.policy.lets_settle(&descriptor);
            (admission, settles)
        })
    }

    #[inline]
    fn decide_under(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        needs: CallerNeeds,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        if descriptor.exempt {
            return None;
        }
        let now = self.inner.clock.now();
        if let Backing::InProcess(engine) = &self.inner.backend
            && !needs.lease
            && !self.inner.cooldowns.any(now)
            && let Some(target) = snapshot.policy.resolve_uniform(descriptor)
        {
            let writes_decision = needs.decision || observe::LOOKS;
            let allow = ImmediateAllow { snapshot, now, waited: 0, result: RequestResult::Allowed, writes_decision };
            if allow.attempt(engine, iter::once(target), &snapshot.policy.rules, decision) {
                return None;
            }
        }
        let options = AttemptOptions { max_wait, feedback: needs.lease, ..AttemptOptions::default() };
        self.decide_all(snapshot, descriptor, now, options, decision)
    }

    /// Decides a request of [`acquire`](Self::acquire). It may wait where a rule
    /// sets no bound, and keeps a lease.
    pub(super) fn claim(
        &self,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        if descriptor.exempt {
            return None;
        }
        let options = AttemptOptions { max_wait, acquires: true, ..AttemptOptions::default() };
        let now = self.inner.clock.now();
        self.inner.current.with(|snapshot| self.decide_all(snapshot, descriptor, now, options, decision))
    }

    fn decide_all(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        options: AttemptOptions,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        let policy = &**snapshot.policy;
        let max_wait = match options.acquires || policy.lets_wait {
            true => options.max_wait.min(descriptor.longest_wait()),
            false => Duration::ZERO,
        };
        let options = AttemptOptions { max_wait, ..options };
        let path = policy.spell(descriptor);
        let mut resolved = Resolved::default();
        policy.resolve(descriptor, &path, &mut resolved);
        let Resolved { enforced, shadows, misses_tenant } = &mut resolved;
        if let Some(rule) = *misses_tenant {
            let kind = match descriptor.ambiguous_tenant {
                true => RateLimitedKind::AmbiguousTenant,
                false => RateLimitedKind::MissingTenant,
            };
            return reject_unidentified(snapshot, rule, kind, now, decision);
        }
        if policy.adapts {
            enforced.iter_mut().chain(&mut *shadows).for_each(|charge| *charge = self.at_current_rate(*charge, now));
        }
        if options.acquires {
            enforced.iter_mut().chain(&mut *shadows).for_each(|charge| *charge = charge.bounded_by_caller());
        }
        if enforced.is_empty() && shadows.is_empty() {
            return None;
        }
        if shadows.is_empty()
            && !options.keeps_lease()
            && !policy.keeps_receipts
            && !self.inner.cooldowns.any(now)
            && let Backing::InProcess(engine) = &self.inner.backend
        {
            let allow =
                ImmediateAllow { snapshot, now, waited: 0, result: RequestResult::Allowed, writes_decision: true };
            if allow.attempt(engine, enforced.iter().map(Charge::target), rules(enforced), decision) {
                return None;
            }
        }
        self.start(Attempt::new(snapshot, (enforced, shadows), now, options), decision)
    }
}

#[cold]
fn reject_unidentified(
    snapshot: PolicySnapshot<'_>,
    rule: &CompiledRule,
    kind: RateLimitedKind,
    now: Timestamp,
    decision: &mut Decision,
) -> Option<Box<Admission>> {
    decision.reject(kind, now, None);
    observe::record(snapshot.counters, Some(rule), RequestResult::Rejected, decision, now);
    None
}
