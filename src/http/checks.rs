//! Looks for mistakes in how a layer is set up, at its first requests only:
//! [`Checks`].
//!
//! It looks at requests; `Policy::warnings` looks at the policy alone. The invariant: after the first requests, a request costs one load and a branch,
//! except where a strict layer rejects every request.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use http::{Extensions, HeaderValue, header::FORWARDED};

use super::{RequestHead, client_ip::peer, tenant::TenantExtractor};
use crate::{
    descriptor::{Descriptor, MissingTenant, TenantId},
    limiter::RateLimiter,
    observe::{Mistake, Reported},
    sync::lock,
};

/// The requests of a layer that are looked at.
const FIRST: u32 = 1_000;

/// So many requests of a rule that lack one of its keys are a mistake, if none had it.
const LACKING: u32 = 20;

/// In place of a number of requests without a key: one had it.
const FOUND: u32 = u32::MAX;

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
    /// The only rule that it applies.
    pub(super) rule: Option<&'a str>,
    /// The request; `None` if it is not counted.
    pub(super) counted_as: Option<Descriptor<'a>>,
    /// The names of the keys that it looks for.
    pub(super) keys: Vec<&'a str>,
    pub(super) extractor: &'a dyn TenantExtractor,
    /// What the user has chosen, and so cannot be a mistake: the extractor; and what happens
    /// to requests without a tenant or a key.
    pub(super) chooses_tenant: bool,
    pub(super) chooses_missing: bool,
    /// Whether a mistake rejects requests.
    pub(super) is_strict: bool,
}

/// What was looked at, and what was reported.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The requests that were looked at, and were not rejected.
    passed: AtomicU32,
    reported: Reported,
    /// The tenants that the policy names.
    tenants: OnceLock<HashSet<String>>,
    /// By rule and key: the requests without it.
    without_key: Mutex<HashMap<String, u32>>,
}

impl Checks {
    pub(super) fn are_open(&self) -> bool {
        self.passed.load(Ordering::Relaxed) < FIRST
    }

    /// Looks at a request. Returns whether to reject it.
    pub(super) fn look(&self, setup: &Setup<'_>, head: &RequestHead<'_>, limiter: &RateLimiter) -> bool {
        // A strict layer rejects for as long as it stays wrong.
        let rejects = self.is_wrong(setup, head, limiter) && setup.is_strict;
        if !rejects {
            self.passed.fetch_add(1, Ordering::Relaxed);
        }
        rejects
    }

    /// Whether a mistake makes every request wrong.
    fn is_wrong(&self, setup: &Setup<'_>, head: &RequestHead<'_>, limiter: &RateLimiter) -> bool {
        let report = |mistake, detail: &dyn fmt::Display| self.reported.report(mistake, detail);
        let seen = head.extensions().get::<SeenBy>();
        if seen.is_some_and(|seen| seen.contains(limiter, setup.rule)) {
            report(Mistake::LayeredTwice, &head.uri().path());
            return true;
        }
        if let Some(id) = setup.rule.filter(|id| !limiter.has_rule(id)) {
            report(Mistake::UnknownRule, &format_args!("rule `{id}`"));
            return true;
        }
        let is_wrong = setup.counted_as.as_ref().is_some_and(|request| self.keys_are_wrong(setup, request, limiter));
        if !limiter.counts_tenants() {
            return is_wrong;
        }
        let tenant = setup.extractor.extract(head);
        let proxies = setup.extractor.proxies();
        let headers = head.headers();
        let is_forwarded = || headers.contains_key(FORWARDED) || headers.contains_key("x-forwarded-for");
        match &tenant {
            None if proxies.is_some() && peer(head).is_none() => {
                report(Mistake::NoPeerAddress, &"no `ConnectInfo` and no `PeerAddr` in the extensions");
                return true;
            }
            None if setup.chooses_tenant && !setup.chooses_missing && !setup.extractor.is_ambiguous(head) => {
                report(Mistake::NoTenant, &head.uri().path());
            }
            Some(tenant) if matches!(tenant.id(), TenantId::Address(_)) => match proxies {
                Some(proxies) if !proxies.trust_any() && is_forwarded() => {
                    report(Mistake::UntrustedProxy, &"X-Forwarded-For or Forwarded");
                }
                Some(proxies) => {
                    if let Some((address, reason)) = proxies.suspect(head) {
                        report(Mistake::SuspectProxy, &format_args!("{address}: {reason}"));
                    }
                }
                None => {}
            },
            _ => {}
        }
        let known = self.tenants.get_or_init(|| limiter.named_tenants());
        let id = tenant.as_ref().map(|tenant| tenant.whole_id().to_string());
        if !known.is_empty() && id.is_none_or(|id| !known.contains(&id)) {
            let names = |value: &HeaderValue| value.to_str().is_ok_and(|value| known.contains(value.trim()));
            if let Some((name, _)) = headers.iter().find(|(_, value)| names(value)) {
                report(Mistake::OtherHeader, name);
            }
        }
        is_wrong
    }

    /// Whether a rule counts the request by a key that the layer does not look for, or that
    /// no request had, and no setting says what happens then. A strict layer does not wait for
    /// more requests without the key.
    fn keys_are_wrong(&self, setup: &Setup<'_>, request: &Descriptor<'_>, limiter: &RateLimiter) -> bool {
        let mut without_key = lock(&self.without_key);
        let mut is_wrong = false;
        limiter.keys_asked(request, |rule, key, is_found| {
            let (choice, detail) = (rule.keys.on_missing_key(request), format!("rule `{}`, key `{key}`", rule.id));
            if !setup.keys.contains(&key) {
                let is_meant = match choice {
                    Some(MissingTenant::Allow) => true,
                    Some(MissingTenant::Anonymous) => rule.keys.tells_apart_by(&setup.keys),
                    Some(MissingTenant::Reject) | None => false,
                };
                if !is_meant {
                    self.reported.report(Mistake::UnknownKey, &detail);
                    is_wrong = true;
                }
                return;
            }
            let count = without_key.entry(detail.clone()).or_default();
            *count = if is_found { FOUND } else { count.saturating_add(1) };
            if *count < FOUND && (*count >= LACKING || setup.is_strict && choice.is_none()) {
                self.reported.report(Mistake::KeyNeverFound, &detail);
                is_wrong |= choice.is_none();
            }
        });
        is_wrong
    }
}
