mod names;

use std::{collections::HashMap, net::IpAddr};

use foldhash::fast::RandomState;
use http::{Method, StatusCode};

use super::{
    Dimension, FailureMode, Ladder, Messages, Override, Rule, Statuses,
    matcher::{ParameterPlace, same},
    tier::{Tier, intern, tier_set},
};
use crate::{
    algorithm::MachineOptions,
    decision::RuleName,
    descriptor::{Descriptor, MissingTenant, TenantId, TenantRef},
    fingerprint::{Fingerprint, Scope},
    quota::Quota,
    time::nanos,
};

/// A rule made ready for deciding.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) id: RuleName,
    /// Its place among the rules that are enabled.
    pub(crate) index: usize,
    /// Another one for every rule of every policy of this process.
    #[cfg(feature = "redis")]
    pub(crate) version: u64,
    methods: Vec<Method>,
    patterns: usize,
    /// Empty: counted together.
    counted_methods: Vec<Method>,
    /// What is counted apart: patterns, then routes; `""` where all is one.
    endpoints: Vec<Box<str>>,
    /// For each pattern of the rule, its place in `endpoints`.
    counted_as: Vec<u16>,
    tenant_places: Vec<Option<ParameterPlace>>,
    per_tenant: bool,
    /// The rule's own, then those of plans and tenants; and then each of them
    /// again, scaled, where the local limiter that stands in for a backend has
    /// a share only. Where the rule adapts, all of these once for each step.
    tier_sets: Vec<Box<[Tier]>>,
    /// How many sets further on the scaled ones stand; 0 where there are none.
    to_local: u32,
    /// How many sets further on those of the next step stand.
    to_next_step: u32,
    pub(crate) ladder: Option<Ladder>,
    plans: HashMap<Box<str>, u32, RandomState>,
    tenants: HashMap<Box<str>, Exception, RandomState>,
    addresses: HashMap<IpAddr, Exception, RandomState>,
    /// One for each endpoint and counted method.
    scopes: Vec<Scope>,
    /// The key of those for whom there is no place.
    pub(crate) overflow: Fingerprint,
    /// Nanoseconds, where the rule sets a bound.
    pub(crate) max_wait: Option<u64>,
    pub(crate) cost: u64,
    /// Whether a handler may settle.
    pub(crate) settle: bool,
    settled_late: bool,
    charge_on: Option<Statuses>,
    refund_on: Option<Statuses>,
    pub(crate) smooth: bool,
    per_message: Option<Messages>,
    pub(crate) fallback: bool,
    pub(crate) fair: bool,
    pub(crate) shadow: bool,
    /// Whether it is held back when the provider asks for it.
    pub(crate) upstream_feedback: bool,
    pub(crate) on_backend_failure: FailureMode,
    #[cfg(feature = "tracing")]
    pub(crate) log_gate: crate::observe::LogGate,
    #[cfg(feature = "tracing")]
    pub(crate) failure_gate: crate::observe::LogGate,
    #[cfg(feature = "tracing")]
    pub(crate) cooldown_gate: crate::observe::LogGate,
    #[cfg(feature = "metrics")]
    pub(crate) meters: crate::observe::Meters,
}

#[derive(Clone, Copy, Debug)]
enum Exception {
    TierSet(u32),
    Unlimited,
}

/// A rule that applies to a request, with the key that it is counted under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppliedRule<'a> {
    pub(crate) rule: &'a CompiledRule,
    pub(crate) tiers: &'a [Tier],
    pub(crate) tenant: Option<TenantId<'a>>,
    pub(crate) key: Fingerprint,
    pub(crate) place: Place,
}

/// Which of a rule's tier sets, endpoints and methods apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    tier_set: u32,
    endpoint: u16,
    method: u16,
}

