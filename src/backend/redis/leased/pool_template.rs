//! What the pools of a rule have in common: [`PoolTemplate`]. They share it, so that a pool
//! keeps only the part of its counters' names that is its own: the hash tag, which is
//! the tenant. It keeps no units.
//!
//! Invariant: template and tag give the charge set again that they were made of.

use std::{collections::HashSet, sync::Arc};

use foldhash::fast::RandomState;

use crate::{
    backend::redis::plan::{ChargeSet, Definition, TierCharge, around_tag},
    fingerprint::Fingerprint,
};

/// How a unit of a pool is charged.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolTemplate {
    /// The interval of exchanges, in nanoseconds.
    pub(super) interval: u64,
    /// The index of the lane that leases them.
    pub(super) lane: usize,
    /// Whether all units end with a window, and so are worth nothing after it.
    pub(super) ends_with_window: bool,
    /// Whether the tag chooses the hash slot of a cluster.
    is_cluster: bool,
    tiers: Box<[TierTemplate]>,
}

/// How a unit is charged on one counter, whose name has the tag between `head` and `tail`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct TierTemplate {
    head: Box<str>,
    tail: Box<str>,
    definition: Definition,
}

impl PoolTemplate {
    /// The template of a charge set, which equal ones share, and its tag.
    pub(super) fn shared<'s>(
        all: &mut Templates,
        set: &'s ChargeSet,
        prefix: &str,
        interval_lane: (u64, usize),
    ) -> (Arc<Self>, &'s str) {
        match Self::of(set, prefix, interval_lane) {
            (own, Some(tag)) => (all.of(own), tag),
            (own, None) => (Arc::new(own), ""),
        }
    }

    /// The template of a charge set, and its tag. Where its counters have different tags,
    /// the template has their whole names, and there is none.
    fn of<'s>(set: &'s ChargeSet, prefix: &str, (interval, lane): (u64, usize)) -> (Self, Option<&'s str>) {
        let names = || set.tiers.iter().map(|tier| around_tag(prefix, &tier.key));
        let tag = names().next().map_or("", |(_, tag, _)| tag);
        let tag = names().all(|(_, own, _)| own == tag).then_some(tag);
        let template = |tier: &TierCharge| {
            let (head, _, tail) = if tag.is_some() { around_tag(prefix, &tier.key) } else { (&*tier.key, "", "") };
            TierTemplate { head: head.into(), tail: tail.into(), definition: tier.definition }
        };
        let own = Self {
            interval,
            lane,
            ends_with_window: set.tiers.iter().all(|tier| tier.definition.ends_with_window()),
            is_cluster: !set.hash_tag.is_empty(),
            tiers: set.tiers.iter().map(template).collect(),
        };
        (own, tag)
    }

    /// What one request of the pool with this tag is charged.
    pub(super) fn charge_set(&self, tag: &str, now: Option<u64>) -> ChargeSet {
        let tier = |tier: &TierTemplate| TierCharge {
            key: [&*tier.head, tag, &*tier.tail].concat(),
            // Told only to requests that the store decides.
            counter: Fingerprint::NONE,
            definition: tier.definition,
            index: 0,
        };
        ChargeSet {
            hash_tag: if self.is_cluster { tag.to_owned() } else { String::new() },
            tiers: self.tiers.iter().map(tier).collect(),
            now,
            ..ChargeSet::default()
        }
    }

    #[inline]
    pub(super) fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.tiers.iter().map(|tier| &tier.definition)
    }

    /// The shortest window, in nanoseconds.
    pub(super) fn shortest_window(&self) -> u64 {
        self.definitions().map(|tier| tier.rate.window.saturating_mul(1_000)).min().unwrap_or(u64::MAX)
    }
}

/// Templates, of which equal ones are kept once.
#[derive(Debug, Default)]
pub(crate) struct Templates(HashSet<Arc<PoolTemplate>, RandomState>);

impl Templates {
    /// The one that is kept of all that equal this one.
    fn of(&mut self, own: PoolTemplate) -> Arc<PoolTemplate> {
        if let Some(known) = self.0.get(&own) {
            return Arc::clone(known);
        }
        let own = Arc::new(own);
        self.0.insert(Arc::clone(&own));
        own
    }

    /// Drops those that no pool has. Returns how many are left.
    pub(super) fn drop_unused(&mut self) -> usize {
        self.0.retain(|template| Arc::strong_count(template) > 1);
        self.0.len()
    }
}
