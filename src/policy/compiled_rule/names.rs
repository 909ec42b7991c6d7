//! What a rule's keys are called, where others are to know them.

use http::Method;

use super::{CompiledRule, Place};
use crate::{descriptor::TenantId, fingerprint::Fingerprint};

impl CompiledRule {
    pub(crate) fn endpoint(&self, place: Place) -> &str {
        &self.endpoints[usize::from(place.endpoint)]
    }

    pub(crate) fn method(&self, place: Place) -> &str {
        self.counted_methods.get(usize::from(place.method)).map_or("", Method::as_str)
    }

    /// The key that these texts stand for; `None` where this rule tells other
    /// things apart.
    pub(crate) fn key_named(
        &self,
        (per_tenant, tenant): (bool, Option<TenantId<'_>>),
        endpoint: &str,
        method: &str,
    ) -> Option<Fingerprint> {
        let endpoint = self.endpoints.iter().position(|own| **own == *endpoint)?;
        let method = match method {
            "" => self.counted_methods.len(),
            method => self.counted_methods.iter().position(|own| own.as_str() == method)?,
        };
        let scope = self.scopes.get(endpoint * (self.counted_methods.len() + 1) + method)?;
        match (self.per_tenant, per_tenant, tenant) {
            (true, true, tenant) => Some(scope.key(tenant)),
            (false, false, None) => Some(scope.shared()),
            _ => None,
        }
    }
}
