//! The rounds of tenants that wait for one counter. Knows no slots.
//!
//! Invariant: a tenant's waiters have rounds of their own, in order of arrival.

use std::{collections::HashMap, task::Waker};

use foldhash::fast::RandomState;

/// A waiter's round is one more than its tenant's last one, but not before the
/// current one. So tenants alternate, and an idle tenant saves nothing up.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The round of the last waiter that was admitted.
    current: u64,
    tenants: HashMap<u64, Tenant, RandomState>,
    /// To be called: other tenants' waiters have their slots.
    pub(super) dismissed: Vec<Waker>,
}

#[derive(Debug, Default)]
struct Tenant {
    last_round: u64,
    waiting: usize,
}

/// How many tenants are remembered beside those that wait.
pub(super) const KEPT: usize = 64;

impl Rounds {
    /// The round of a tenant's next waiter.
    pub(super) fn next(&self, tenant: u64) -> u64 {
        let next = self.tenants.get(&tenant).map_or(0, |tenant| tenant.last_round.saturating_add(1));
        next.max(self.current)
    }

    /// How many waiters a tenant has.
    pub(super) fn waiting(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.waiting)
    }

    /// A waiter joins, behind `waiting` others.
    pub(super) fn join(&mut self, tenant: u64, round: u64, waiting: usize) {
        let tenant = self.tenants.entry(tenant).or_default();
        tenant.last_round = round;
        tenant.waiting += 1;
        self.forget(2 * waiting + KEPT);
    }

    /// A waiter leaves.
    pub(super) fn leave(&mut self, tenant: u64) {
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.waiting -= 1;
        }
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.tenants.len()
    }

    pub(super) fn admitted(&mut self, round: u64) {
        self.current = self.current.max(round);
    }

    /// Forgets tenants that do not wait and whose last round is over. If a
    /// stream of new tenants keeps the round from ending, the round is ended; if
    /// that is not enough, all that do not wait are forgotten.
    fn forget(&mut self, most: usize) {
        for ended in 0..2 {
            if self.tenants.len() <= most {
                return;
            }
            self.current = self.current.saturating_add(ended);
            let current = self.current;
            self.tenants.retain(|_, tenant| tenant.waiting > 0 || tenant.last_round >= current);
        }
        if self.tenants.len() > most {
            self.tenants.retain(|_, tenant| tenant.waiting > 0);
        }
    }
}
