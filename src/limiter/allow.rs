//! The way of a request that is admitted at once: resolve it to charges, and
//! charge them where their counters already exist. Everything else (rejections,
//! waits, stores) goes through [`RateLimiter::start`].

use std::{iter, time::Duration};

use super::{
    admission::Admission,
    attempt::{Attempt, Options, rules},
    current::PolicySnapshot,
    observe,
    state::{Backing, RateLimiter},
};
use crate::{
    backend::{Charge, Local},
    decision::{Decision, RateLimitedKind},
    descriptor::Descriptor,
    observe::RequestResult,
    policy::{CompiledRule, Resolved, Target},
    time::Timestamp,
};

/// What the caller of a service wants of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerNeeds {
    /// The decision itself; else it may be left as it is if the request goes.
    pub(crate) decision: bool,
    /// To have what was charged, to tell of it what the provider says.
    pub(crate) hold: bool,
}

impl RateLimiter {
    /// Decides, into a decision that says that nothing is limited.
    #[inline]
    pub(crate) fn decide(
        &self,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        self.inner.current.with(|view| {
            self.decide_under(
                view.snapshot(),
                descriptor,
                max_wait,
                CallerNeeds { decision: true, hold: false },
                decision,
            )
        })
    }

    /// The same for a request that is yet to be described: by its tenant
    /// alone, where `describe` is told that the policy asks for no more. Also
    /// says whether whoever handles the request expects to be able to settle
    /// it, though nothing of it is held that could be.
    #[inline]
    pub(crate) fn decide_on<'d>(
        &self,
        describe: impl FnOnce(bool) -> Descriptor<'d>,
        max_wait: Duration,
        wants: CallerNeeds,
        decision: &mut Decision,
    ) -> (Option<Box<Admission>>, bool) {
        if wants.hold {
            self.subscribe_cooldowns();
        }
        self.inner.current.with(|view| {
            let snapshot = view.snapshot();
            let descriptor = describe(snapshot.policy.is_uniform());
            let decided = self.decide_under(snapshot, &descriptor, max_wait, wants, decision);
            let settled = || decided.as_ref().is_some_and(|admission| admission.is_settled_by_handler());
            let settles = snapshot.policy.settles && !settled() && snapshot.policy.lets_settle(&descriptor);
            (decided, settles)
        })
    }

    #[inline]
    fn decide_under(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        wants: CallerNeeds,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        if descriptor.exempt {
            return None;
        }
        let now = self.inner.clock.now();
        if let Backing::Local(local) = &self.inner.backend
            && !wants.hold
            && !self.inner.cooldowns.any(now)
            && let Some(target) = snapshot.policy.resolve_uniform(descriptor)
        {
            let writes_decision = wants.decision || observe::LOOKS;
            let allow = ImmediateAllow { snapshot, now, waited: 0, event: RequestResult::Allowed, writes_decision };
            if allow.attempt(local, iter::once(target), &snapshot.policy.rules, decision) {
                return None;
            }
        }
        let options = Options { feedback: wants.hold, ..Options::new(max_wait) };
        self.decide_all(snapshot, descriptor, now, options, decision)
    }

    /// The same for a caller that acquires.
    pub(super) fn claim(
        &self,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        if descriptor.exempt {
            return None;
        }
        self.inner.current.with(|view| {
            let options = Options { acquires: true, ..Options::new(max_wait) };
            self.decide_all(view.snapshot(), descriptor, self.inner.clock.now(), options, decision)
        })
    }

    fn decide_all(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        options: Options,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        let policy = &**snapshot.policy;
        let max_wait = match options.acquires || policy.lets_wait {
            true => options.max_wait.min(descriptor.longest_wait()),
            false => Duration::ZERO,
        };
        let options = Options { max_wait, ..options };
        let path = policy.spell(descriptor);
        let mut resolved = Resolved::default();
        policy.resolve(descriptor, &path, &mut resolved);
        let Resolved { enforced, shadows, misses_tenant } = &mut resolved;
        if let Some(rule) = *misses_tenant {
            return missing_tenant(snapshot, rule, now, decision);
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
            && let Backing::Local(local) = &self.inner.backend
        {
            let allow =
                ImmediateAllow { snapshot, now, waited: 0, event: RequestResult::Allowed, writes_decision: true };
            if allow.attempt(local, enforced.iter().map(Charge::target), rules(enforced), decision) {
                return None;
            }
        }
        self.start(Attempt::new(snapshot, (enforced, shadows), now, options), decision)
    }
}

/// How a request is admitted if all its counters exist and admit it now.
#[derive(Clone, Copy)]
pub(super) struct ImmediateAllow<'s> {
    pub(super) snapshot: PolicySnapshot<'s>,
    pub(super) now: Timestamp,
    /// Nanoseconds that the request has waited so far.
    pub(super) waited: u64,
    pub(super) event: RequestResult,
    /// Whether the decision is read.
    pub(super) writes_decision: bool,
}

impl ImmediateAllow<'_> {
    /// Charges all targets and admits the request; or changes nothing.
    #[inline]
    pub(super) fn attempt<'t>(
        self,
        engine: &Local,
        targets: impl ExactSizeIterator<Item = Target<'t>> + Clone,
        rules: impl IntoIterator<Item = &'t CompiledRule> + Clone,
        decision: &mut Decision,
    ) -> bool {
        let charged = engine.try_charge(targets, self.now.as_nanos(), |tier, status| {
            if self.writes_decision {
                decision.add_tier(tier.status(status.remaining, status.reset, false));
            }
        });
        if charged {
            if self.writes_decision {
                decision.admit(self.now, self.waited);
            }
            observe::record(self.snapshot.counters, rules, self.event, decision, self.now);
        }
        charged
    }
}

#[cold]
fn missing_tenant(
    snapshot: PolicySnapshot<'_>,
    rule: &CompiledRule,
    now: Timestamp,
    decision: &mut Decision,
) -> Option<Box<Admission>> {
    decision.reject(RateLimitedKind::MissingTenant, now, None);
    observe::record(snapshot.counters, Some(rule), RequestResult::Rejected, decision, now);
    None
}
