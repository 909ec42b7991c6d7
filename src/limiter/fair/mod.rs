//! Turns of tenants that wait for one shared counter.

mod group;

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use foldhash::fast::RandomState;

use self::group::{Group, Turn};
use super::{Lease, RateLimiter, hold::Owner, timer::sleep_until};
use crate::{
    descriptor::TenantId,
    fingerprint::{Fingerprint, Scope},
    time::Timestamp,
};

/// The groups of those who wait by turns: one for each key, cost and set of
/// tiers, since slots can be exchanged only where they are alike. There is none
/// where nobody waits.
#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<HashMap<Alike, Group<Lease>, RandomState>>);

type Alike = (u128, u64, usize);

/// A place in a group, until it is dropped: then its slot is given back.
#[derive(Debug)]
pub(super) struct Place {
    limiter: RateLimiter,
    group: Alike,
    id: u64,
    /// Whose it is, until its turn has come. The slot that it has by then may
    /// have been another's.
    owner: Option<Owner>,
}

/// What is to be known of a newcomer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer<'a> {
    pub(super) key: Fingerprint,
    pub(super) cost: u64,
    /// Where the tiers lie: those of another plan or policy are others, under
    /// the same key. They stay where they are for as long as anybody waits.
    pub(super) tiers: usize,
    pub(super) tenant: Option<TenantId<'a>>,
    pub(super) now: Timestamp,
    /// The last slot that it can wait for.
    pub(super) deadline: u64,
}

impl Groups {
    fn lock(&self) -> MutexGuard<'_, HashMap<Alike, Group<Lease>, RandomState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Enters the group with the slot that was reserved; says at what time it
    /// goes, as it stands.
    pub(super) fn enter(limiter: &RateLimiter, newcomer: Newcomer<'_>, hold: Lease) -> (Self, u64) {
        let group = (newcomer.key.to_u128(), newcomer.cost, newcomer.tiers);
        let tenant = Scope::new(&["fair"]).key(newcomer.tenant).to_u128();
        let owner = Some(hold.owner());
        let (now, at) = (newcomer.now.as_nanos(), hold.receipt().at().as_nanos());
        let mut groups = limiter.inner.groups.lock();
        let (id, at) = groups.entry(group).or_default().enter(tenant, now, at, newcomer.deadline, hold);
        drop(groups);
        (Self { limiter: limiter.clone(), group, id, owner }, at)
    }

    /// Waits for its turn; by how much it was moved back, in nanoseconds.
    pub(super) async fn turn(&mut self) -> (Option<Lease>, u64) {
        let mut now = self.limiter.now();
        let (mut first, mut last) = (None, 0);
        loop {
            match self.look(now) {
                Some(Turn::At(at)) => {
                    (first, last) = (first.or(Some(at)), at);
                    let at = Timestamp::from_nanos(at);
                    sleep_until(at, || self.limiter.now()).await;
                    // Not what the clock shows: it may have been set back.
                    now = at;
                }
                turn => {
                    let hold = if let Some(Turn::Now(hold)) = turn { self.owned(hold) } else { None };
                    return (hold, last.saturating_sub(first.unwrap_or(last)));
                }
            }
        }
    }

    /// Its turn as it stands.
    fn look(&self, now: Timestamp) -> Option<Turn<Lease>> {
        self.in_group(|group| group.turn(self.id, now.as_nanos()))
    }

    /// Its slot, whatever its time is.
    pub(super) fn take(mut self) -> Option<Lease> {
        let hold = self.in_group(|group| group.leave(self.id))?;
        self.owned(hold)
    }

    /// Slots are exchanged, and what they are taken for is not: how long it may
    /// wait, since when, and for which tenant.
    fn owned(&mut self, hold: Lease) -> Option<Lease> {
        Some(match self.owner.take() {
            Some(owner) => hold.passed_to(owner),
            None => hold,
        })
    }

    fn in_group<R>(&self, act: impl FnOnce(&mut Group<Lease>) -> Option<R>) -> Option<R> {
        let mut groups = self.limiter.inner.groups.lock();
        let group = groups.get_mut(&self.group)?;
        let result = act(group);
        if group.is_empty() {
            groups.remove(&self.group);
        }
        result
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(hold) = self.in_group(|group| group.leave(self.id)) {
            hold.refund();
        }
    }
}
