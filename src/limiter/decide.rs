//! Where every request enters: resolves it to its charges, and has them decided: at once by the
//! shortcut [`Immediate`], or by an [`Attempt`]. Never awaits, and keeps nothing of the request.
//!
//! The shortcut admits a request whose counters all exist and admit it now, in this process or
//! by units that it has leased. It rejects nothing: what it does not admit is decided by an
//! attempt. When both were measured, one tier took 1,966 instructions without it and
//! [`CompiledPolicy::uniform`], 1,431 with the general resolver, and 870 with both.
//!
//! Invariants: every new request is decided here, for every caller. The shortcut charges all
//! of a request, or nothing.

use std::{slice, sync::Arc, time::Duration};

use http::Extensions;

use super::{
    adaptive_limit::limits::FoundLimits,
    admission::{Decided, Next},
    attempt::{Attempt, AttemptOptions, Purpose, rules},
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
    decision::{Decision, RateLimitedKind},
    descriptor::{Descriptor, TenantRef},
    fingerprint::Fingerprint,
    observe::{RequestResult, count_shed},
    overload::Overload,
    policy::{CompiledRule, Resolved, Unidentified, UnusableTiers},
    time::{Timestamp, nanos},
};

/// What a caller reads of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerNeeds {
    /// The decision of an admitted request. Otherwise it may be left unwritten.
    pub(crate) decision: bool,
    /// A lease, to report upstream feedback to, or to give the charge back by.
    pub(crate) lease: bool,
}

/// In the extensions of a request that a layer of this limiter, by its id, has not shed: layers
/// further in do not look again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedOverload(u64);

impl RateLimiter {
    /// What a layer adds to the extensions of a request that it has admitted.
    pub(crate) fn passed_overload(&self) -> Option<PassedOverload> {
        self.inner.shedder.get().map(|_| PassedOverload(self.id()))
    }

    /// Decides a request and fills in `decision`, which must be
    /// [`Decision::unlimited`].
    pub(crate) fn decide(&self, descriptor: &Descriptor<'_>, max_wait: Duration, decision: &mut Decision) -> Next {
        self.decide_for(Purpose::Send, descriptor, max_wait, &mut Decided::new(decision))
    }

    pub(super) fn decide_for(
        &self,
        purpose: Purpose,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        decided: &mut Decided<'_>,
    ) -> Next {
        let options = AttemptOptions::new(purpose, max_wait);
        self.inner.current.with(|snapshot| self.decide_under(snapshot, descriptor, options, decided))
    }

    /// Decides the request that `describe` describes, for a layer. The boolean that is
    /// returned says whether the request needs an empty charge handle: a rule lets its
    /// handler settle, but no lease of the request can be settled.
    pub(crate) fn decide_on<'d>(
        &self,
        describe: impl FnOnce(&mut Descriptor<'d>),
        max_wait: Duration,
        needs: CallerNeeds,
        decision: &mut Decision,
    ) -> (Next, bool) {
        self.inner.current.with(|snapshot| {
            let mut descriptor = Descriptor::new("");
            describe(&mut descriptor);
            let options = AttemptOptions {
                keeps_lease: needs.lease,
                reads_decision: needs.decision || observe::READS_DECISION || self.inner.top.is_some(),
                ..AttemptOptions::new(Purpose::Send, max_wait)
            };
            let next = self.decide_under(snapshot, &descriptor, options, &mut Decided::new(decision));
            let is_settled = || matches!(&next, Next::Done(Some(lease)) if lease.is_settled_by_handler());
            let settles = snapshot.policy.settles && !is_settled() && snapshot.policy.lets_settle(&descriptor);
            (next, settles)
        })
    }

    #[inline]
    fn decide_under(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        options: AttemptOptions,
        decided: &mut Decided<'_>,
    ) -> Next {
        if self.inner.first_requests.are_open() && !options.peeks() && !descriptor.exempt {
            self.inner.first_requests.look(snapshot.policy, descriptor);
        }
        let now = self.inner.clock.now();
        if let Some(overload) = &snapshot.policy.policy.overload
            && !options.peeks()
            && self.sheds(overload, snapshot, descriptor, now, decided.decision)
        {
            return Next::Done(None);
        }
        let immediate = Immediate { limiter: self, snapshot, now, options: &options };
        let mut is_possible = immediate.is_possible();
        if is_possible && let Some((rule, key)) = snapshot.policy.uniform(descriptor) {
            if let Some(next) = immediate.allow_uniform(rule, key, descriptor, decided) {
                return next;
            }
            is_possible = false;
        }
        self.decide_resolved(immediate, is_possible, descriptor, decided)
    }

