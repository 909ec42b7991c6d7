use std::{collections::HashMap, sync::Arc};

use foldhash::fast::RandomState;

use super::{
    FailureMode, Policy, Rule,
    compiled_rule::{CompiledRule, RuleMatch, Uniform},
    matcher::{Endpoint, Endpoints, Matcher, Spelling},
    validate::validate,
};
use crate::{
    descriptor::{Descriptor, MissingTenant, TenantRef},
    error::ConfigError,
    fingerprint::Fingerprint,
};

/// A policy made ready for deciding. Immutable.
#[derive(Debug)]
pub(crate) struct CompiledPolicy {
    pub(crate) policy: Arc<Policy>,
    pub(crate) rules: Vec<CompiledRule>,
    matcher: Matcher,
    routes: HashMap<Box<str>, Vec<Endpoint>, RandomState>,
    /// Rules that match every path.
    everywhere: Vec<Endpoint>,
    has_fallback: bool,
    /// Whether any rule has a tier, for whomever, that limits what is in
    /// flight.
    pub(crate) has_in_flight: bool,
    /// Whether any rule finds its limit.
    pub(crate) adapts: bool,
    /// Whether any rule lets a request wait in a layer.
    pub(crate) lets_wait: bool,
    /// Whether what a request was charged may have to be known after it went.
    pub(crate) keeps_receipts: bool,
    /// Whether any rule that is enforced fails to a local limiter.
    pub(crate) fails_locally: bool,
    /// Whether any rule lets whoever handles a request settle it.
    pub(crate) settles: bool,
    uniform: Option<Uniform>,
}

impl CompiledPolicy {
    pub(crate) fn new(policy: Policy) -> Result<Self, ConfigError> {
        validate(&policy)?;
        let mut compiled = Self {
            rules: Vec::new(),
            matcher: Matcher::default(),
            routes: HashMap::default(),
            everywhere: Vec::new(),
            has_fallback: false,
            keeps_receipts: false,
            has_in_flight: false,
            adapts: false,
            lets_wait: false,
            fails_locally: false,
            settles: false,
            uniform: None,
            policy: Arc::new(policy),
        };
        let policy = Arc::clone(&compiled.policy);
        for rule in policy.rules.iter().filter(|rule| rule.enabled) {
            compiled.add(rule);
        }
        let settles = compiled.rules.iter().any(CompiledRule::is_settled_late);
        let counts_messages = compiled.rules.iter().any(CompiledRule::counts_messages);
        compiled.keeps_receipts = compiled.has_in_flight || compiled.adapts || settles || counts_messages;
        if let [rule] = &*compiled.rules {
            compiled.uniform = rule.uniform();
        }
        Ok(compiled)
    }

    #[allow(clippy::cast_possible_truncation, reason = "validated: no more rules and patterns than that")]
    fn add(&mut self, rule: &Rule) {
        let index = self.rules.len() as u32;
        let endpoint = |pattern: usize| Endpoint { rule: index, pattern: pattern as u16, resolved: false };
        for (pattern, path) in rule.paths.iter().enumerate() {
            self.matcher.insert(path, self.policy.ignore_case, endpoint(pattern));
        }
        for (pattern, route) in rule.routes.iter().enumerate() {
            let endpoint = endpoint(rule.paths.len() + pattern);
            self.routes.entry(route.as_str().into()).or_default().push(endpoint);
        }
        if rule.paths.is_empty() && rule.routes.is_empty() {
            self.everywhere.push(endpoint(0));
        }
        self.has_fallback |= rule.fallback;
        self.adapts |= rule.adapt.is_some();
        self.lets_wait |= rule.max_wait.is_some_and(|max_wait| !max_wait.is_zero());
        self.fails_locally |= rule.on_backend_failure == FailureMode::Local && !rule.shadow;
        self.settles |= rule.settle;
        let compiled = CompiledRule::new(self.rules.len(), rule, self.policy.ignore_case);
        self.has_in_flight |= compiled.has_in_flight();
        self.rules.push(compiled);
    }

    /// How the path is looked up; not at all where no rule asks for it.
    pub(crate) fn spell<'p>(&self, descriptor: &Descriptor<'p>) -> Spelling<'p> {
        match self.matcher.is_empty() {
            true => Spelling::default(),
            false => Spelling::new(descriptor.path, self.policy.ignore_case),
        }
    }

    /// Whether requests differ by nothing but their tenant.
    #[inline]
    pub(crate) fn is_uniform(&self) -> bool {
        self.uniform.is_some()
    }

    /// What applies to a request, and its key, where that needs no look at
    /// more than its tenant.
    #[inline]
    pub(crate) fn apply_uniform(&self, descriptor: &Descriptor<'_>) -> Option<(&Uniform, Fingerprint)> {
        let uniform = self.uniform.as_ref()?;
        let tenant = descriptor.tenant.as_ref().map(TenantRef::id);
        if tenant.is_none() && descriptor.missing_tenant != MissingTenant::Anonymous {
            return None;
        }
        Some((uniform, uniform.scope.key(tenant)))
    }

    /// The rules that apply, one endpoint each, in the policy's order.
    #[inline]
    pub(crate) fn matching(&self, descriptor: &Descriptor<'_>, path: &Spelling<'_>, found: &mut Endpoints) {
        found.extend(self.everywhere.iter().copied());
        if !self.matcher.is_empty() {
            self.matcher.find_spelled(path, found);
        }
        if let Some(route) = descriptor.route
            && let Some(endpoints) = self.routes.get(route)
        {
            found.extend(endpoints.iter().copied());
        }
        found.retain(|endpoint| self.rules[endpoint.rule as usize].takes(descriptor.method));
        if found.len() > 1 {
            // Stable: of a rule's patterns the most specific stays first.
            found.sort_by_key(|endpoint| endpoint.rule);
            found.dedup_by_key(|endpoint| endpoint.rule);
        }
        if self.has_fallback {
            let enforced = |endpoint: &Endpoint| {
                let rule = &self.rules[endpoint.rule as usize];
                !rule.fallback && !rule.shadow
            };
            if found.iter().any(enforced) {
                found.retain(|endpoint| !self.rules[endpoint.rule as usize].fallback);
            }
        }
    }

    /// Whether a rule that lets whoever handles a request settle it is for such
    /// requests, though it may let this one pass uncounted.
    #[cold]
    pub(crate) fn lets_settle(&self, descriptor: &Descriptor<'_>) -> bool {
        let path = self.spell(descriptor);
        let mut endpoints = Endpoints::new();
        self.matching(descriptor, &path, &mut endpoints);
        endpoints.iter().any(|endpoint| self.rules[endpoint.rule as usize].settle)
    }

    /// What the rule of `endpoint` says of a request.
    #[inline]
    pub(crate) fn apply<'a>(
        &'a self,
        endpoint: Endpoint,
        descriptor: &'a Descriptor<'_>,
        path: &'a Spelling<'_>,
    ) -> RuleMatch<'a> {
        self.rules[endpoint.rule as usize].apply(endpoint.pattern as usize, descriptor, path.of(endpoint))
    }
}
