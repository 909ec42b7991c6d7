//! The rounds of tenants that wait for one counter. Knows no slots.
//!
//! Invariant: a tenant's waiters have rounds of their own, in order of arrival.
//! A round counts while its waiter waits, and after that only if it was served.

use std::{
    collections::{BTreeSet, HashMap},
    task::Waker,
};

use foldhash::fast::RandomState;

use super::super::shards::is_sparse;

/// A waiter's round is one more than its tenant's last one, but not before the
/// current one. So tenants alternate, and an idle tenant saves nothing up.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The round of the last waiter that was admitted.
    current: u64,
    pub(super) tenants: HashMap<u64, Tenant, RandomState>,
    /// To be called: other tenants' waiters have their slots.
    pub(super) dismissed: Vec<Waker>,
}

#[derive(Debug, Default)]
pub(super) struct Tenant {
    /// The rounds of its waiters.
    waiting: BTreeSet<u64>,
    /// The last round in which it was admitted.
    served: Option<u64>,
}

/// How many tenants are remembered beside those that wait.
pub(super) const KEPT: usize = 64;

impl Rounds {
    /// The round of a tenant's next waiter.
    pub(super) fn next(&self, tenant: u64) -> u64 {
        let last = self.tenants.get(&tenant).and_then(|tenant| tenant.served.max(tenant.waiting.last().copied()));
        last.map_or(0, |last| last.saturating_add(1)).max(self.current)
    }

    /// How many waiters a tenant has.
    pub(super) fn waiting(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.waiting.len())
    }

    /// A waiter joins, behind `waiting` others.
    pub(super) fn join(&mut self, tenant: u64, round: u64, waiting: usize) {
        self.tenants.entry(tenant).or_default().waiting.insert(round);
        self.forget(2 * waiting + KEPT);
    }

    /// A waiter leaves. One that leaves unserved gives its round back.
    pub(super) fn leave(&mut self, tenant: u64, round: u64, is_served: bool) {
        if is_served {
            self.current = self.current.max(round);
        }
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.waiting.remove(&round);
            tenant.served = tenant.served.max(is_served.then_some(round));
        }
    }

    /// Forgets tenants that do not wait and whose last round is over. If a
    /// stream of new tenants keeps the round from ending, the round is ended; if
    /// that is not enough, all that do not wait are forgotten.
    fn forget(&mut self, most: usize) {
        for ended in 0..2 {
            if self.tenants.len() > most {
                self.current = self.current.saturating_add(ended);
                let current = self.current;
                self.tenants.retain(|_, tenant| !tenant.waiting.is_empty() || tenant.served >= Some(current));
            }
        }
        if self.tenants.len() > most {
            self.tenants.retain(|_, tenant| !tenant.waiting.is_empty());
        }
        if is_sparse(self.tenants.len(), self.tenants.capacity()) {
            self.tenants.shrink_to(2 * self.tenants.len());
        }
    }
}
