//! How the policy in force is replaced: by another one, or by the same with other overrides
//! of tenants ([`RateLimiter::override_tiers`], [`RateLimiter::block`]) or other shares.
//!
//! It decides nothing: `policy` knows what an override means. Invariant: replacements follow
//! each other, so that none undoes what another has set.

use std::{sync::Arc, time::Duration};

use super::{current::Replacements, observe, state::RateLimiter};
#[cfg(feature = "admin")]
use crate::policy::Carried;
use crate::{
    backend::Extension,
    descriptor::{Tenant, TenantId},
    error::ConfigError,
    observe::log_ignored_level,
    policy::{CompiledPolicy, Consistency, Overrides, Policy, Rule},
    time::Timestamp,
};

impl RateLimiter {
    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.inner.current.policy().policy)
    }

    /// Replaces the policy, at once and for all clones.
    ///
    /// Each key keeps what it has *used* of a tier if the rule's id, the
    /// algorithm and the window stay the same; limits, bursts and all else may
    /// change. Rule ids are kept in memory as long as the process lives, so
    /// change what a rule contains rather than its id.
    ///
    /// An adaptive rate ([`Rule::adaptive_rate`](crate::Rule::adaptive_rate)) stays, within the
    /// new floor and ceiling.
    ///
    /// What is charged already is settled and refunded under the policy that
    /// charged it.
    ///
    /// Waiters keep the slots that they have reserved, and a raised limit counts
    /// them. The exception is a token bucket whose burst is raised by `n` units:
    /// it counts these slots as used at once, so at most `n` of them may come in
    /// addition to the new limit.
    ///
    /// Requests in a wait queue are decided again, in order and by the new
    /// limits, if every rule that they wait for stays comparable: enabled, in
    /// shadow mode or not as before, with the same paths, routes, methods and
    /// dimensions, and with plans and tenants of the same names. Otherwise the
    /// policy that decided them before still decides them. No request overtakes
    /// them meanwhile. The same holds for requests that wait for the end of a
    /// [cooldown](Self::cool_down).
    ///
    /// # Errors
    ///
    /// If the policy is invalid; then the old one stays in force.
    pub fn set_policy(&self, policy: impl Into<Policy>) -> Result<(), ConfigError> {
        self.install(CompiledPolicy::new(policy.into())?);
        self.inner.first_requests.restart(&self.policy());
        self.inner.queues.call_all();
        self.check_policy();
        Ok(())
    }

    /// Gives a tenant other tiers for a while, on this instance. They come before all others:
    /// those that the tenant brings, and those of the policy for it, its plan, and everyone.
    ///
    /// The tenant carries them: [`Tenant::tiers`] for each rule that counts by tenant,
    /// [`Tenant::tiers_for`] for one rule. Its plan and priority are ignored. They replace
    /// those of an earlier override, and keep what was used, as a reload does. A
    /// [`set_policy`](Self::set_policy), or a watch of its source, leaves them in force until
    /// they end, by the limiter's clock. If they do not suit a later policy, the tenant's
    /// requests are rejected with the kind
    /// [`InvalidTiers`](crate::RateLimitedKind::InvalidTiers).
    ///
    /// Where a path names the tenant (`tenant_from`), tiers above the rule's own count only
    /// for paths in the spelling that a router matches.
    ///
    /// # Errors
    ///
    /// If the tiers are invalid, if no rule would use them, or if 1,024 tenants have overrides.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter, Tenant};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    /// let limiter = RateLimiter::new(Quota::per_hour(1))?;
    /// limiter.override_tiers(Tenant::new("acme").tiers([Quota::per_hour(3)]), Duration::from_secs(600))?;
    ///
    /// let request = Descriptor::new("/export").tenant("acme");
    /// assert_eq!(limiter.check(&request).await.remaining(), Some(2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn override_tiers(&self, tenant: Tenant, ttl: Duration) -> Result<(), ConfigError> {
        self.change_overrides(|overrides, policy, now| {
            policy.check_limits(tenant.limits())?;
            overrides.set_tiers(tenant, now.saturating_add(ttl))
        })
    }

    /// Rejects all requests of a tenant for a while, on this instance, with the kind
    /// [`Blocked`](crate::RateLimitedKind::Blocked). Requests that no enforced rule applies to
    /// pass, as do those that wait already.
    ///
    /// An address is blocked as the layer counts it: an IPv6 one by its network, such as
    /// `2001:db8::` for its /64.
    ///
    /// # Errors
    ///
    /// If 1,024 tenants have overrides, or if the name is longer than 1,024 bytes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Descriptor, Quota, RateLimitedKind, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    /// let limiter = RateLimiter::new(Quota::per_hour(100))?;
    /// limiter.block("mallory", Duration::from_secs(600))?;
    ///
    /// let rejected = limiter.check(&Descriptor::new("/export").tenant("mallory")).await;
    /// assert_eq!(rejected.rejection(), Some(RateLimitedKind::Blocked));
    /// # Ok(())
    /// # }
    /// ```
    pub fn block(&self, tenant: impl Into<Tenant>, ttl: Duration) -> Result<(), ConfigError> {
        let tenant = tenant.into();
        self.change_overrides(|overrides, _, now| overrides.block(&tenant, now.saturating_add(ttl)))
    }

    /// Ends what [`override_tiers`](Self::override_tiers) and [`block`](Self::block) have set
    /// for a tenant. Returns whether there was anything.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Quota, RateLimiter, descriptor::TenantId};
    ///
    /// let limiter = RateLimiter::new(Quota::per_hour(100))?;
    /// limiter.block("mallory", Duration::from_secs(600))?;
    /// assert!(limiter.lift_overrides(TenantId::Name("mallory")));
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn lift_overrides(&self, tenant: TenantId<'_>) -> bool {
        let mut was_set = false;
        // The same policy compiles again.
        let _ = self.change_overrides(|overrides, _, _| {
            was_set = overrides.remove(tenant);
            Ok(())
        });
        was_set
    }

    fn change_overrides(
        &self,
        change: impl FnOnce(&mut Overrides, &CompiledPolicy, Timestamp) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        let now = self.now();
        let replacing = self.inner.current.replacing();
        let policy = self.inner.current.policy();
        let mut overrides = policy.carried.overrides_at(now);
        change(&mut overrides, &policy, now)?;
        self.inner.current.set(policy.with(policy.carried.clone().with_overrides(overrides))?);
        drop(replacing);
        self.inner.queues.call_all();
        Ok(())
    }

    /// Puts another policy in force, under the same overrides.
    pub(super) fn install(&self, policy: CompiledPolicy) {
        // A clock of the application may call its limiter, so it is read outside of the lock, and
        // only for a page.
        #[cfg(feature = "admin")]
        let last = self.inner.current.policy().carried.counts_rules.then(|| self.now());
        #[cfg(not(feature = "admin"))]
        let last = None;
        let mut replacing = self.inner.current.replacing();
        let old = self.inner.current.policy();
        let carried = old.carried.clone();
        self.inner.current.set(policy.carrying(&old, carried));
        *replacing = Replacements { set: replacing.set + 1, last };
    }

    /// Reports what can never act in the policy that is now in force. Logs once if it
    /// asks for a consistency level that the backend ignores.
    pub(super) fn check_policy(&self) {
        let policy = self.policy();
        observe::without_effect(&policy);
        let is_leveled = |rule: &&Rule| rule.enabled && rule.consistency != Consistency::Exact;
        if let Some(rule) = policy.rules.iter().find(is_leveled)
            && !self.inner.backend.extension().is_some_and(Extension::honors_consistency)
        {
            self.inner.ignored_levels.call_once(|| log_ignored_level(&rule.id, rule.consistency.as_str()));
        }
    }

    /// Divides the limits of the fallback limiter among the instances that the backend
    /// sees now: from the next request on.
    pub(super) fn follow_instances(&self, policy: &Arc<CompiledPolicy>) {
        let Some(divided_by) = policy.divided_by else { return };
        let instances = self.inner.backend.extension().map_or(1, Extension::instances).max(1);
        if instances != divided_by
            && let Ok(divided) = policy.divided_by(instances)
        {
            self.inner.current.replace(policy, divided);
        }
    }

    /// Counts the requests of each rule from now on.
    #[cfg(feature = "admin")]
    pub(crate) fn count_rules(&self) {
        let _replacing = self.inner.current.replacing();
        let policy = self.inner.current.policy();
        // The same policy compiles again.
        if let Ok(counting) = policy.with(Carried { counts_rules: true, ..policy.carried.clone() }) {
            self.inner.current.set(counting);
        }
    }

    /// The policy in force without the overrides that have ended, if `policy` has such. While
    /// another request compiles it, `policy` still counts.
    #[inline]
    pub(super) fn without_expired(&self, policy: &Arc<CompiledPolicy>, now: Timestamp) -> Option<Arc<CompiledPolicy>> {
        if policy.has_expired(now) { self.renewed(now) } else { None }
    }

    #[cold]
    fn renewed(&self, now: Timestamp) -> Option<Arc<CompiledPolicy>> {
        let _replacing = self.inner.current.try_replacing()?;
        let current = self.inner.current.policy();
        if !current.has_expired(now) {
            return Some(current);
        }
        let carried = current.carried.clone().with_overrides(current.carried.overrides_at(now));
        self.inner.current.set(current.with(carried).ok()?);
        Some(self.inner.current.policy())
    }
}
