//! Entry points: they resolve a described request to its charges, try the
//! immediate allow, and otherwise start an attempt. They decide nothing.

use std::{slice, time::Duration};

use super::{
    admission::Admission,
    attempt::{Attempt, AttemptOptions, rules},
    charged::{Keep, Permits},
    current::PolicySnapshot,
    local::{ImmediateAllow, reject_at_once},
    observe,
    state::{Backing, RateLimiter},
};
use crate::{
    decision::{Decision, RateLimitedKind},
    descriptor::{Descriptor, TenantRef},
    observe::RequestResult,
    policy::{CompiledRule, Resolved, Target, charge::LocalCharge},
    time::Timestamp,
};

/// What a caller reads of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerNeeds {
    /// The decision of an admitted request. Otherwise it may be left unwritten.
    pub(crate) decision: bool,
    /// A lease, to report upstream feedback to, or to give the charge back by.
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
        self.inner.current.with(|snapshot| self.decide_under(snapshot, descriptor, max_wait, needs, &mut (), decision))
    }

    /// Decides the request that `describe` describes. Its argument says whether
    /// the tenant suffices. The boolean that is returned says whether the
    /// request needs an empty charge handle: a rule lets its handler settle, but
    /// no lease of the request can be settled.
    #[inline]
    pub(crate) fn decide_on<'d>(
        &self,
        describe: impl FnOnce(bool, &mut Descriptor<'d>),
        max_wait: Duration,
        needs: CallerNeeds,
        decision: &mut Decision,
    ) -> (Option<Box<Admission>>, bool) {
        self.inner.current.with(|snapshot| {
            let mut descriptor = Descriptor::new("/");
            describe(snapshot.policy.is_uniform(), &mut descriptor);
            let admission = self.decide_under(snapshot, &descriptor, max_wait, needs, &mut (), decision);
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
        keep: &mut impl Keep,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        if descriptor.exempt {
            return None;
        }
        if self.inner.first_requests.are_open() {
            self.inner.first_requests.look(snapshot.policy, descriptor);
        }
        let now = self.inner.clock.now();
        let (acquires, keeps_lease) = (keep.permits().is_some(), needs.lease);
        let options = || AttemptOptions { max_wait, acquires, keeps_lease, ..AttemptOptions::default() };
        if let Backing::InProcess(engine) = &self.inner.backend
            && !keeps_lease
            && self.sends_at_once(acquires, now)
            && let Some(target) = snapshot.policy.resolve_uniform(descriptor)
        {
            let writes_decision = needs.decision || observe::LOOKS;
            let allow = ImmediateAllow::on_arrival(snapshot, now, writes_decision);
            let targets = slice::from_ref(&target);
            if allow.attempt((self, engine), targets, &snapshot.policy.rules, keep, decision) {
                return None;
            }
            return self.decide_uniform(snapshot, (descriptor, &target), now, options(), decision);
        }
        if self.inner.at_once.is_some() && !acquires && self.admit_at_once(snapshot, descriptor, now, needs, decision) {
            return None;
        }
        self.decide_all(snapshot, descriptor, now, options(), keep.permits(), decision)
    }

    /// Whether a request that is admitted now is also sent now: no key cools down. The
    /// holder of a permit also keeps to the pace of its keys.
    #[inline]
    fn sends_at_once(&self, acquires: bool, now: Timestamp) -> bool {
        let cooldowns = &self.inner.cooldowns;
        !(cooldowns.any(now) || acquires && cooldowns.is_paced())
    }

    /// Kept out of line: inlining it makes the way of a backend in this process slower.
    #[inline(never)]
    fn admit_at_once(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        needs: CallerNeeds,
        decision: &mut Decision,
    ) -> bool {
        if let Some(at_once) = &self.inner.at_once
            && !needs.lease
            && self.needs_only_a_charge(snapshot, now)
            && let Some(target) = snapshot.policy.resolve_uniform(descriptor)
            && let [rule] = &snapshot.policy.rules[..]
        {
            let writes_decision = needs.decision || observe::LOOKS;
            let allow = ImmediateAllow::on_arrival(snapshot, now, writes_decision);
            return allow.attempt_at_once(at_once, &LocalCharge::uniform(target, rule), decision);
        }
        false
    }

    /// Whether nothing is left to do for a request that a backend with a store admits
    /// at once.
    #[inline]
    fn needs_only_a_charge(&self, snapshot: PolicySnapshot<'_>, now: Timestamp) -> bool {
        let policy = &**snapshot.policy;
        // The fallback limiter counts what the backend admits.
        !policy.fails_locally && !policy.adapts && !policy.keeps_receipts() && !self.inner.cooldowns.any(now)
    }

    /// Decides a request of [`acquire`](Self::acquire). It may wait where a rule
    /// sets no bound. Its permit keeps what was charged at once, or else a lease.
    #[inline]
    pub(super) fn claim(
        &self,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        permits: &mut Permits,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        let needs = CallerNeeds { decision: true, lease: false };
        let decide =
            |snapshot: PolicySnapshot<'_>| self.decide_under(snapshot, descriptor, max_wait, needs, permits, decision);
        self.inner.current.with(decide)
    }

    /// Decides a request that its tenant alone says all of, and that was not admitted at
    /// once. Kept out of line: inlining it makes the immediate allow slower.
    #[inline(never)]
    fn decide_uniform(
        &self,
        snapshot: PolicySnapshot<'_>,
        (descriptor, target): (&Descriptor<'_>, &Target<'_>),
        now: Timestamp,
        options: AttemptOptions,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        let options = options.within(snapshot.policy, descriptor);
        let may_wait = !options.max_wait.is_zero();
        if let Backing::InProcess(engine) = &self.inner.backend
            && !may_wait
            && reject_at_once(self, engine, (snapshot, now), target, decision)
        {
            return None;
        }
        // Only for a request that may wait, the tenant is read again.
        let tenant = descriptor.tenant.as_ref().filter(|_| may_wait).map(TenantRef::id);
        let charge = snapshot.policy.uniform_charge(target, tenant);
        let charge = if options.acquires { charge.bounded_by_caller() } else { charge };
        self.start(Attempt::new(snapshot, (slice::from_ref(&charge), &[]), now, options), decision)
    }

    /// Kept out of line: inlining it makes the way of a uniform policy slower.
    #[inline(never)]
    fn decide_all(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        options: AttemptOptions,
        mut permits: Option<&mut Permits>,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        let policy = &**snapshot.policy;
        let prepared = policy.prepare(descriptor);
        let mut resolved = Resolved::default();
        policy.resolve(descriptor, &prepared, &mut resolved);
        let Resolved { enforced, shadows, unidentified } = &mut resolved;
        if let Some((rule, kind)) = *unidentified {
            if let Some(error) = prepared.invalid_tiers(rule) {
                observe::invalid_tiers(rule, error, now);
            }
            return reject_unidentified(snapshot, rule, kind, now, decision);
        }
        if enforced.is_empty() && shadows.is_empty() {
            return None;
        }
        if shadows.is_empty()
            && !options.keeps_lease
            && !policy.keeps_receipts()
            && self.sends_at_once(options.acquires, now)
            && let Backing::InProcess(engine) = &self.inner.backend
        {
            let allow = ImmediateAllow::on_arrival(snapshot, now, true);
            if allow.attempt((self, engine), enforced, rules(enforced), &mut permits, decision) {
                return None;
            }
        }
        self.decide_charges(snapshot, descriptor, &mut resolved, now, options, decision)
    }

    /// Decides a request that a backend in this process did not admit at once. Kept out of
    /// line: inlining it makes the immediate allow slower.
    #[inline(never)]
    fn decide_charges<'a>(
        &self,
        snapshot: PolicySnapshot<'a>,
        descriptor: &Descriptor<'_>,
        Resolved { enforced, shadows, .. }: &mut Resolved<'a>,
        now: Timestamp,
        options: AttemptOptions,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        let policy = &**snapshot.policy;
        let endpoint_until = self.endpoint_cooling_until(descriptor, now);
        let options = AttemptOptions { endpoint_until, ..options.within(policy, descriptor) };
        if policy.adapts {
            enforced.iter_mut().chain(&mut *shadows).for_each(|charge| *charge = self.at_current_rate(*charge, now));
        }
        if options.acquires {
            enforced.iter_mut().chain(&mut *shadows).for_each(|charge| *charge = charge.bounded_by_caller());
        }
        if let Some(at_once) = &self.inner.at_once
            && let [charge] = &enforced[..]
            && shadows.is_empty()
            && !options.needs_lease()
            && self.needs_only_a_charge(snapshot, now)
        {
            let allow = ImmediateAllow::on_arrival(snapshot, now, true);
            if allow.attempt_at_once(at_once, &charge.local(), decision) {
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
