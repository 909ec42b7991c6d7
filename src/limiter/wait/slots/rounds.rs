//! The rounds of tenants that wait for one counter. Knows no slots and no
//! waiters.
//!
//! Invariant: a tenant's waiters have rounds of their own, in order of arrival.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// A waiter's round is one more than its tenant's last one, but not before the
/// current one. So tenants alternate, and an idle tenant saves nothing up.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The round of the last waiter that was admitted.
    current: u64,
    /// Each tenant's last round.
    tenants: HashMap<u128, u64, RandomState>,
}

/// How many tenants are remembered beside those that wait.
pub(super) const KEPT: usize = 64;

impl Rounds {
    /// The round of a tenant's next waiter, where `waiting` waiters are ahead.
    pub(super) fn join(&mut self, tenant: u128, waiting: usize) -> u64 {
        let last = self.tenants.get(&tenant).map_or(0, |last| last.saturating_add(1));
        let round = last.max(self.current);
        self.tenants.insert(tenant, round);
        self.forget(2 * waiting + KEPT);
        round
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.tenants.len()
    }

    pub(super) fn admitted(&mut self, round: u64) {
        self.current = self.current.max(round);
    }

    /// Forgets tenants whose last round is over. If a stream of new tenants
    /// keeps the round from ending, the round is ended; if that is not enough,
    /// all tenants are forgotten.
    fn forget(&mut self, most: usize) {
        for ended in 0..2 {
            if self.tenants.len() <= most {
                return;
            }
            self.current = self.current.saturating_add(ended);
            let current = self.current;
            self.tenants.retain(|_, last| *last >= current);
        }
        if self.tenants.len() > most {
            self.tenants.clear();
        }
    }
}
