//! What the first requests under a policy show of it: rules that never apply,
//! `unlimited` tenants and plans that never occur. Decides nothing.
//!
//! The invariant: after the first requests, a request costs one load and a branch;
//! a policy with nothing to look for is never looked at.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    descriptor::{Descriptor, TenantId, TenantRef},
    observe::{Mistake, Reported},
    policy::{CompiledPolicy, Policy, Rule, is_named},
};

/// The requests under a policy that are looked at.
const FIRST: u32 = 10_000;

/// The rules that a report names.
const MOST_NAMED: usize = 8;

#[derive(Debug)]
pub(super) struct FirstRequests {
    left: AtomicU32,
    missing: Mutex<Missing>,
}

/// What has not occurred yet.
#[derive(Debug, Default)]
struct Missing {
    rules: Vec<String>,
    /// The ids of rules, and their unlimited tenants.
    tenants: Vec<(String, String)>,
    /// The ids of rules with plans, none of which has occurred.
    plans: BTreeSet<String>,
}

impl Missing {
    fn of(policy: &Policy) -> Self {
        let conditional: Vec<_> = policy.conditional_rules().map(str::to_owned).collect();
        let unlimited = policy.named_tenants().filter(|(_, _, is_unlimited)| *is_unlimited);
        let tenants = unlimited.map(|(rule, tenant, _)| (rule.to_owned(), tenant.to_owned()));
        let has_plans = |rule: &&Rule| rule.enabled && !rule.plans.is_empty();
        let plans = policy.rules().iter().filter(has_plans).map(|rule| rule.id.clone());
        Self { rules: conditional, tenants: tenants.collect(), plans: plans.collect() }
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.tenants.is_empty() && self.plans.is_empty()
    }
}

impl FirstRequests {
    pub(super) fn new(policy: &Policy) -> Self {
        let this = Self { left: AtomicU32::new(0), missing: Mutex::default() };
        this.restart(policy);
        this
    }

    /// Another policy is in force.
    pub(super) fn restart(&self, policy: &Policy) {
        let missing = Missing::of(policy);
        self.left.store(if missing.is_empty() { 0 } else { FIRST }, Ordering::Relaxed);
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = missing;
    }

    #[inline]
    pub(super) fn are_open(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Looks at one of the first requests.
    #[cold]
    pub(super) fn look(&self, policy: &CompiledPolicy, descriptor: &Descriptor<'_>) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let Missing { rules, tenants, plans } = &mut *missing;
        let ignore_case = policy.policy.ignore_case;
        let mut occurs = |id: TenantId<'_>| tenants.retain(|(_, tenant)| !is_named(tenant, ignore_case, id));
        descriptor.tenant.iter().map(TenantRef::id).for_each(&mut occurs);
        if let Some(plan) = descriptor.plan_name() {
            for rule in policy.policy.rules().iter().filter(|rule| rule.plans.contains_key(plan)) {
                plans.remove(&rule.id);
            }
        }
        policy.identify(descriptor, |rule, ids| {
            ids.for_each(&mut occurs);
            rules.retain(|missing| *missing != *rule.id);
        });
        let is_done = missing.is_empty();
        let count = |left: u32| if is_done { Some(0) } else { left.checked_sub(1) };
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(1) {
            report(Mistake::UnmatchedRule, &missing.rules.iter().map(String::as_str).collect());
            // Never the tenant's name, which may be a secret.
            let of_tenants = missing.tenants.iter().map(|(rule, _)| rule.as_str());
            let plans = missing.plans.iter().map(String::as_str);
            report(Mistake::UnusedTenant, &of_tenants.chain(plans).collect());
        }
    }
}

/// One report for all rules: a shared policy may have hundreds for other services.
fn report(mistake: Mistake, rules: &BTreeSet<&str>) {
    if rules.is_empty() {
        return;
    }
    let mut detail = String::from(if rules.len() == 1 { "rule " } else { "rules " });
    for (index, rule) in rules.iter().take(MOST_NAMED).enumerate() {
        detail.extend([if index > 0 { ", `" } else { "`" }, rule, "`"]);
    }
    if let others @ 1.. = rules.len().saturating_sub(MOST_NAMED) {
        detail.push_str(&format!(" and {others} more"));
    }
    Reported::default().report(mistake, &detail);
}
