//! The way of a request that is admitted at once: resolve it to charges, and
//! charge them where their counters already exist. Everything else (rejections,
//! waits, stores) goes through [`RateLimiter::start`].

use std::time::Duration;

use super::{
    admission::Admission,
    attempt::{Attempt, Charges, Options, rules},
    current::PolicySnapshot,
    observe,
    state::{Backing, RateLimiter},
};
use crate::{
    algorithm::QuotaStatus,
    backend::{Charge, Local},
    decision::{Decision, RateLimitedKind},
    descriptor::Descriptor,
    observe::Event,
    policy::{CompiledRule, Endpoints, RuleMatch, Tier},
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
            && let Some((uniform, key)) = snapshot.policy.apply_uniform(descriptor)
        {
            let cost = uniform.cost.saturating_mul(descriptor.cost);
            let told = wants.decision || observe::LOOKS;
            let charged = match &*uniform.several {
                [] => local.charge_held(key, &uniform.tier, now.as_nanos(), cost).map(|status_of| {
                    if told {
                        decision.admit(now, 0);
                        decision.add_tier(uniform.tier.status(status_of.remaining, status_of.reset, false));
                    }
                }),
                tiers => local.charge_all_held(key, tiers, now.as_nanos(), cost).map(|statuses| {
                    if told {
                        admit(tiers, &statuses, now, decision);
                    }
                }),
            };
            if charged.is_some() {
                observe::record(snapshot.counters, snapshot.policy.rules.iter(), Event::Allowed, decision, now);
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

    /// Nothing on trial: the way of nearly all others.
    fn charge(
        &self,
        snapshot: PolicySnapshot<'_>,
        charges: &[Charge<'_>],
        now: Timestamp,
        options: Options,
        decision: &mut Decision,
    ) -> Option<Box<Admission>> {
        if !options.keeps_lease()
            && !snapshot.policy.keeps_receipts
            && !self.inner.cooldowns.any(now)
            && let Backing::Local(local) = &self.inner.backend
            && charge_held(local, charges, now, decision)
        {
            observe::record(snapshot.counters, rules(charges), Event::Allowed, decision, now);
            return None;
        }
        self.start(Attempt::new(snapshot, (charges, &[]), now, options), decision)
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
        let mut endpoints = Endpoints::new();
        policy.matching(descriptor, &path, &mut endpoints);
        let (mut enforced, mut shadows) = (Charges::new(), Charges::new());
        for endpoint in endpoints {
            match policy.apply(endpoint, descriptor, &path) {
                RuleMatch::Applies(applied) => {
                    let applied = if policy.adapts { self.at_its_rate(applied, now) } else { applied };
                    let charges = if applied.rule.shadow { &mut shadows } else { &mut enforced };
                    let charge = Charge::new(applied, descriptor.cost);
                    charges.push(if options.acquires { charge.patient() } else { charge });
                }
                RuleMatch::MissesTenant(rule) if !rule.shadow => return missing_tenant(snapshot, rule, now, decision),
                RuleMatch::Passes | RuleMatch::MissesTenant(_) => {}
            }
        }
        match (enforced.as_slice(), shadows.as_slice()) {
            ([], []) => None,
            (enforced, []) => self.charge(snapshot, enforced, now, options, decision),
            (enforced, shadows) => self.start(Attempt::new(snapshot, (enforced, shadows), now, options), decision),
        }
    }
}

/// Charges all tiers, if their states are there and let it pass at once.
#[inline]
fn charge_held(local: &Local, charges: &[Charge<'_>], now: Timestamp, decision: &mut Decision) -> bool {
    let time = now.as_nanos();
    if let [charge] = charges
        && let [tier] = charge.tiers()
    {
        let Some(status_of) = local.charge_held(charge.applied.key, tier, time, charge.cost) else { return false };
        decision.admit(now, 0);
        decision.add_tier(tier.status(status_of.remaining, status_of.reset, false));
        return true;
    }
    let statuses = match charges {
        [charge] => local.charge_all_held(charge.applied.key, charge.tiers(), time, charge.cost),
        charges => local.charge_each_held(charges, time),
    };
    let tiers = charges.iter().flat_map(Charge::tiers);
    statuses.map(|statuses| admit(tiers, &statuses, now, decision)).is_some()
}

/// Apart, as all that is for several: who has one tier is not to be slower for
/// it.
#[inline(never)]
fn admit<'t>(
    tiers: impl IntoIterator<Item = &'t Tier>,
    statuses: &[QuotaStatus],
    now: Timestamp,
    decision: &mut Decision,
) {
    decision.admit(now, 0);
    for (tier, status_of) in tiers.into_iter().zip(statuses) {
        decision.add_tier(tier.status(status_of.remaining, status_of.reset, false));
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
    observe::record(snapshot.counters, Some(rule), Event::Rejected, decision, now);
    None
}
