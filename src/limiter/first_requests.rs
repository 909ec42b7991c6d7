//! What the first requests under a policy show of it: rules that never apply,
//! `unlimited` tenants and plans that never occur. Decides nothing.
//!
//! The invariant: after the first requests, a request costs one load and a branch;
//! a policy with nothing to look for is never looked at.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    descriptor::{Descriptor, TenantId, TenantRef},
    observe::{Mistake, Reported},
    policy::{CompiledPolicy, Networks, Policy, addresses},
    sync::lock,
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

/// What has not occurred yet. A request looks up what it has, so its work does not grow
/// with the policy.
#[derive(Debug, Default)]
struct Missing {
    rules: BTreeSet<String>,
    tenants: MissingTenants,
    /// The ids of rules with plans, none of which has occurred.
    plans: BTreeSet<String>,
    /// The ids of the rules that have a plan.
    with_plan: HashMap<String, Vec<String>>,
}

/// Unlimited tenants that have not occurred.
#[derive(Debug, Default)]
struct MissingTenants {
    /// The ids of the rules that name a tenant.
    rules: HashMap<String, Vec<String>>,
    /// The names that stand for addresses.
    networks: Networks<Vec<String>>,
    ignore_case: bool,
}

impl Missing {
    fn of(policy: &Policy) -> Self {
        let rules = policy.conditional_rules().map(str::to_owned).collect();
        let mut missing = Self { rules, tenants: MissingTenants::of(policy), ..Self::default() };
        for rule in policy.rules().iter().filter(|rule| rule.enabled) {
            for plan in rule.plans.keys() {
                missing.plans.insert(rule.id.clone());
                missing.with_plan.entry(plan.clone()).or_default().push(rule.id.clone());
            }
        }
        missing
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.tenants.rules.is_empty() && self.plans.is_empty()
    }

    fn occurs(&mut self, policy: &CompiledPolicy, descriptor: &Descriptor<'_>) {
        let Self { rules, tenants, plans, with_plan } = self;
        descriptor.tenant.iter().map(TenantRef::id).for_each(|id| tenants.occurs(id));
        if let Some(plan) = descriptor.plan_name() {
            for rule in with_plan.remove(plan).iter().flatten() {
                plans.remove(rule);
            }
        }
        policy.identify(descriptor, |rule, ids| {
            ids.for_each(|id| tenants.occurs(id));
            rules.remove(*rule.id);
        });
    }
}

impl MissingTenants {
    fn of(policy: &Policy) -> Self {
        let mut missing = Self { ignore_case: policy.ignore_case, ..Self::default() };
        for (rule, tenant, _) in policy.named_tenants().filter(|(_, _, is_unlimited)| *is_unlimited) {
            let name = missing.spell(tenant);
            // Written as an address or a network, it names those as well.
            if let Some(network) = addresses(tenant) {
                missing.networks.entry(network).or_default().push(name.clone());
            }
            missing.rules.entry(name).or_default().push(rule.id.clone());
        }
        missing
    }

    fn spell(&self, name: &str) -> String {
        if self.ignore_case { name.to_ascii_lowercase() } else { name.to_owned() }
    }

    fn occurs(&mut self, id: TenantId<'_>) {
        match id {
            // A name is no address, whatever it says.
            TenantId::Name(name) if addresses(name).is_some() => {}
            TenantId::Name(name) => drop(self.rules.remove(&self.spell(name))),
            TenantId::Address(address) => {
                for name in self.networks.all(address).flatten() {
                    self.rules.remove(name);
                }
            }
        }
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
        *lock(&self.missing) = missing;
    }

    #[inline]
    pub(super) fn are_open(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Looks at one of the first requests.
    #[cold]
    pub(super) fn look(&self, policy: &CompiledPolicy, descriptor: &Descriptor<'_>) {
        let mut missing = lock(&self.missing);
        missing.occurs(policy, descriptor);
        let is_done = missing.is_empty();
        let count = |left: u32| if is_done { Some(0) } else { left.checked_sub(1) };
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(1) {
            report(Mistake::UnmatchedRule, &missing.rules.iter().map(String::as_str).collect());
            // Never the tenant's name, which may be a secret.
            let of_tenants = missing.tenants.rules.values().flatten().map(String::as_str);
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
