//! A policy made ready for deciding, [`CompiledPolicy`], and its rules, [`CompiledRule`].
//!
//! The policy indexes rules by path and route, and knows what its rules may ask of a
//! limiter, so that a decision skips what none of them needs. A rule says what it charges a
//! request. Neither holds counters. Invariant: they do not change, except for what operators
//! see of a rule, and the tiers that tenants bring. A reload makes others.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use foldhash::fast::RandomState;
use http::StatusCode;

use super::{
    Policy,
    adaptive::{LimitSteps, RateSteps},
    carried::Carried,
    exceptions::Exceptions,
    keys::RuleKeys,
    matcher::Matcher,
    pattern::ParameterPosition,
    rule::Rule,
    settings::{Consistency, FailureMode, Messages},
    statuses::Statuses,
    tiers::{OwnTierCache, OwnTiers, TierSets},
    validate::validate,
    validate_tiers::check_own_tiers,
};
use crate::{
    decision::RuleName,
    descriptor::{Descriptor, Priority, TenantId, TenantLimits},
    error::{BackendErrorKind, ConfigError},
    fingerprint::{Fingerprint, Scope},
    observe::{Mistake, RuleReports},
    quota::Quota,
    sync::lock,
    time::{Timestamp, nanos},
};

/// A policy made ready for deciding.
#[derive(Debug)]
pub(crate) struct CompiledPolicy {
    pub(crate) policy: Arc<Policy>,
    pub(crate) rules: Vec<CompiledRule>,
    pub(super) matcher: Matcher,
    by_id: HashMap<&'static str, u32, RandomState>,
    /// The scope of the only rule, where requests differ in nothing but their tenant.
    pub(super) uniform: Option<Scope>,
    /// Whether every rule applies to all requests that it matches: none exempts, is a
    /// fallback, or is for some methods, priorities or headers only.
    pub(super) is_plain: bool,
    /// Whether any rule identifies a caller by several keys together.
    pub(super) combines_keys: bool,
    /// Of each plan that has one, the highest that a rule gives it.
    plan_priorities: HashMap<String, Priority, RandomState>,
    /// The same of tenants, by name.
    tenant_priorities: HashMap<String, Priority, RandomState>,
    /// Whether any rule exempts requests.
    pub(super) has_exempt: bool,
    /// Whether any rule adapts its rate or its concurrency limit.
    pub(crate) adapts: bool,
    /// Whether what a rule charges is known only once a request is there: it adapts, or
    /// requests need not know what they cost in its unit.
    pub(crate) is_dynamic: bool,
    /// Whether any rule delays requests in a layer.
    pub(crate) lets_wait: bool,
    /// Whether a charge may have to be known after its request was admitted.
    keeps_receipts: AtomicBool,
    /// Whether any enforced rule fails to the fallback limiter.
    pub(crate) fails_locally: bool,
    /// Whether handlers may settle any rule.
    pub(crate) settles: bool,
    /// The instances among which limits are divided that no `local_share` divides; `None`
    /// where there are none.
    pub(crate) divided_by: Option<u64>,
    pub(crate) carried: Carried,
}

impl CompiledPolicy {
    pub(crate) fn new(policy: Policy) -> Result<Self, ConfigError> {
        validate(&policy, |index| format!("rules[{index}]"))?;
        let enabled = || policy.rules.iter().filter(|rule| rule.enabled);
        let sources = (0..policy.rules.len()).filter(|source| policy.rules[*source].enabled);
        let rules: Vec<_> =
            sources.enumerate().map(|(index, source)| CompiledRule::new(index, source, &policy)).collect();
        let mut matcher = Matcher::default();
        enabled().zip(0..).for_each(|(rule, index)| matcher.insert_rule(index, &rule.matches, policy.ignore_case));
        let has_in_flight = rules.iter().any(|rule| rule.tier_sets.has_in_flight());
        let plan_priorities = highest(rules.iter().flat_map(|rule| rule.exceptions.plan_priorities()));
        let tenant_priorities = highest(rules.iter().flat_map(|rule| rule.exceptions.tenant_priorities()));
        let adapts = rules.iter().any(|rule| rule.rate_steps.is_some() || rule.limits.is_some());
        Ok(Self {
            matcher,
            by_id: rules.iter().zip(0..).map(|(rule, index)| (*rule.id, index)).collect(),
            uniform: if let [rule] = &*rules { rule.uniform_scope() } else { None },
            is_plain: enabled().all(|rule| !rule.exempt && !rule.fallback && rule.matches.is_by_path()),
            combines_keys: rules.iter().any(|rule| rule.keys.has_several()),
            adapts,
            is_dynamic: adapts || enabled().any(|rule| rule.unit.is_some()),
            lets_wait: enabled().any(|rule| rule.max_wait.is_some_and(|max_wait| !max_wait.is_zero())),
            keeps_receipts: AtomicBool::new(has_in_flight || adapts || rules.iter().any(CompiledRule::charges_later)),
            fails_locally: enabled().any(|rule| rule.on_backend_failure == Some(FailureMode::Local) && !rule.shadow),
            settles: enabled().any(|rule| rule.settle),
            divided_by: enabled().any(follows_instances).then_some(1),
            plan_priorities,
            tenant_priorities,
            has_exempt: enabled().any(|rule| rule.exempt),
            carried: Carried::default(),
            rules,
            policy: Arc::new(policy),
        })
    }