/// What a rule says of a request that it matches.
#[derive(Debug)]
pub(crate) enum RuleMatch<'a> {
    Applies(AppliedRule<'a>),
    /// The rule lets it pass uncounted.
    Passes,
    /// The rule counts per tenant, and there is none.
    MissesTenant(&'a CompiledRule),
}

/// All there is to a policy under which requests differ by nothing but their
/// tenant: one rule, enforced, for everything, without exceptions.
#[derive(Debug)]
pub(crate) struct Uniform {
    pub(super) scope: Scope,
    pub(crate) cost: u64,
    /// The first tier, and nearly always the only one: in place.
    pub(crate) tier: Tier,
    /// All of them, where there are several.
    pub(crate) several: Box<[Tier]>,
}

impl CompiledRule {
    pub(super) fn new(index: usize, rule: &Rule, ignore_case: bool) -> Self {
        let per = |dimension| rule.per.as_ref().is_none_or(|per| per.contains(&dimension));
        let patterns: Vec<&str> = rule.paths.iter().chain(&rule.routes).map(String::as_str).collect();
        let endpoints: Vec<Box<str>> = match per(Dimension::Endpoint) && !patterns.is_empty() {
            true => patterns.iter().map(|&pattern| pattern.into()).collect(),
            false => vec!["".into()],
        };
        let apart = endpoints.len() == patterns.len();
        #[allow(clippy::cast_possible_truncation, reason = "validated: not so many")]
        let counted_as = (0..patterns.len().max(1)).map(|pattern| if apart { pattern as u16 } else { 0 }).collect();
        let counted_methods = match (per(Dimension::Method), rule.methods.is_empty()) {
            (false, _) => Vec::new(),
            (true, false) => rule.methods.clone(),
            (true, true) if rule.per.is_none() => Vec::new(),
            (true, true) => STANDARD_METHODS.to_vec(),
        };
        let id = intern(&rule.id);
        let scopes = endpoints
            .iter()
            .flat_map(|endpoint| {
                let methods = counted_methods.iter().map(Method::as_str).chain([""]);
                methods.map(move |method| Scope::new(&[id, endpoint, method]))
            })
            .collect();
        let mut compiled = Self {
            id,
            index,
            #[cfg(feature = "redis")]
            version: next_version(),
            methods: rule.methods.clone(),
            patterns: patterns.len(),
            counted_methods,
            tenant_places: rule
                .tenant_param
                .as_ref()
                .map_or_else(Vec::new, |name| rule.paths.iter().map(|path| ParameterPlace::find(path, name)).collect()),
            endpoints,
            counted_as,
            per_tenant: per(Dimension::Tenant),
            tier_sets: vec![tier_set(id, &rule.tiers, rule.machine_options())],
            to_local: 0,
            to_next_step: 0,
            ladder: rule.adapt.as_ref().map(Ladder::new),
            plans: HashMap::default(),
            tenants: HashMap::default(),
            addresses: HashMap::default(),
            scopes,
            overflow: Scope::new(&[id, "", "", "overflow"]).shared(),
            max_wait: rule.max_wait.map(nanos),
            cost: rule.cost,
            settle: rule.settle,
            settled_late: rule.is_settled_late(),
            charge_on: rule.charge_on,
            refund_on: rule.refund_on,
            smooth: rule.smooth,
            per_message: rule.per_message,
            fallback: rule.fallback,
            fair: rule.fair,
            shadow: rule.shadow,
            upstream_feedback: rule.upstream_feedback,
            on_backend_failure: rule.on_backend_failure,
            #[cfg(feature = "tracing")]
            log_gate: crate::observe::LogGate::default(),
            #[cfg(feature = "tracing")]
            failure_gate: crate::observe::LogGate::default(),
            #[cfg(feature = "tracing")]
            cooldown_gate: crate::observe::LogGate::default(),
            #[cfg(feature = "metrics")]
            meters: crate::observe::Meters::default(),
        };
        // A tenant that stands in a path is spelled as paths are.
        compiled.add_exceptions(rule, ignore_case && rule.tenant_param.is_some());
        compiled.add_scaled(rule);
        compiled.add_steps(rule);
        compiled
    }

    fn add_exceptions(&mut self, rule: &Rule, lower_case: bool) {
        for (plan, quotas) in &rule.plans {
            let set = self.add_tier_set(quotas, rule.machine_options());
            self.plans.insert(plan.as_str().into(), set);
        }
        for (tenant, exception) in &rule.tenants {
            let exception = match exception {
                Override::Tiers(quotas) => Exception::TierSet(self.add_tier_set(quotas, rule.machine_options())),
                Override::Unlimited => Exception::Unlimited,
            };
            // Written as an address, it names an address as well.
            if let Ok(address) = tenant.parse::<IpAddr>() {
                self.addresses.insert(address.to_canonical(), exception);
            }
            let tenant = if lower_case { tenant.to_ascii_lowercase() } else { tenant.clone() };
            self.tenants.insert(tenant.into(), exception);
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "validated: not so many")]
    fn add_scaled(&mut self, rule: &Rule) {
        let Some(share) = rule.local_share.filter(|share| *share < 1.0) else { return };
        let scaled = |tiers: &[Tier]| tiers.iter().map(|tier| tier.quota.scaled(share)).collect::<Vec<_>>();
        let sets: Vec<_> = self.tier_sets.iter().map(|tiers| scaled(tiers)).collect();
        self.to_local = self.tier_sets.len() as u32;
        for quotas in sets {
            self.add_tier_set(&quotas, rule.machine_options());
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "validated: not so many")]
    fn add_steps(&mut self, rule: &Rule) {
        let Some(ladder) = &self.ladder else { return };
        let steps: Vec<Quota> = ladder.quotas(self.cost).collect();
        let quotas = |tiers: &[Tier]| tiers.iter().map(|tier| tier.quota).collect::<Vec<_>>();
        let sets: Vec<_> = std::mem::take(&mut self.tier_sets).iter().map(|tiers| quotas(tiers)).collect();
        self.to_next_step = sets.len() as u32;
        let is_scaled = |set| self.to_local > 0 && set >= self.to_local as usize;
        let scaled: Vec<bool> = (0..sets.len()).map(is_scaled).collect();
        for step in steps {
            for (set, scaled) in sets.iter().zip(&scaled) {
                let share = rule.local_share.filter(|_| *scaled).unwrap_or(1.0);
                self.add_tier_set(&[&**set, &[step.scaled(share)]].concat(), rule.machine_options());
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "validated: not so many")]
    fn add_tier_set(&mut self, quotas: &[Quota], options: MachineOptions) -> u32 {
        self.tier_sets.push(tier_set(self.id, quotas, options));
        (self.tier_sets.len() - 1) as u32
    }

    /// Whether what a request costs may be known only after it was let go.
    pub(crate) fn is_settled_late(&self) -> bool {
        self.settled_late
    }

    /// Whether a response of this status is charged.
    pub(crate) fn keeps(&self, status: StatusCode) -> bool {
        let contains = |statuses: &Statuses| statuses.contains(status);
        self.charge_on.as_ref().is_none_or(contains) && !self.refund_on.as_ref().is_some_and(contains)
    }

    pub(super) fn has_in_flight(&self) -> bool {
        self.tier_sets.iter().flatten().any(Tier::is_in_flight)
    }

    pub(super) fn uniform(&self) -> Option<Uniform> {
        let plain = self.plans.is_empty() && self.tenants.is_empty() && self.patterns == 0;
        match (&*self.tier_sets, &*self.scopes) {
            ([tiers] | [tiers, _], [scope]) if plain && self.methods.is_empty() && self.per_tenant && !self.shadow => {
                let [tier, more @ ..] = &**tiers else { return None };
                let charged_once = !self.is_settled_late() && self.per_message.is_none();
                if self.has_in_flight() || self.ladder.is_some() || self.smooth || !charged_once {
                    return None;
                }
                let several = if more.is_empty() { Box::default() } else { tiers.clone() };
                Some(Uniform { scope: *scope, cost: self.cost, tier: tier.clone(), several })
            }
            _ => None,
        }
    }

    /// Whether such messages are charged one by one.
    pub(crate) fn counts(&self, messages: Messages) -> bool {
        self.per_message.is_some_and(|counted| counted.include(messages))
    }

    /// Whether any messages are.
    pub(crate) fn counts_messages(&self) -> bool {
        self.per_message.is_some()
    }

    pub(super) fn takes(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|named| same(named.as_str(), self.named(method)))
    }

    /// The method under which a rule takes and counts a request: whoever
    /// serves GET serves HEAD by the same handler, so that HEAD is GET unless
    /// the rule names it.
    fn named<'m>(&self, method: &'m str) -> &'m str {
        let is_get = same(method, "HEAD") && !self.methods.contains(&Method::HEAD) && !self.methods.is_empty();
        if is_get { "GET" } else { method }
    }

    #[inline]
    pub(super) fn apply<'a>(&'a self, pattern: usize, descriptor: &'a Descriptor<'_>, path: &'a str) -> RuleMatch<'a> {
        let tenant = match self.tenant_places.get(pattern) {
            None => descriptor.tenant.as_ref().map(TenantRef::id),
            Some(place) => place.and_then(|place| place.value(path)).map(TenantId::Name),
        };
        if tenant.is_none() && self.per_tenant {
            match descriptor.missing_tenant {
                MissingTenant::Anonymous => {}
                MissingTenant::Allow => return RuleMatch::Passes,
                MissingTenant::Reject => return RuleMatch::MissesTenant(self),
            }
        }
        let tier_set = match self.exception(tenant) {
            Some(Exception::Unlimited) => return RuleMatch::Passes,
            Some(Exception::TierSet(set)) => set,
            None if self.plans.is_empty() => 0,
            None => descriptor.plan_name().and_then(|plan| self.plans.get(plan)).copied().unwrap_or(0),
        };
        let endpoint = self.counted_as[pattern];
        let method = self.method_place(descriptor.method);
        let scope = self.scopes[usize::from(endpoint) * (self.counted_methods.len() + 1) + usize::from(method)];
        RuleMatch::Applies(AppliedRule {
            rule: self,
            tiers: &self.tier_sets[tier_set as usize],
            key: if self.per_tenant { scope.key(tenant) } else { scope.shared() },
            tenant: tenant.filter(|_| self.per_tenant || self.fair),
            place: Place { tier_set, endpoint, method },
        })
    }

    /// The same, as the limiter decides and counts it that stands in for a
    /// backend.
    pub(crate) fn locally<'a>(&'a self, applied: AppliedRule<'a>) -> AppliedRule<'a> {
        let place = Place { tier_set: applied.place.tier_set + self.to_local, ..applied.place };
        AppliedRule { tiers: self.tiers(place), place, ..applied }
    }

    /// The same, by another step of the ladder, where the rule has one.
    #[allow(clippy::cast_possible_truncation, reason = "validated: not so many")]
    pub(crate) fn at_step<'a>(&'a self, applied: AppliedRule<'a>, step: usize) -> AppliedRule<'a> {
        let Some(set) = applied.place.tier_set.checked_rem(self.to_next_step) else { return applied };
        let place = Place { tier_set: set + step as u32 * self.to_next_step, ..applied.place };
        AppliedRule { tiers: self.tiers(place), place, ..applied }
    }

    /// Whether each tenant is counted by itself.
    pub(crate) fn is_per_tenant(&self) -> bool {
        self.per_tenant
    }

    /// Methods that are not counted apart share the last place.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "validated: not so many")]
    fn method_place(&self, method: &str) -> u16 {
        let (counted, method) = (&self.counted_methods, self.named(method));
        counted.iter().position(|counted| same(counted.as_str(), method)).unwrap_or(counted.len()) as u16
    }

    #[inline]
    fn exception(&self, tenant: Option<TenantId<'_>>) -> Option<Exception> {
        if self.tenants.is_empty() {
            return None;
        }
        match tenant? {
            TenantId::Name(name) => self.tenants.get(name).copied(),
            TenantId::Address(address) => self.addresses.get(&address).copied(),
        }
    }

    pub(crate) fn tiers(&self, place: Place) -> &[Tier] {
        &self.tier_sets[place.tier_set as usize]
    }
}

#[cfg(feature = "redis")]
fn next_version() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Those that are counted apart where a rule counts per method and names none.
const STANDARD_METHODS: [Method; 9] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::HEAD,
    Method::OPTIONS,
    Method::PATCH,
    Method::TRACE,
    Method::CONNECT,
];
