//! By what a rule counts: the keys of its counters, and who a request is counted as,
//! [`RuleKeys`].
//!
//! A key stands for the rule, an endpoint, a method and a caller: the tenant, one of the
//! request's keys, or several of them together, which become one name. It does not choose
//! limits: all keys of a rule have the same tier sets. Invariant: different combinations have
//! different names.

use std::{fmt::Write, sync::Arc};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{rule::Rule, settings::Dimension};
use crate::{
    decision::{RateLimitedKind, RuleName},
    descriptor::{Descriptor, Key, MissingTenant, TenantId, TenantRef},
    fingerprint::{Fingerprint, Scope},
};

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
    /// What the rule chose for requests without one of its keys.
    on_missing: Option<MissingTenant>,
    /// Whether the tenant is a part of the path.
    is_tenant_of_path: bool,
}

impl RuleKeys {
    pub(super) fn new(id: RuleName, rule: &Rule) -> Self {
        let per_endpoint = counts_per(rule, &Dimension::Endpoint) && !rule.matches.is_everywhere();
        let endpoints: Vec<Box<str>> = match per_endpoint {
            true => rule.matches.patterns().map(Into::into).collect(),
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
            on_missing: rule.on_missing_key,
            is_tenant_of_path: rule.tenant_param.is_some(),
        }
    }

    /// The scope of all requests, where the rule is for all methods, and tells requests apart
    /// by their tenant at most.
    pub(super) fn only_scope(&self) -> Option<Scope> {
        match &*self.scopes {
            [scope] if self.names.is_empty() && self.methods.is_empty() => Some(*scope),
            _ => None,
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

    /// The index of the scope of a request: of its endpoint and method. It is valid for another
    /// rule with the same paths and methods, too.
    #[allow(clippy::cast_possible_truncation, reason = "validation bounds patterns and methods")]
    pub(super) fn scope(&self, pattern: usize, method: &str) -> u32 {
        if let [_] = *self.scopes {
            return 0;
        }
        // All patterns may share a counter, and a rule that a layer names may apply without a
        // pattern that matches.
        let endpoint = if pattern < self.endpoints.len() { pattern } else { 0 };
        // Methods without a counter of their own share the last index.
        let (counted, method) = (&self.counted_methods, self.named(method));
        let method = counted.iter().position(|counted| **counted == *method).unwrap_or(counted.len());
        self.scope_index(endpoint, method) as u32
    }

    pub(super) fn key(&self, scope: u32, tenant: Option<TenantId<'_>>) -> Fingerprint {
        let scope = self.scopes[scope as usize];
        if self.per_tenant { scope.key(tenant) } else { scope.shared() }
    }

    fn scope_index(&self, endpoint: usize, method: usize) -> usize {
        endpoint * (self.counted_methods.len() + 1) + method
    }

    pub(super) fn endpoint(&self, scope: u32) -> &str {
        &self.endpoints[scope as usize / (self.counted_methods.len() + 1)]
    }

    pub(super) fn method(&self, scope: u32) -> &str {
        let method = scope as usize % (self.counted_methods.len() + 1);
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

/// # Who a request is counted as
impl RuleKeys {
    /// Who the request is counted as. `combined` is the name of several keys together.
    pub(super) fn identify<'a>(
        &self,
        tenant: Option<TenantId<'a>>,
        descriptor: &'a Descriptor<'_>,
        combined: impl FnOnce() -> Option<TenantId<'a>>,
    ) -> Result<Option<TenantId<'a>>, MissingIdentity> {
        let check = |is_missing: bool, is_ambiguous: bool, choice: MissingTenant| match choice {
            _ if !is_missing => Ok(()),
            _ if is_ambiguous => Err(MissingIdentity::Rejected(RateLimitedKind::AmbiguousTenant)),
            MissingTenant::Anonymous => Ok(()),
            MissingTenant::Allow => Err(MissingIdentity::Unlimited),
            MissingTenant::Reject => Err(MissingIdentity::Rejected(RateLimitedKind::MissingTenant)),
        };
        if self.counts_tenant {
            check(tenant.is_none(), descriptor.ambiguous_tenant, descriptor.on_missing.unwrap_or_default())?;
        }
        for key in &self.names {
            let key = descriptor.find_key(key);
            let choice = self.on_missing_key(descriptor).unwrap_or(MissingTenant::Allow);
            check(key.id().is_none(), key == Key::Ambiguous, choice)?;
        }
        Ok(match &*self.names {
            [] => tenant,
            [key] if !self.counts_tenant => descriptor.find_key(key).id(),
            _ => combined(),
        })
    }

    /// What was chosen for requests without one of the rule's keys, to which it does not
    /// apply by default: by the rule, else by the caller.
    pub(crate) fn on_missing_key(&self, descriptor: &Descriptor<'_>) -> Option<MissingTenant> {
        self.on_missing.or(descriptor.on_missing)
    }

    /// Whether requests without a key still differ by the tenant, or by one of these keys.
    pub(crate) fn tells_apart_by(&self, keys: &[&str]) -> bool {
        self.counts_tenant || self.names.iter().any(|name| keys.contains(&&**name))
    }

    /// Whether the rule does not apply to the request, since that lacks one of its keys.
    pub(super) fn is_skipped(&self, descriptor: &Descriptor<'_>) -> bool {
        let is_missing = |key: &Arc<str>| descriptor.find_key(key) == Key::Missing;
        self.names.iter().any(is_missing)
            && matches!(self.on_missing_key(descriptor), None | Some(MissingTenant::Allow))
    }

    /// Who the request is to the rule's exceptions, in the order in which they count: its
    /// tenant, its keys, and where the tenant is a part of the path, the caller's address.
    /// Addresses are whole. A caller's name is not compared with those of tenants in
    /// paths, as callers might choose it.
    pub(super) fn identities<'a>(
        &'a self,
        of_path: Option<TenantId<'a>>,
        descriptor: &'a Descriptor<'_>,
    ) -> impl Iterator<Item = TenantId<'a>> {
        let caller = descriptor.tenant.as_ref().map(TenantRef::whole_id);
        let (tenant, caller) = match self.is_tenant_of_path {
            true => (of_path, caller.filter(|id| matches!(id, TenantId::Address(_)))),
            false => (caller, None),
        };
        let keys = self.names.iter().filter_map(|key| descriptor.whole_key(key));
        tenant.into_iter().chain(keys).chain(caller)
    }