    /// The same policy for a fleet of so many instances: rules that fall back to the
    /// local limiter, and whose backend knows the number, enforce a share there. What is
    /// kept of their charges stays valid.
    pub(crate) fn divided_by(&self, instances: u64) -> Result<Self, ConfigError> {
        self.compiled_again(Some(instances), self.carried.clone())
    }

    /// The same policy with something else that it carries.
    pub(crate) fn with(&self, carried: Carried) -> Result<Self, ConfigError> {
        self.compiled_again(self.divided_by, carried)
    }

    /// Another form of this policy. What is kept of the charges of this one stays valid.
    fn compiled_again(&self, divided_by: Option<u64>, carried: Carried) -> Result<Self, ConfigError> {
        let mut policy = (*self.policy).clone();
        if let Some(instances) = divided_by {
            #[allow(clippy::cast_precision_loss, reason = "a share")]
            let share = 1.0 / instances.max(1) as f64;
            let following = policy.rules.iter_mut().filter(|rule| follows_instances(rule));
            following.for_each(|rule| rule.local_share = Some(share));
        }
        let mut compiled = Self { divided_by, ..Self::new(policy)? };
        compiled.policy = Arc::clone(&self.policy);
        compiled.rules.iter_mut().zip(&self.rules).for_each(|(rule, own)| rule.version = own.version);
        Ok(compiled.carrying(self, carried))
    }

    /// Takes over what stays when `old` is replaced.
    pub(crate) fn carrying(self, old: &Self, carried: Carried) -> Self {
        #[cfg(feature = "admin")]
        if carried.counts_rules {
            let find = |rule: &CompiledRule| old.find_rule(rule.id).map(|index| &old.rules[index as usize].reports);
            self.rules.iter().for_each(|rule| rule.reports.count_like(find(rule)));
        }
        #[cfg(not(feature = "admin"))]
        let _ = old;
        // Requests then differ in more than a counter.
        let uniform = self.uniform.filter(|_| carried.overrides.is_none());
        Self { uniform, carried, ..self }
    }

