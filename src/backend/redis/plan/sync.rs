//! What an instance reports to the store: units that it has charged on its own,
//! counter by counter. It does not send them.
//!
//! Invariant: a batch is sent again only as it was, under the same number. So the
//! store can tell a repeat, and counts it once.

use std::{
    hash::{Hash, Hasher},
    sync::{Arc, Mutex},
};

use tokio::time::Instant;

use super::{
    charge_set::PlanContext,
    definition::{Definition, Kind},
    fixed_point::{Span, exact, micros},
    key::{around_tag, counter_key, hash_tag},
    tag::Tag,
};
use crate::{
    algorithm::CopiedState,
    backend::{
        Charge,
        redis::{shared::Shared, sync::lock},
    },
    fingerprint::Fingerprint,
    policy::Tier,
    time::nanos,
};

/// What to do with a report. The numbers are those of `sync.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportOp {
    Charge = 1,
    GiveBack = 2,
}

/// Units of one charge that were charged here, or are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) op: ReportOp,
    pub(crate) units: u64,
    /// When the first of them was charged, in nanoseconds on the store's clock.
    pub(crate) at: u64,
}

/// The counters of one charge, as the store names them.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) key: Fingerprint,
    /// What many keys have in common.
    pub(crate) shared: Arc<SharedCounters>,
    tag: Tag,
}

/// What the counters of all keys of a rule have in common.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct SharedCounters {
    /// Names the policy that they belong to.
    pub(crate) version: u64,
    /// The index of their lane.
    pub(crate) lane: usize,
    /// Nanoseconds.
    pub(crate) interval: u64,
    /// Whether the tag chooses the hash slot of a cluster.
    is_cluster: bool,
    pub(crate) tiers: Box<[CopiedTier]>,
}

/// A tier of which this process has copies. Its counters' names have the tag between
/// `head` and `tail`.
#[derive(Debug)]
pub(crate) struct CopiedTier {
    head: Box<str>,
    tail: Box<str>,
    pub(crate) tier: Tier,
    pub(crate) definition: Definition,
}

impl Counters {
    pub(crate) fn new(
        all: &Mutex<Shared<SharedCounters>>,
        context: &PlanContext,
        charge: &Charge<'_>,
        version: u64,
        lane: usize,
    ) -> Self {
        let tier = |tier: &Tier| {
            let name = counter_key(&context.prefix, charge, tier);
            let (head, _, tail) = around_tag(&context.prefix, &name);
            let definition = Definition::new(&context.definitions, charge, tier, 1);
            CopiedTier { head: head.into(), tail: tail.into(), tier: tier.clone(), definition }
        };
        let shared = SharedCounters {
            version,
            lane,
            interval: nanos(charge.sync_interval()),
            is_cluster: !context.is_single_slot,
            tiers: charge.tiers().iter().map(tier).collect(),
        };
        Self { key: charge.key, shared: lock(all).of(shared), tag: Tag::new(&hash_tag(charge)) }
    }

    pub(crate) fn tiers(&self) -> &[CopiedTier] {
        &self.shared.tiers
    }

    /// The hash tag that a call for them names; empty without a cluster.
    pub(crate) fn hash_tag(&self) -> Arc<str> {
        if self.shared.is_cluster { self.tag.as_str().into() } else { Arc::default() }
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let tag = self.tag.as_str();
        self.tiers().iter().map(move |tier| [&*tier.head, tag, &*tier.tail].concat())
    }
}

impl CopiedTier {
    /// Its tier is named by where that is, which it keeps.
    fn id(&self) -> (&str, &str, Definition, usize) {
        (&self.head, &self.tail, self.definition, Arc::as_ptr(&self.tier.identity).addr())
    }

    /// The state that the store has replied, at its time `now` in nanoseconds.
    pub(crate) fn copied(&self, [first, second, third]: [u64; 3], now: u64) -> CopiedState {
        if self.definition.kind == Kind::Bucket {
            // Rounded down: rounded up, the copy would admit a microsecond late.
            let units = self.definition.rate().units.max(1);
            let full_in = first.saturating_mul(1_000).saturating_add(second.saturating_mul(1_000) / units);
            return CopiedState { ends: now.saturating_add(full_in), current: 0, previous: 0 };
        }
        CopiedState { ends: first.saturating_mul(1_000), current: second, previous: third }
    }

    /// The mark of a claim on what is charged now.
    pub(crate) fn mark(&self, numbers: [u64; 3]) -> u64 {
        if self.definition.kind == Kind::Bucket { numbers[2] } else { 0 }
    }
}

impl PartialEq for CopiedTier {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for CopiedTier {}

impl Hash for CopiedTier {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

/// What is reported of one charge.
#[derive(Debug)]
pub(crate) struct KeyReport {
    pub(crate) counters: Arc<Counters>,
    /// What it was when it was taken; a reply to an earlier one is void.
    pub(crate) generation: u32,
    /// At least one; the last one may be of no units, to learn the state.
    pub(crate) reports: Vec<Report>,
}

impl KeyReport {
    /// The units that were charged.
    pub(crate) fn units(&self) -> u64 {
        let charged = self.reports.iter().filter(|report| report.op == ReportOp::Charge);
        charged.map(|report| report.units).fold(0, u64::saturating_add)
    }
}

/// What is sent in one call.
#[derive(Debug)]
pub(crate) struct SyncBatch {
    pub(crate) lane: usize,
    pub(crate) hash_tag: Arc<str>,
    pub(crate) marker: String,
    pub(crate) number: u64,
    /// For how many microseconds an instance counts that has reported.
    pub(crate) lately: u64,
    /// Microseconds, where the limiter's clock decides.
    pub(crate) now: Option<u64>,
    pub(crate) keys: Vec<KeyReport>,
}

/// When a batch was sent: on the limiter's clock, in nanoseconds, and on the
/// monotonic one.
pub(crate) type SentAt = (u64, Instant);

impl SyncBatch {
    /// All reports, with the tier that each is of.
    pub(crate) fn reports(&self) -> impl Iterator<Item = (&CopiedTier, &Report)> {
        self.keys.iter().flat_map(|key| {
            key.reports.iter().flat_map(|report| key.counters.tiers().iter().map(move |tier| (tier, report)))
        })
    }

    /// The name of the counter of each of these.
    pub(crate) fn names(&self) -> Vec<String> {
        self.keys.iter().flat_map(|key| key.reports.iter().flat_map(|_| key.counters.names())).collect()
    }

    pub(crate) fn units(&self) -> u64 {
        self.keys.iter().map(KeyReport::units).fold(0, u64::saturating_add)
    }
}

impl Report {
    /// The numbers that `sync.lua` reads, but for counter and definition: units, the
    /// units' time, and the time of the first one.
    pub(crate) fn numbers(&self, definition: &Definition) -> [u64; 4] {
        let Span { micros: time, parts } = match definition.kind {
            Kind::Bucket => definition.rate().time_for(self.units).unwrap_or(Span::MAX),
            _ => Span::default(),
        };
        [exact(self.units), time, parts, micros(self.at)]
    }
}
