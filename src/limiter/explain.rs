//! What a policy does with a request, for a person who asks why: [`RateLimiter::explain`].
//!
//! It decides nothing: the policy says which rules apply, [`RateLimiter::peek`] what is
//! left. Invariant: nothing is charged, and no metric counts it.

use std::fmt;

use super::RateLimiter;
use crate::{
    decision::{Decision, TierStatus},
    descriptor::Descriptor,
    policy::RuleExplanation,
    quota::{Algorithm, Quota},
    time::{in_one_unit, nanos},
};

impl RateLimiter {
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