    /// Whether an override has ended.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.carried.first_end.is_some_and(|end| end <= now)
    }

    /// Fails if a rule cannot have the tiers that a tenant brings, or none would.
    pub(crate) fn check_limits(&self, limits: Option<&TenantLimits>) -> Result<(), ConfigError> {
        let limits = limits.ok_or_else(|| ConfigError::new("tiers", "the tenant carries none"))?;
        let unknown = limits.rules().find(|id| self.find_rule(id).is_none());
        if let Some(rule) = unknown {
            return Err(ConfigError::new("tiers", "the policy has no such rule, or it is disabled").with_value(rule));
        }
        let mut is_used = false;
        for rule in &self.rules {
            if let Some(quotas) = limits.tiers_for(rule.id, rule.keys.counts_tenant) {
                self.own_tiers(rule, quotas)?;
                is_used = true;
            }
        }
        if is_used { Ok(()) } else { Err(ConfigError::new("tiers", "no rule counts by tenant")) }
    }

    /// How much a request matters, whatever its rules: as it says, its tenant, or the highest
    /// that any rule gives the tenant's name, or else its plan.
    pub(crate) fn priority(&self, descriptor: &Descriptor<'_>) -> Priority {
        let of_name = || match descriptor.tenant.as_ref()?.id() {
            TenantId::Name(name) => self.tenant_priorities.get(name).copied(),
            TenantId::Address(_) => None,
        };
        let of_plan = || self.plan_priorities.get(descriptor.plan_name()?).copied();
        descriptor.stated_priority().or_else(of_name).or_else(of_plan).unwrap_or_default()
    }

    /// The index of the enabled rule with this id.
    pub(crate) fn find_rule(&self, id: &str) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    /// Whether a charge may have to be known after its request was admitted.
    pub(crate) fn keeps_receipts(&self) -> bool {
        self.keeps_receipts.load(Ordering::Relaxed)
    }

    /// The tiers of a tenant that brings these quotas with its request.
    pub(super) fn own_tiers(&self, rule: &CompiledRule, quotas: &[Quota]) -> Result<Arc<OwnTiers>, ConfigError> {
        if let Some(own) = rule.own_tiers.get(quotas) {
            return Ok(own);
        }
        let source = Rule { tiers: quotas.to_vec(), ..rule.options.clone() };
        check_own_tiers(&source).map_err(|error| error.of_rule(*rule.id))?;
        let own = Arc::new(OwnTiers::new(rule.id, &source, rule.version));
        if own.sets.has_in_flight() {
            // The request that brings it sees this on its own thread.
            self.keeps_receipts.store(true, Ordering::Relaxed);
        }
        rule.own_tiers.insert(&own);
        Ok(own)
    }
}

/// A rule made ready for deciding.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) id: RuleName,
    /// Its index among the enabled rules.
    pub(crate) index: usize,
    /// Its index among all rules.
    pub(super) source: usize,
    /// Differs for every rule of every policy of this process. A policy that is divided
    /// among another number of instances keeps it.
    pub(crate) version: u64,
    /// The tiers that tenants carry.
    pub(super) own_tiers: OwnTierCache,
    pub(crate) keys: RuleKeys,
    /// Which of its tier sets a tenant or a plan has.
    pub(super) exceptions: Exceptions,
    pub(super) tier_sets: TierSets,
    /// For each path pattern, where the tenant stands in it, if it is taken from there.
    pub(super) tenant_parameters: Vec<ParameterPosition>,
    pub(crate) rate_steps: Option<RateSteps>,
    /// Those of its adaptive concurrency limit.
    pub(crate) limits: Option<LimitSteps>,
    /// The key of the overflow counter.
    pub(crate) overflow: Fingerprint,
    /// Nanoseconds, where the rule sets a bound.
    pub(crate) max_wait: Option<u64>,
    /// The rule as it is written, without its plans and tenants.
    pub(crate) options: Rule,
    pub(crate) reports: RuleReports,
}

impl CompiledRule {
    /// `source` is the rule's index in its policy.
    fn new(index: usize, source: usize, policy: &Policy) -> Self {
        let (rule, ignore_case) = (&policy.rules[source], policy.ignore_case);
        let id = intern(&rule.id);
        // Validation has found the parameter in each path.
        let parameter = |path: &String| ParameterPosition::find(path, rule.tenant_param.as_ref()?);
        let (exceptions, quotas) = Exceptions::new(rule, ignore_case);
        Self {
            id,
            index,
            source,
            version: next_version(),
            own_tiers: OwnTierCache::default(),
            keys: RuleKeys::new(id, rule),
            exceptions,
            tier_sets: TierSets::new(id, rule, &quotas),
            tenant_parameters: rule.matches.paths.iter().filter_map(parameter).collect(),
            rate_steps: rule.adaptive_rate.as_ref().map(RateSteps::new),
            limits: LimitSteps::new(&rule.tiers),
            overflow: Scope::new(&[id, "", "", "overflow"]).shared(),
            max_wait: rule.max_wait.map(nanos),
            options: Rule { plans: BTreeMap::new(), tenants: BTreeMap::new(), ..rule.clone() },
            reports: RuleReports::default(),
        }
    }

    /// The scope of all requests, where path, method and plan of none matter, and the rule
    /// needs no more than an immediate charge.
    fn uniform_scope(&self) -> Option<Scope> {
        let is_plain = !self.charges_later() && !self.options.shadow && !self.options.smooth;
        let is_for_all = self.options.matches.is_everywhere() && self.options.matches.is_by_path();
        let has_one_set = self.options.reserve.is_empty() && self.exceptions.is_empty();
        let is_limited = !self.tier_sets.get(0).is_empty();
        self.keys.only_scope().filter(|_| is_plain && is_for_all && has_one_set && is_limited)
    }

