//! Who a request is counted as under a rule: its tenant, one of its keys, or
//! several of them together.
//!
//! Several become one name, as everything that counts and reports knows one
//! tenant for each key. Invariant: different combinations have different names.

use std::{fmt::Write, sync::Arc};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{compiled::CompiledRule, rule_keys::RuleKeys};
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

/// Signs that separate the parts of a name.
const RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'&').add(b'=').add(b'@').add(b'!');

/// One name of several keys: `acme&ip=@192.0.2.7`; `!` for a key that is missing. `None`
/// if all are.
pub(super) fn combine(keys: &RuleKeys, tenant: Option<TenantId<'_>>, descriptor: &Descriptor<'_>) -> Option<String> {
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
    if keys.counts_tenant {
        push("", tenant);
    }
    for key in &keys.names {
        push(key, found(descriptor.find_key(key)));
    }
    has_any.then_some(name)
}

pub(super) fn found(key: Key<'_>) -> Option<TenantId<'_>> {
    if let Key::Found(id) = key { Some(id) } else { None }
}

impl CompiledRule {
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
        if self.keys.counts_tenant {
            check(tenant.is_none(), descriptor.ambiguous_tenant, descriptor.missing_tenant)?;
        }
        for key in &self.keys.names {
            let key = descriptor.find_key(key);
            let choice = self.on_missing_key(descriptor).unwrap_or(MissingTenant::Allow);
            check(found(key).is_none(), key == Key::Ambiguous, choice)?;
        }
        Ok(match &*self.keys.names {
            [] => tenant,
            [key] if !self.keys.counts_tenant => found(descriptor.find_key(key)),
            _ => combined(),
        })
    }

    /// What was chosen for requests without one of the rule's keys, to which it does not
    /// apply by default: by the rule, else by the caller.
    pub(crate) fn on_missing_key(&self, descriptor: &Descriptor<'_>) -> Option<MissingTenant> {
        self.options.on_missing_key.or(descriptor.missing_key)
    }

    /// Whether requests without a key still differ by the tenant, or by one of these keys.
    pub(crate) fn tells_apart_by(&self, keys: &[&str]) -> bool {
        self.keys.counts_tenant || self.keys.names.iter().any(|name| keys.contains(&&**name))
    }

    /// Whether the rule does not apply to the request, since that lacks one of its keys.
    pub(super) fn is_skipped(&self, descriptor: &Descriptor<'_>) -> bool {
        let is_missing = |key: &Arc<str>| descriptor.find_key(key) == Key::Missing;
        self.keys.names.iter().any(is_missing)
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
        let (tenant, caller) = match &self.options.tenant_param {
            Some(_) => (of_path, caller.filter(|id| matches!(id, TenantId::Address(_)))),
            None => (caller, None),
        };
        let keys = self.keys.names.iter().filter_map(|key| descriptor.whole_key(key));
        tenant.into_iter().chain(keys).chain(caller)
    }
}
