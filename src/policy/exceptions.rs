//! For whom a rule makes exceptions: which of its tier sets a tenant or a plan has,
//! [`Exceptions`], and the networks that stand for tenants, [`Networks`].
//!
//! Not here: the tiers (`tiers`), and what operators set at run time (`carried`). Invariant: a
//! tenant that is identified by a name is in no network, whatever the name says.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
};

use foldhash::fast::RandomState;
use ipnet::{IpNet, Ipv4Net};

use super::{
    rule::Rule,
    settings::{Limits, Override},
};
use crate::{
    descriptor::{Priority, TenantId},
    quota::Quota,
};

/// The exceptions of one rule.
#[derive(Debug, Default)]
pub(super) struct Exceptions {
    plans: HashMap<Box<str>, Exception, RandomState>,
    tenants: HashMap<Box<str>, Exception, RandomState>,
    addresses: Networks<Exception>,
}

/// What is different for a plan or a tenant: as [`Override`], with the index of its tier set.
#[derive(Clone, Copy, Debug, Default)]
struct Exception {
    limits: Option<Limits<u32>>,
    priority: Option<Priority>,
    /// It may admit what the rule's own tiers reject.
    is_higher: bool,
}

/// What applies to one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    /// `None` where it is unlimited.
    pub(super) tier_set: Option<u32>,
    /// That of its tenant, or else of its plan.
    pub(super) priority: Option<Priority>,
}

impl Exceptions {
    /// Those of a rule, and the quotas of the rule, of its plans and of its tenants.
    /// `ignore_case` where paths are matched without regard to case.
    pub(super) fn new(rule: &Rule, ignore_case: bool) -> (Self, Vec<Vec<Quota>>) {
        let mut exceptions = Self::default();
        // The steps stand for an adaptive tier.
        let mut quotas = vec![rule.tiers.iter().filter(|tier| !tier.is_adaptive()).copied().collect::<Vec<_>>()];
        let mut exception = |instead: &Override| {
            let (limits, is_higher) = match &instead.limits {
                None => (None, false),
                Some(Limits::Unlimited) => (Some(Limits::Unlimited), true),
                Some(Limits::Tiers(tiers)) => {
                    quotas.push(tiers.clone());
                    (Some(Limits::Tiers(index(quotas.len() - 1))), !is_within(tiers, &rule.tiers))
                }
            };
            Exception { limits, priority: instead.priority, is_higher }
        };
        for (plan, instead) in &rule.plans {
            exceptions.plans.insert(plan.as_str().into(), exception(instead));
        }
        // A tenant that is a part of a path is spelled as paths are.
        let ignore_tenant_case = ignore_case && rule.tenant_param.is_some();
        for (tenant, instead) in &rule.tenants {
            let exception = exception(instead);
            // An address or a network names no tenant: callers may choose their names.
            if let Some(network) = addresses(tenant) {
                exceptions.addresses.entry(network).or_insert(exception);
                continue;
            }
            let tenant = if ignore_tenant_case { tenant.to_ascii_lowercase() } else { tenant.clone() };
            exceptions.tenants.insert(tenant.into(), exception);
        }
        (exceptions, quotas)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.plans.is_empty() && self.tenants.is_empty() && self.addresses.is_empty()
    }

    /// What applies to a request: by the first of these that has an exception, else by its
    /// plan.
    pub(super) fn choose<'i, 'p, I: Iterator<Item = TenantId<'i>>>(
        &self,
        ids: impl FnOnce() -> I,
        plan: impl FnOnce() -> Option<&'p str>,
    ) -> Chosen {
        let has_none = self.tenants.is_empty() && self.addresses.is_empty();
        if has_none && self.plans.is_empty() {
            return Chosen { tier_set: Some(0), priority: None };
        }
        let of_tenant = if has_none { None } else { ids().find_map(|id| self.find(id)) };
        let of_plan = if self.plans.is_empty() { None } else { plan().and_then(|plan| self.plans.get(plan)).copied() };
        let exceptions = || of_tenant.into_iter().chain(of_plan);
        let tier_set = match exceptions().find_map(|exception| exception.limits) {
            Some(Limits::Unlimited) => None,
            Some(Limits::Tiers(set)) => Some(set),
            None => Some(0),
        };
        Chosen { tier_set, priority: exceptions().find_map(|exception| exception.priority) }
    }

    /// The plans that have a priority.
    pub(super) fn plan_priorities(&self) -> impl Iterator<Item = (&str, Priority)> {
        self.plans.iter().filter_map(|(plan, exception)| Some((&**plan, exception.priority?)))
    }

    /// The tenants that have a priority, and are no addresses.
    pub(super) fn tenant_priorities(&self) -> impl Iterator<Item = (&str, Priority)> {
        self.tenants.iter().filter_map(|(tenant, exception)| Some((&**tenant, exception.priority?)))
    }

    fn find(&self, id: TenantId<'_>) -> Option<Exception> {
        match id {
            TenantId::Name(name) => self.tenants.get(name).copied(),
            TenantId::Address(address) => self.addresses.all(address).next().copied(),
        }
    }

    pub(super) fn has_exception_of(&self, id: TenantId<'_>) -> bool {
        self.find(id).is_some_and(|exception| exception.limits.is_some())
    }

    /// Whether this tenant's exception may admit what the rule's own tiers reject.
    pub(super) fn favors(&self, id: TenantId<'_>) -> bool {
        self.find(id).is_some_and(|exception| exception.is_higher)
    }
}

