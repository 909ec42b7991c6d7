//! Who a request is counted as under a rule: its tenant, one of its keys, or
//! several of them together.
//!
//! Several become one name, as everything that counts and reports knows one
//! tenant for each key. Invariant: different combinations have different names.

use std::fmt::Write;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{compiled::CompiledPolicy, compiled_rule::CompiledRule, spelling::Spelling};
use crate::{
    decision::RateLimitedKind,
    descriptor::{Descriptor, Key, MissingTenant, TenantId, TenantRef},
};

/// What a rule does with a request that lacks a part of its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingIdentity {
    /// The request is rejected.
    Rejected(RateLimitedKind),
    /// The rule does not apply.
    Unlimited,
}

/// The names of requests that are counted by several keys together, each with
/// the index of its rule.
#[derive(Debug)]
pub(crate) struct Combined {
    names: Vec<(u32, String)>,
}

/// Signs that separate the parts of a name.
const RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'&').add(b'=').add(b'@').add(b'!');

impl Combined {
    /// Combines the keys for all rules that count by several.
    pub(super) fn new(policy: &CompiledPolicy, descriptor: &Descriptor<'_>, spelling: &Spelling) -> Self {
        let mut combined = Self { names: Vec::new() };
        for found in policy.matching(descriptor, spelling) {
            let rule = &policy.rules[found.rule as usize];
            if rule.keys.has_several() {
                let tenant = rule.tenant(
                    usize::from(found.pattern),
                    descriptor,
                    spelling.matched(&descriptor.path, found.resolved),
                );
                combined.names.extend(name(rule, tenant, descriptor).map(|name| (found.rule, name)));
            }
        }
        combined
    }

    fn get(&self, rule: &CompiledRule) -> Option<TenantId<'_>> {
        let named = self.names.iter().find(|(index, _)| *index as usize == rule.index);
        named.map(|(_, name)| TenantId::Name(name))
    }
}

/// `acme&ip=@192.0.2.7`; `!` for a key that is missing. `None` if all are.
fn name(rule: &CompiledRule, tenant: Option<TenantId<'_>>, descriptor: &Descriptor<'_>) -> Option<String> {
    let mut name = String::new();
    let mut has_any = false;
    let mut push = |key: &str, id: Option<TenantId<'_>>| {
        has_any |= id.is_some();
        let separator = if name.is_empty() { "" } else { "&" };
        let equals = if key.is_empty() { "" } else { "=" };
        // Writing to a string cannot fail.
        let _ = match id {
            Some(TenantId::Name(id)) => write!(name, "{separator}{key}{equals}{}", utf8_percent_encode(id, RESERVED)),
            Some(TenantId::Address(id)) => write!(name, "{separator}{key}{equals}@{id}"),
            None => write!(name, "{separator}{key}{equals}!"),
        };
    };
    if rule.keys.counts_tenant {
        push("", tenant);
    }
    for key in &rule.keys.names {
        push(key, found(descriptor.find_key(key)));
    }
    has_any.then_some(name)
}

fn found(key: Key<'_>) -> Option<TenantId<'_>> {
    if let Key::Found(id) = key { Some(id) } else { None }
}

/// What happens to a request without a tenant, or without a key.
pub(super) fn missing_identity(descriptor: &Descriptor<'_>, is_ambiguous: bool) -> Option<MissingIdentity> {
    if is_ambiguous {
        return Some(MissingIdentity::Rejected(RateLimitedKind::AmbiguousTenant));
    }
    match descriptor.missing_tenant {
        MissingTenant::Anonymous => None,
        MissingTenant::Allow => Some(MissingIdentity::Unlimited),
        MissingTenant::Reject => Some(MissingIdentity::Rejected(RateLimitedKind::MissingTenant)),
    }
}

impl CompiledRule {
    /// Who the request is counted as, by a rule that counts by keys.
    pub(super) fn identify<'a>(
        &self,
        tenant: Option<TenantId<'a>>,
        descriptor: &'a Descriptor<'_>,
        combined: Option<&'a Combined>,
    ) -> Result<Option<TenantId<'a>>, MissingIdentity> {
        let check = |is_missing: bool, is_ambiguous: bool| match missing_identity(descriptor, is_ambiguous) {
            Some(missing_identity) if is_missing => Err(missing_identity),
            _ => Ok(()),
        };
        if self.keys.counts_tenant {
            check(tenant.is_none(), descriptor.ambiguous_tenant)?;
        }
        for key in &self.keys.names {
            let key = descriptor.find_key(key);
            check(found(key).is_none(), key == Key::Ambiguous)?;
        }
        Ok(match &*self.keys.names {
            [key] if !self.keys.counts_tenant => found(descriptor.find_key(key)),
            _ => combined.and_then(|combined| combined.get(self)),
        })
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
        let (tenant, caller) = match &self.options.tenant_param {
            Some(_) => (of_path, caller.filter(|id| matches!(id, TenantId::Address(_)))),
            None => (caller, None),
        };
        let keys = self.keys.names.iter().filter_map(|key| descriptor.whole_key(key));
        tenant.into_iter().chain(keys).chain(caller)
    }
}
