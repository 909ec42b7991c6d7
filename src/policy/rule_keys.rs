//! The keys under which a rule counts: [`RuleKeys`].
//!
//! A key stands for the rule, an endpoint, a method and a tenant. The rule
//! says which of these it tells apart. It does not choose limits: all keys of
//! a rule have the same tier sets.

use std::sync::Arc;

use super::{rule::Rule, settings::Dimension};
use crate::{
    decision::RuleName,
    descriptor::TenantId,
    fingerprint::{Fingerprint, Scope},
};

/// Which of a rule's tier sets, endpoints and counted methods a request uses.
/// The indexes are valid for the rule that made them, and for another rule with
/// the same paths, methods, plans and tenants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    pub(super) tier_set: u32,
    /// The endpoint and the method.
    pub(super) scope: u32,
}

impl Selection {
    /// That of a rule with one tier set and one scope.
    pub(super) const ONLY: Self = Self { tier_set: 0, scope: 0 };
}

/// What a rule counts separately.
#[derive(Debug)]
pub(crate) struct RuleKeys {
    /// The methods that the rule is for; empty for all.
    methods: Vec<Box<str>>,
    /// The methods that have their own counters; empty where all share one.
    counted_methods: Vec<Box<str>>,
    /// Patterns, then routes; only `""` where all share one counter.
    endpoints: Vec<Box<str>>,
    /// One for each endpoint and counted method, and for all other methods.
    scopes: Vec<Scope>,
    /// Whether callers have counters of their own, by tenant or by other keys.
    pub(super) per_tenant: bool,
    pub(super) counts_tenant: bool,
    /// The keys beside the tenant, in the rule's order.
    pub(super) names: Box<[Arc<str>]>,
}

impl RuleKeys {
    /// The scope of all requests, where the rule is for all methods, and tells requests apart
    /// by their tenant at most.
    pub(super) fn only_scope(&self) -> Option<Scope> {
        match &*self.scopes {
            [scope] if self.names.is_empty() && self.methods.is_empty() => Some(*scope),
            _ => None,
        }
    }

    pub(super) fn new(id: RuleName, rule: &Rule) -> Self {
        let patterns: Vec<&str> = rule.matches.paths.iter().chain(&rule.matches.routes).map(String::as_str).collect();
        let per_endpoint = counts_per(rule, &Dimension::Endpoint) && !patterns.is_empty();
        let endpoints: Vec<Box<str>> = match per_endpoint {
            true => patterns.iter().map(|&pattern| pattern.into()).collect(),
            false => vec!["".into()],
        };
        let methods: Vec<Box<str>> = rule.matches.methods.iter().map(|method| method.as_str().into()).collect();
        let counted_methods = counted_methods(rule);
        let name =
            |dimension: &Dimension| if let Dimension::Key(name) = dimension { Some(Arc::clone(name)) } else { None };
        let names: Box<[_]> = rule.per.iter().flatten().filter_map(name).collect();
        let scopes = endpoints
            .iter()
            .flat_map(|endpoint| {
                let methods = counted_methods.iter().map(|method| &**method).chain([""]);
                methods.map(move |method| Scope::new(&[id, endpoint, method]))
            })
            .collect();
        Self {
            methods,
            counted_methods,
            endpoints,
            scopes,
            per_tenant: counts_per(rule, &Dimension::Tenant) || !names.is_empty(),
            counts_tenant: counts_per(rule, &Dimension::Tenant),
            names,
        }
    }

    /// Whether a caller is identified by several keys together.
    pub(super) fn has_several(&self) -> bool {
        self.names.len() + usize::from(self.counts_tenant && !self.names.is_empty()) > 1
    }

    pub(super) fn takes(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|named| **named == *self.named(method))
    }

    /// The method under which the rule takes and counts a request. Servers
    /// answer HEAD by their GET handler, so HEAD is GET unless the rule names
    /// it.
    fn named<'m>(&self, method: &'m str) -> &'m str {
        let is_get =
            method == "HEAD" && !self.methods.is_empty() && !self.methods.iter().any(|named| **named == *"HEAD");
        if is_get { "GET" } else { method }
    }

    #[allow(clippy::cast_possible_truncation, reason = "validation bounds patterns and methods")]
    pub(super) fn select(&self, tier_set: u32, pattern: usize, method: &str) -> Selection {
        if let [_] = *self.scopes {
            return Selection { tier_set, scope: 0 };
        }
        // All patterns may share a counter, and a rule that a layer names may apply without a
        // pattern that matches.
        let endpoint = if pattern < self.endpoints.len() { pattern } else { 0 };
        Selection { tier_set, scope: self.scope_index(endpoint, self.method_index(method)) as u32 }
    }

    /// Methods without a counter of their own share the last index.
    fn method_index(&self, method: &str) -> usize {
        let (counted, method) = (&self.counted_methods, self.named(method));
        counted.iter().position(|counted| **counted == *method).unwrap_or(counted.len())
    }

    pub(super) fn key(&self, selection: Selection, tenant: Option<TenantId<'_>>) -> Fingerprint {
        let scope = self.scopes[selection.scope as usize];
        if self.per_tenant { scope.key(tenant) } else { scope.shared() }
    }

    fn scope_index(&self, endpoint: usize, method: usize) -> usize {
        endpoint * (self.counted_methods.len() + 1) + method
    }

    pub(super) fn endpoint(&self, selection: Selection) -> &str {
        &self.endpoints[selection.scope as usize / (self.counted_methods.len() + 1)]
    }

    pub(super) fn method(&self, selection: Selection) -> &str {
        let method = selection.scope as usize % (self.counted_methods.len() + 1);
        self.counted_methods.get(method).map_or("", |method| method)
    }

    /// The key that another instance names by these texts; `None` where this
    /// rule does not count by such keys.
    pub(crate) fn find(
        &self,
        per_tenant: bool,
        tenant: Option<TenantId<'_>>,
        endpoint: &str,
        method: &str,
    ) -> Option<Fingerprint> {
        let endpoint = self.endpoints.iter().position(|own| **own == *endpoint)?;
        let method = match method {
            "" => self.counted_methods.len(),
            method => self.counted_methods.iter().position(|own| **own == *method)?,
        };
        let scope = self.scopes.get(self.scope_index(endpoint, method))?;
        match (self.per_tenant, per_tenant, tenant) {
            (true, true, tenant) => Some(scope.key(tenant)),
            (false, false, None) => Some(scope.shared()),
            _ => None,
        }
    }
}

fn counts_per(rule: &Rule, dimension: &Dimension) -> bool {
    rule.per.as_ref().is_none_or(|per| per.contains(dimension))
}

/// The methods that have their own counters; empty where all share one.
fn counted_methods(rule: &Rule) -> Vec<Box<str>> {
    match (counts_per(rule, &Dimension::Method), rule.matches.methods.is_empty()) {
        (true, false) => rule.matches.methods.iter().map(|method| method.as_str().into()).collect(),
        (true, true) if rule.per.is_some() => STANDARD_METHODS.map(Into::into).into(),
        _ => Vec::new(),
    }
}

/// Counted separately where a rule counts per method and names none.
pub(super) const STANDARD_METHODS: [&str; 9] =
    ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT"];