    /// Decides by all rules that apply. Out of line: inlined, it makes the immediate allow of
    /// one rule slower by a third.
    #[inline(never)]
    fn decide_resolved(
        &self,
        immediate: Immediate<'_>,
        is_possible: bool,
        descriptor: &Descriptor<'_>,
        decided: &mut Decided<'_>,
    ) -> Next {
        let renewed = self.without_expired(immediate.snapshot.policy, immediate.now);
        let policy = renewed.as_ref().unwrap_or(immediate.snapshot.policy);
        let snapshot = PolicySnapshot { policy, ..immediate.snapshot };
        let immediate = Immediate { snapshot, ..immediate };
        let Immediate { now, options: &options, .. } = immediate;
        policy.resolve(descriptor, |Resolved { enforced, shadows, unidentified }| {
            if let Some(unidentified) = *unidentified {
                reject_unidentified(snapshot, unidentified, now, options, decided.decision);
                return Next::Done(None);
            }
            if enforced.is_empty() && shadows.is_empty() {
                return Next::Done(None);
            }
            if policy.is_dynamic {
                policy.estimate(descriptor, enforced.iter_mut().chain(&mut *shadows));
            }
            if is_possible
                && shadows.is_empty()
                && let Some(next) = immediate.allow(enforced, decided)
            {
                return next;
            }
            if policy.adapts {
                enforced.iter_mut().chain(&mut *shadows).for_each(|charge| drop(self.adapt(charge, now)));
            }
            if options.acquires() {
                enforced.iter_mut().chain(&mut *shadows).for_each(Charge::allow_any_wait);
            }
            let endpoint_until = self.endpoint_cooling_until(descriptor, now);
            let options = AttemptOptions { endpoint_until, ..options.within(policy, descriptor) };
            let mut attempt = Attempt::new(self, snapshot, (enforced, shadows), now, options);
            attempt.path = Some(descriptor.path());
            attempt.start(decided.decision)
        })
    }

    /// Whether the request is shed, before any rule: the process is overloaded.
    fn sheds(
        &self,
        overload: &Overload,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        decision: &mut Decision,
    ) -> bool {
        let policy = snapshot.policy;
        // An outer layer of this limiter has looked already.
        let has_passed = |passed: &PassedOverload| passed.0 == self.id();
        if descriptor.exempt
            || descriptor.extensions.and_then(Extensions::get).is_some_and(has_passed)
            || policy.exempts(descriptor)
        {
            return false;
        }
        let priority = policy.priority(descriptor);
        let tenant = descriptor.tenant.as_ref().map(TenantRef::id);
        let shedder = self.inner.shedder.get_or_init(Box::default);
        let Some(retry_after) = shedder.shed(overload, priority, tenant, now) else { return false };
        decision.reject(RateLimitedKind::Overloaded, now, Some(retry_after));
        snapshot.counters.count(RequestResult::Shed);
        count_shed(priority.as_str());
        true
    }
}

#[cold]
fn reject_unidentified(
    snapshot: PolicySnapshot<'_>,
    Unidentified { rule, kind, priority, reason }: Unidentified<'_>,
    now: Timestamp,
    options: AttemptOptions,
    decision: &mut Decision,
) {
    let blocked_until = if let Some(UnusableTiers::Blocked(until)) = reason { Some(*until) } else { None };
    decision.reject(kind, now, blocked_until.map(|until| nanos(until.saturating_since(now))));
    if options.peeks() {
        return;
    }
    if let Some(UnusableTiers::Invalid(error)) = reason {
        observe::invalid_tiers(rule, error, now);
    }
    observe::record(snapshot.counters, Some((rule, priority)), RequestResult::Rejected, decision, now);
}

/// A request that may be admitted at once.
#[derive(Clone, Copy)]
struct Immediate<'a> {
    limiter: &'a RateLimiter,
    snapshot: PolicySnapshot<'a>,
    now: Timestamp,
    options: &'a AttemptOptions,
}

impl Immediate<'_> {
    /// Whether a request that is admitted now is also sent now: no key cools down. The holder
    /// of a permit also keeps to the resume schedules of its keys. By leased units neither a
    /// permit is made, nor is the fallback limiter kept warm.
    #[inline]
    fn is_possible(&self) -> bool {
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
    fn allow_uniform(
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
    fn allow(&self, charges: &mut [Charge<'_>], decided: &mut Decided<'_>) -> Option<Next> {
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
