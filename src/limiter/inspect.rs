//! What a limiter shows of itself: its counts ([`Stats`]), its [top](RateLimiter::top)
//! tenants, what it does with a request ([`RateLimiter::explain`]), and what an operators' page
//! needs beside them.
//!
//! It decides nothing: the policy says which rules apply, [`RateLimiter::peek`] what is left.
//! Invariant: it only reads. Nothing is charged, and no metric counts it.

use std::fmt;
#[cfg(feature = "admin")]
use std::sync::Arc;

#[cfg(feature = "admin")]
use super::current::Replacements;
use super::state::RateLimiter;
use crate::{
    backend::{Backend, Usage},
    decision::{Decision, TierStatus},
    descriptor::Descriptor,
    observe::{RequestResult, TopTenant, TopTenants},
    policy::RuleExplanation,
    quota::{Algorithm, Quota},
    time::{in_one_unit, nanos},
};
#[cfg(feature = "admin")]
use crate::{overload::Readings, policy::CompiledPolicy};

impl RateLimiter {
    /// The decisions since the limiter was built, and its current state. Sums up
    /// the counters of all threads: for a status page, not for a hot path.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Self { inner } = self;
        let totals = inner.current.totals();
        let count = |result: RequestResult| totals[result as usize];
        Stats {
            allowed: count(RequestResult::Allowed),
            delayed: count(RequestResult::Delayed),
            rejected: count(RequestResult::Rejected),
            shadow_allowed: count(RequestResult::ShadowAllowed),
            shadow_rejected: count(RequestResult::ShadowRejected),
            failed_open: count(RequestResult::FailedOpen),
            failed_closed: count(RequestResult::FailedClosed),
            failed_local: count(RequestResult::FailedLocal),
            shed: count(RequestResult::Shed),
            waiting: inner.waiters.waiting(),
            permits: inner.permits.value(),
            backend: inner.backend.usage(),
            fallback: inner.fallback.get().map(|engine| engine.usage()).unwrap_or_default(),
        }
    }

    /// For each rule of the policy in force, the `n` tenants that used most units, the `n`
    /// with most rejections, and of those that are counted, the `n` with least left: up to
    /// `3 * n`, those with most units first. Empty unless
    /// [`top_tenants`](super::RateLimiterBuilder::top_tenants) asked for it.
    ///
    /// Rules count here whose counters differ by tenant or another key, and `fair` ones. Units are
    /// those charged in advance: what is settled, refunded or
    /// added afterwards is left out. Each rejection counts, and of admitted requests
    /// all, until a thread has decided 512 in a minute; then fewer and fewer, down to one of 128,
    /// by their cost.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder().policy(Quota::per_hour(2)).top_tenants(256).build()?;
    /// for tenant in ["acme", "initech", "initech", "initech"] {
    ///     let _ = limiter.try_check(&Descriptor::new("/").tenant(tenant));
    /// }
    /// let top = limiter.top(1);
    /// assert_eq!((top[0].units, top[0].rejections, top[0].least_remaining), (2, 1, 0.0));
    /// assert_eq!(top[0].tenant.as_ref().unwrap().id().to_string(), "initech");
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn top(&self, n: usize) -> Vec<TopTenant> {
        let (policy, now) = (self.inner.current.policy(), self.now());
        let of_rule = |top| policy.rules.iter().flat_map(move |rule| TopTenants::of_rule(top, rule.id, n, now));
        self.inner.top.as_deref().into_iter().flat_map(of_rule).collect()
    }

    /// Which rules apply to a request and why the others do not, where their tiers come
    /// from, and what each counter has left. Charges nothing: see [`peek`](Self::peek).
    ///
    /// What rules in shadow mode have left is not shown: the [decision's
    /// shadows](Decision::shadows) have it. [Overload](crate::overload) is not looked at: it may
    /// shed the request all the same. As for a `peek`, a rule that is named and that the policy
    /// does not have is a rejection.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let search = Rule::new("search").path("/search").tier(Quota::per_minute(60));
    /// let login = Rule::new("login").path("/login").tier(Quota::per_minute(5));
    /// let limiter = RateLimiter::new(Policy::new().rule(search).rule(login)).unwrap();
    ///
    /// let explanation = limiter.explain(&Descriptor::new("/search").tenant("acme")).await;
    /// let lines = [
    ///     "allowed",
    ///     "search: applies, by /search",
    ///     "    counted by: tenant `acme`, endpoint `/search`",
    ///     "    search: 60 per 1m by token-bucket, from the rule; 60 left",
    ///     "login: does not match the path: it is for /login",
    /// ];
    /// assert_eq!(explanation.to_string(), lines.join("\n"));
    /// # }
    /// ```
    pub async fn explain(&self, descriptor: &Descriptor<'_>) -> Explanation {
        let policy = self.inner.current.policy();
        let policy = self.without_expired(&policy, self.now()).unwrap_or(policy);
        Explanation { rules: policy.explain(descriptor), decision: self.peek(descriptor).await }
    }
}

