//! What a page for operators shows of a limiter, beside its [`Stats`](super::Stats).
//!
//! It renders nothing. Invariant: it only reads, but for the counting of each rule, which
//! starts when somebody is going to ask for it.

use std::sync::Arc;

use super::{current::Replacements, state::RateLimiter};
use crate::{
    observe::TopTenant,
    overload::Readings,
    policy::{Carried, CompiledPolicy},
};

impl RateLimiter {
    /// Counts the requests of each rule from now on.
    pub(crate) fn count_rules(&self) {
        let _replacing = self.inner.current.replacing();
        let policy = self.inner.current.policy();
        // The same policy compiles again.
        if let Ok(counting) = policy.with(Carried { counts_rules: true, ..policy.carried.clone() }) {
            self.inner.current.set(counting);
        }
    }

    /// The policy in force, and how it came to be.
    pub(crate) fn in_force(&self) -> (Arc<CompiledPolicy>, Replacements) {
        let now = self.now();
        let (policy, replacements) = {
            let replacing = self.inner.current.replacing();
            (self.inner.current.policy(), *replacing)
        };
        (self.without_expired(&policy, now).unwrap_or(policy), replacements)
    }

    /// The name of the backend's type, and what it says of itself.
    pub(crate) fn backend_state(&self) -> (String, Vec<(&'static str, String)>) {
        let backend = &*self.inner.backend;
        // Its settings may be secrets.
        let name = format!("{backend:?}").chars().take_while(|char| char.is_alphanumeric()).collect();
        (name, backend.extension().map_or_else(Vec::new, |extension| extension.state()))
    }

    /// The [top](Self::top) tenants, if they are counted.
    pub(crate) fn counted_top(&self, n: usize) -> Option<Vec<TopTenant>> {
        self.inner.top.is_some().then(|| self.top(n))
    }

    /// What the signals of overload say, if the policy has any.
    pub(crate) fn overload_readings(&self, policy: &CompiledPolicy) -> Option<Readings> {
        let overload = policy.policy.overload.as_ref()?;
        Some(self.inner.shedder.get_or_init(Box::default).readings(overload))
    }
}
