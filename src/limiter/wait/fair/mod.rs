//! Fairness between tenants that wait for one shared counter: round-robin over
//! the slots that they reserved. Knows neither the limiter nor its clock.
//!
//! Invariant: a slot is in exactly one group, or was returned to its owner.

mod group;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use foldhash::fast::RandomState;

use self::group::Group;
pub(in crate::limiter) use self::group::SlotTime;
use crate::{
    descriptor::TenantId,
    fingerprint::{Fingerprint, Scope},
    time::Timestamp,
};

/// The groups of waiters that exchange slots. Only slots of the same key, cost
/// and tiers can be exchanged. A group without waiters is dropped.
#[derive(Debug)]
pub(in crate::limiter) struct FairQueues<S>(Mutex<HashMap<GroupKey, Group<S>, RandomState>>);

type GroupKey = (u128, u64, usize);

impl<S> Default for FairQueues<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S> FairQueues<S> {
    fn in_group<R>(&self, key: GroupKey, act: impl FnOnce(&mut Group<S>) -> R) -> R {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let group = groups.entry(key).or_default();
        let result = act(group);
        if group.is_empty() {
            groups.remove(&key);
        }
        result
    }
}

/// A waiter that joins.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Newcomer<'a> {
    pub(in crate::limiter) key: Fingerprint,
    pub(in crate::limiter) cost: u64,
    /// The address of the tiers: another plan or policy has others under the
    /// same key. It stays valid while a request waits.
    pub(in crate::limiter) tiers: usize,
    pub(in crate::limiter) tenant: Option<TenantId<'a>>,
    pub(in crate::limiter) now: Timestamp,
    /// The last slot that it can wait for, in nanoseconds.
    pub(in crate::limiter) deadline: u64,
}

/// A waiter's position in a group. The owner calls [`leave`](Self::leave)
/// before it drops the entry.
#[derive(Debug)]
pub(in crate::limiter) struct FairEntry<S> {
    queues: Arc<FairQueues<S>>,
    group: GroupKey,
    id: u64,
}

impl<S> FairEntry<S> {
    /// Joins a group with the slot that was reserved at `at`. Also returns the
    /// time of the slot that the waiter gets, as it stands.
    pub(in crate::limiter) fn enter(
        queues: &Arc<FairQueues<S>>,
        newcomer: Newcomer<'_>,
        at: Timestamp,
        slot: S,
    ) -> (Self, Timestamp) {
        let Newcomer { key, cost, tiers, tenant, now, deadline } = newcomer;
        let group = (key.to_u128(), cost, tiers);
        let tenant = Scope::new(&["fair"]).key(tenant).to_u128();
        let enter = |group: &mut Group<S>| group.enter(tenant, now.as_nanos(), at.as_nanos(), deadline, slot);
        let (id, at) = queues.in_group(group, enter);
        (Self { queues: Arc::clone(queues), group, id }, Timestamp::from_nanos(at))
    }

    /// The slot as it stands; the waiter leaves with it if its time has come.
    pub(in crate::limiter) fn look(&self, now: Timestamp) -> Option<SlotTime<S>> {
        self.queues.in_group(self.group, |group| group.look(self.id, now.as_nanos()))
    }

    /// Leaves with the slot, whatever its time.
    pub(in crate::limiter) fn leave(&self) -> Option<S> {
        self.queues.in_group(self.group, |group| group.leave(self.id))
    }
}