/// For a page for operators.
#[cfg(feature = "admin")]
impl RateLimiter {
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

/// The decisions of a limiter since it was built, and its current state.
///
/// Requests to which no rule applied are not counted.
///
/// ```
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
/// for _ in 0..3 {
///     limiter.check(&Descriptor::new("/export").tenant("acme")).await;
/// }
/// let stats = limiter.stats();
/// assert_eq!((stats.allowed, stats.rejected), (1, 2));
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Requests that were admitted at once.
    pub allowed: u64,
    /// Requests that were admitted after a wait.
    pub delayed: u64,
    /// Requests that were rejected.
    pub rejected: u64,
    /// How often a shadow rule would have admitted.
    pub shadow_allowed: u64,
    /// How often a shadow rule would have rejected.
    pub shadow_rejected: u64,
    /// Requests that were admitted because the backend failed.
    pub failed_open: u64,
    /// Requests that were rejected because the backend failed.
    pub failed_closed: u64,
    /// Requests that the fallback limiter admitted while the backend failed.
    /// Those that it rejected are counted in `rejected`.
    pub failed_local: u64,
    /// Requests that were rejected before any rule, since the process was
    /// [overloaded](crate::overload).
    pub shed: u64,
    /// Requests that are waiting.
    pub waiting: usize,
    /// Admitted requests that keep a lease: [`Permit`](crate::Permit)s, and
    /// requests in flight under a concurrency limit. If a layer
    /// [names its rule](crate::RateLimitLayer::rule), those of all layers until
    /// their response.
    pub permits: usize,
    /// The counters of the backend.
    pub backend: Usage,
    /// The counters of the fallback limiter
    /// ([`FailureMode::Local`](crate::FailureMode::Local)).
    pub fallback: Usage,
}

impl Stats {
    /// The number of counters in this process. Idle ones count until they are removed, which
    /// happens when others are added.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.backend.keys + self.fallback.keys
    }
}

/// What a policy does with a request, and why: see [`RateLimiter::explain`].
///
/// `Display` writes lines for a person, and with the feature `serde` it is `Serialize`. Both
/// name tenants and keys whole; `Debug` does not.
#[derive(Clone)]
#[must_use]
pub struct Explanation {
    rules: Vec<RuleExplanation>,
    decision: Decision,
}