    /// One name of several keys: `acme&ip=@192.0.2.7`; `!` for a key that is missing. `None`
    /// if all are.
    pub(super) fn combine(&self, tenant: Option<TenantId<'_>>, descriptor: &Descriptor<'_>) -> Option<String> {
        let mut name = String::new();
        let mut has_any = false;
        let mut push = |key: &str, id: Option<TenantId<'_>>| {
            has_any |= id.is_some();
            let separator = if name.is_empty() { "" } else { "&" };
            let equals = if key.is_empty() { "" } else { "=" };
            // Writing to a string cannot fail.
            let _ = match id {
                Some(TenantId::Name(id)) => {
                    write!(name, "{separator}{key}{equals}{}", utf8_percent_encode(id, RESERVED))
                }
                Some(TenantId::Address(id)) => write!(name, "{separator}{key}{equals}@{id}"),
                None => write!(name, "{separator}{key}{equals}!"),
            };
        };
        if self.counts_tenant {
            push("", tenant);
        }
        for key in &self.names {
            push(key, descriptor.find_key(key).id());
        }
        has_any.then_some(name)
    }
}

/// What a rule does with a request that lacks a part of its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingIdentity {
    /// The request is rejected.
    Rejected(RateLimitedKind),
    /// The rule does not apply.
    Unlimited,
}

/// Signs that separate the parts of a name.
const RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'&').add(b'=').add(b'@').add(b'!');