/// Whether each of a rule's `own` tiers has a counterpart among `tiers` that is no
/// higher, so that those admit nothing more.
pub(super) fn is_within(tiers: &[Quota], own: &[Quota]) -> bool {
    let is_counterpart = |tier: &Quota, own: &Quota| {
        tier.counter() == own.counter() && tier.limit() <= own.limit() && tier.capacity() <= own.capacity()
    };
    !own.is_empty() && own.iter().all(|own| tiers.iter().any(|tier| is_counterpart(tier, own)))
}

/// Validation bounds the number of sets.
pub(super) fn index(set: usize) -> u32 {
    u32::try_from(set).unwrap_or(u32::MAX)
}

/// The network that a tenant's name is; `None` if it is a name. The error is the
/// reason.
pub(super) fn parse_network(name: &str) -> Result<Option<IpNet>, String> {
    let Some((address, _)) = name.split_once('/').filter(|(address, bits)| is_meant(address, bits)) else {
        return Ok(None);
    };
    let Ok(network) = name.parse::<IpNet>() else {
        return Err(match address.parse::<IpAddr>().map(IpNet::from) {
            Ok(whole) => format!("has a number of bits from 0 to {}, such as `{whole}`", whole.prefix_len()),
            Err(_) => "is no network: write an address and the number of its leading bits, such as `10.0.0.0/8`".into(),
        });
    };
    match network.trunc() {
        first if first == network => Ok(Some(canonical_network(network))),
        first => {
            let ip = network.addr();
            Err(format!("is an address within a network: write `{first}` for the network, or `{ip}`"))
        }
    }
}

/// The addresses that a tenant's name stands for, if it is an address or a network.
pub(crate) fn addresses(name: &str) -> Option<IpNet> {
    match name.parse::<IpAddr>() {
        Ok(address) => Some(address.to_canonical().into()),
        Err(_) => parse_network(name).ok().flatten(),
    }
}

/// Whether the text looks like a network, valid or not. Names of tenants may have
/// slashes, too.
fn is_meant(address: &str, bits: &str) -> bool {
    let is_number = |bits: &str| bits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_v4 = address.contains('.') && address.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_v6 = address.contains(':') && address.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte));
    is_number(bits) && (is_v4 || is_v6)
}

/// Mapped addresses are compared as IPv4, so mapped networks must be too.
pub(crate) fn canonical_network(network: IpNet) -> IpNet {
    match (network, network.addr().to_canonical()) {
        (IpNet::V6(v6), IpAddr::V4(v4)) if v6.prefix_len() >= 96 => {
            Ipv4Net::new_assert(v4, v6.prefix_len() - 96).into()
        }
        _ => network,
    }
}

/// Values by network.
#[derive(Debug, Default)]
pub(crate) struct Networks<T> {
    by_network: HashMap<IpNet, T, RandomState>,
    /// The numbers of bits that occur, descending: the smallest network first.
    bits: Vec<u8>,
}

impl<T> Networks<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    pub(crate) fn entry(&mut self, network: IpNet) -> Entry<'_, IpNet, T> {
        if let Err(index) = self.bits.binary_search_by(|bits| network.prefix_len().cmp(bits)) {
            self.bits.insert(index, network.prefix_len());
        }
        self.by_network.entry(network)
    }

    /// The values of the networks that have the address, the smallest first: one lookup
    /// for each number of bits that occurs.
    pub(crate) fn all(&self, address: IpAddr) -> impl Iterator<Item = &T> {
        self.bits.iter().filter_map(move |&bits| self.by_network.get(&IpNet::new(address, bits).ok()?.trunc()))
    }
}

#[cfg(test)]
mod tests;