    /// Whether the cost of a request may be settled after it was admitted.
    pub(crate) fn is_settled_late(&self) -> bool {
        self.options.is_settled_late()
    }

    /// Units that the rule takes of a request.
    #[inline]
    pub(crate) fn cost_of(&self, descriptor: &Descriptor<'_>) -> u64 {
        let stated = match &self.options.unit {
            None => descriptor.cost,
            Some(unit) => match (descriptor.stated_cost(unit), self.options.per_byte) {
                (Some(stated), _) => stated,
                (None, Some(_)) => 1,
                (None, None) => self.report_unstated(unit),
            },
        };
        self.options.cost.saturating_mul(stated)
    }

    #[cold]
    fn report_unstated(&self, unit: &str) -> u64 {
        self.reports.mistakes.report(Mistake::UnstatedUnit, &format_args!("rule `{}`, unit `{unit}`", self.id));
        0
    }

    /// Whether a response of this status is charged.
    pub(crate) fn keeps(&self, status: StatusCode) -> bool {
        let contains = |statuses: &Statuses| statuses.contains(status);
        self.options.charge_on.as_ref().is_none_or(contains) && !self.options.refund_on.as_ref().is_some_and(contains)
    }

    /// Whether such messages are charged one by one.
    pub(crate) fn counts(&self, messages: Messages) -> bool {
        self.options.per_message.is_some_and(|counted| counted == Messages::Both || counted == messages)
    }

    /// Whether it may charge a request more, or less, after it was admitted.
    fn charges_later(&self) -> bool {
        self.is_settled_late() || self.options.per_message.is_some()
    }

    /// Whether it follows what becomes of a request that it has charged.
    pub(crate) fn follows_up(&self) -> bool {
        self.charges_later() || self.rate_steps.is_some()
    }

    /// What happens to a request when the backend fails in this way.
    pub(crate) fn failure_mode(&self, error: BackendErrorKind) -> FailureMode {
        // It is counted in this process, whatever the backend does.
        if self.limits.is_some() {
            return FailureMode::Local;
        }
        // Callers may invent tenants, and so fill a store.
        let default = match error {
            BackendErrorKind::OutOfMemory if self.is_per_tenant() => FailureMode::Local,
            _ => FailureMode::default(),
        };
        self.options.on_backend_failure.unwrap_or(default)
    }

    /// Whether each tenant, or each caller by another key, has its own counter.
    pub(crate) fn is_per_tenant(&self) -> bool {
        self.keys.per_tenant
    }

    /// The tier sets of a request: those that its tenant brings, or the rule's own.
    #[inline]
    pub(super) fn tier_sets_of<'s>(&'s self, own: Option<&'s Arc<OwnTiers>>) -> &'s TierSets {
        own.map_or(&self.tier_sets, |own| &own.sets)
    }
}

/// Returns the rule's id as a name that lives as long as the process, so that a
/// decision can name the rule without counting references. Only policies add
/// ids, so requests cannot make this memory grow.
fn intern(id: &str) -> RuleName {
    static IDS: LazyLock<Mutex<HashMap<String, RuleName>>> = LazyLock::new(Mutex::default);
    let mut ids = lock(&IDS);
    ids.entry(id.into()).or_insert_with(|| Box::leak(Box::new(&*Box::leak(id.into()))))
}

/// A number that no other rule, or set of a tenant, of this process has.
fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The highest priority of each name.
fn highest<'n>(named: impl Iterator<Item = (&'n str, Priority)>) -> HashMap<String, Priority, RandomState> {
    let mut all = HashMap::<_, Priority, _>::default();
    for (name, priority) in named {
        let highest = all.entry(name.to_owned()).or_insert(priority);
        *highest = priority.max(*highest);
    }
    all
}

/// Whether the rule's local share follows the number of instances that the backend sees.
fn follows_instances(rule: &Rule) -> bool {
    let is_local = rule.on_backend_failure == Some(FailureMode::Local);
    is_local
        && rule.local_share.is_none()
        && !rule.tiers.iter().any(Quota::is_adaptive)
        && rule.consistency != Consistency::Exact
        && rule.enabled
}
