//! Looks for mistakes in how a layer is set up, at its first requests only:
//! [`Checks`].
//!
//! It looks at requests; `Policy::warnings` looks at the policy alone. The invariant: after the first requests, a request costs one load and a branch,
//! except where a strict layer rejects every request.

use std::{
    collections::HashSet,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use http::{Extensions, HeaderMap, header::FORWARDED};

use super::{RequestHead, address::peer, tenant::TenantExtractor};
use crate::{
    descriptor::{Descriptor, TenantId},
    limiter::RateLimiter,
    observe::{Mistake, Reported},
};

/// The requests of a layer that are looked at.
const FIRST: u32 = 1_000;

/// In the extensions of requests that a layer has seen: which limiters, and of each
/// which rule, where the layer applies only one.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenBy(Vec<(u64, Option<Box<str>>)>);

impl SeenBy {
    pub(super) fn add(extensions: &mut Extensions, limiter: &RateLimiter, rule: Option<&str>) {
        let mut seen = extensions.remove::<Self>().unwrap_or_default();
        seen.0.push((limiter.id(), rule.map(Box::from)));
        extensions.insert(seen);
    }

    fn contains(&self, limiter: &RateLimiter, rule: Option<&str>) -> bool {
        self.0.iter().any(|(id, own)| *id == limiter.id() && own.as_deref() == rule)
    }
}

/// How a layer describes requests, as far as it can be mistaken.
pub(super) struct Setup<'a> {
    /// The request, as rules match it; `None` if it is not counted.
    pub(super) counted_as: Option<Descriptor<'a>>,
    /// The names of the keys that it looks for.
    pub(super) keys: Vec<&'a str>,
    pub(super) extractor: &'a dyn TenantExtractor,
    /// Whether the user chose the extractor.
    pub(super) is_chosen: bool,
    /// Whether the user chose what happens to requests without a tenant.
    pub(super) handles_missing: bool,
    /// Whether a mistake rejects requests.
    pub(super) is_strict: bool,
}

/// What is left to look at, and what was reported.
#[derive(Debug)]
pub(super) struct Checks {
    left: AtomicU32,
    reported: Reported,
    /// The tenants that the policy names.
    tenants: OnceLock<HashSet<String>>,
}

impl Default for Checks {
    fn default() -> Self {
        Self { left: AtomicU32::new(FIRST), reported: Reported::default(), tenants: OnceLock::new() }
    }
}

impl Checks {
    pub(super) fn are_open(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Looks at a request. Returns the mistake that makes every request wrong.
    pub(super) fn look(
        &self,
        setup: &Setup<'_>,
        head: &RequestHead<'_>,
        limiter: &RateLimiter,
        rule: Option<&str>,
    ) -> Option<Mistake> {
        let fatal = self.find(setup, head, limiter, rule);
        // A strict layer rejects for as long as it stays wrong.
        if fatal.is_none() || !setup.is_strict {
            let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        }
        fatal
    }

    fn find(
        &self,
        setup: &Setup<'_>,
        head: &RequestHead<'_>,
        limiter: &RateLimiter,
        rule: Option<&str>,
    ) -> Option<Mistake> {
        let seen = head.extensions().get::<SeenBy>();
        if seen.is_some_and(|seen| seen.contains(limiter, rule)) {
            self.reported.report(Mistake::LayeredTwice, &head.uri().path());
            return Some(Mistake::LayeredTwice);
        }
        if let Some(id) = rule.filter(|id| !limiter.has_rule(id)) {
            self.reported.report(Mistake::UnknownRule, &format_args!("rule `{id}`"));
            return Some(Mistake::UnknownRule);
        }
        let mut fatal = None;
        if let Some(descriptor) = &setup.counted_as
            && let Some((rule, key)) = limiter.key_beside(&setup.keys, descriptor)
        {
            self.reported.report(Mistake::UnknownKey, &format_args!("rule `{rule}`, key `{key}`"));
            fatal = Some(Mistake::UnknownKey);
        }
        if !limiter.counts_tenants() {
            return fatal;
        }
        let tenant = setup.extractor.extract(head);
        let reads = setup.extractor.address();
        match &tenant {
            None if reads.is_some() && peer(head).is_none() => {
                self.reported.report(Mistake::NoPeerAddress, &"no `ConnectInfo` and no `PeerAddr` in the extensions");
                return Some(Mistake::NoPeerAddress);
            }
            None if setup.is_chosen && !setup.handles_missing && !setup.extractor.is_ambiguous(head) => {
                self.reported.report(Mistake::NoTenant, &head.uri().path());
            }
            Some(tenant) if matches!(tenant.id(), TenantId::Address(_)) => {
                let is_forwarded =
                    |headers: &HeaderMap| headers.contains_key("x-forwarded-for") || headers.contains_key(FORWARDED);
                if reads == Some(false) && is_forwarded(head.headers()) {
                    self.reported.report(Mistake::UntrustedProxy, &"X-Forwarded-For or Forwarded");
                }
            }
            _ => {}
        }
        let known = self.tenants.get_or_init(|| limiter.named_tenants());
        let id = tenant.as_ref().map(|tenant| tenant.id().to_string());
        if !known.is_empty() && id.is_none_or(|id| !known.contains(&id)) {
            let names = |value: &http::HeaderValue| value.to_str().is_ok_and(|value| known.contains(value.trim()));
            if let Some((name, _)) = head.headers().iter().find(|(_, value)| names(value)) {
                self.reported.report(Mistake::OtherHeader, name);
            }
        }
        fatal
    }
}