impl Explanation {
    /// The decision that the request would get now.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The tiers of a rule's charge, each with what is left of it where that is known: a
    /// backend that failed, and a key that cools down, say nothing.
    fn tiers<'a>(&'a self, rule: &'a RuleExplanation) -> impl Iterator<Item = (TierStatus, bool)> {
        let mut known = self.decision.tiers().iter().filter(|tier| tier.rule() == rule.rule);
        let tiers = rule.charge.iter().flat_map(|charge| &charge.tiers);
        tiers.map(move |tier| known.next().map_or((*tier, false), |known| (*known, true)))
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decision.rejection() {
            None => write!(f, "allowed")?,
            Some(kind) => write!(f, "rejected: {kind:?}")?,
        }
        if let Some(after) = self.decision.retry_after() {
            write!(f, ", retry after {after:?}")?;
        }
        for rule in &self.rules {
            write!(f, "\n{}: ", rule.rule)?;
            let charge = match &rule.charge {
                Ok(charge) => charge,
                Err(reason) => {
                    write!(f, "{}", reason.escape_debug())?;
                    continue;
                }
            };
            write!(f, "applies")?;
            if let Some(pattern) = &charge.pattern {
                write!(f, ", by {pattern}")?;
            }
            if rule.is_shadow {
                write!(f, ", in shadow mode: it rejects nothing")?;
            }
            let counter: Vec<_> =
                charge.counter.iter().map(|(name, value)| format!("{name} `{}`", value.escape_debug())).collect();
            match counter.is_empty() {
                true => write!(f, "\n    one counter for all requests")?,
                false => write!(f, "\n    counted by: {}", counter.join(", "))?,
            }
            if charge.cost != 1 {
                write!(f, "\n    cost: {}", charge.cost)?;
            }
            for (tier, is_known) in self.tiers(rule) {
                write!(f, "\n    {}: {}, from {}", tier.name(), words(tier.quota()), charge.tiers_from.escape_debug())?;
                if is_known {
                    write!(f, "; {} left", tier.remaining())?;
                }
                if is_known && !tier.reset().is_zero() {
                    write!(f, ", reset in {:?}", tier.reset())?;
                }
            }
        }
        Ok(())
    }
}

/// Such as `100 per 1m by token-bucket with a burst of 20`.
pub(crate) fn words(quota: &Quota) -> String {
    let (limit, algorithm) = (quota.limit(), quota.counted_by());
    if algorithm == Algorithm::Concurrency {
        return format!("{limit} in flight");
    }
    let window = if quota.is_month() { Some("month".to_owned()) } else { in_one_unit(nanos(quota.window())) };
    let window = window.unwrap_or_default();
    let burst = quota.explicit_burst().map(|burst| format!(" with a burst of {burst}")).unwrap_or_default();
    format!("{limit} per {window} by {algorithm}{burst}")
}

impl fmt::Debug for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explanation").field("decision", &self.decision).finish_non_exhaustive()
    }
}

#[cfg(feature = "serde")]
mod json {
    //! The explanation as data: the text's content, under names.

    use serde::{Serialize, Serializer};
    use serde_json::{Map, Value, json};

    use super::{Explanation, RuleExplanation};

    impl Serialize for Explanation {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let explanation = json!({
                "allowed": self.decision.is_allowed(),
                "rejection": self.decision.rejection().map(|kind| format!("{kind:?}")),
                "retry_after_seconds": self.decision.retry_after().map(|after| after.as_secs_f64()),
                "rules": self.rules.iter().map(|rule| self.rule(rule)).collect::<Vec<_>>(),
            });
            explanation.serialize(serializer)
        }
    }

    impl Explanation {
        fn rule(&self, rule: &RuleExplanation) -> Value {
            let charge = match &rule.charge {
                Ok(charge) => charge,
                Err(reason) => return json!({ "rule": rule.rule, "applies": false, "reason": reason }),
            };
            let counter: Map<_, _> =
                charge.counter.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
            let tiers = self.tiers(rule).map(|(tier, is_known)| {
                json!({
                    "name": tier.name(),
                    "limit": tier.limit(),
                    "window_seconds": tier.window().as_secs_f64(),
                    "algorithm": tier.quota().counted_by().as_str(),
                    "burst": tier.quota().explicit_burst(),
                    "remaining": is_known.then(|| tier.remaining()),
                    "reset_seconds": is_known.then(|| tier.reset().as_secs_f64()),
                })
            });
            json!({
                "rule": rule.rule,
                "applies": true,
                "shadow": rule.is_shadow,
                "pattern": charge.pattern,
                "counter": counter,
                "cost": charge.cost,
                "tiers_from": charge.tiers_from,
                "tiers": tiers.collect::<Vec<_>>(),
            })
        }
    }
}
