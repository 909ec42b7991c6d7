//! Charge sets and changes as calls of the scripts. It does not read replies.
//!
//! Invariant: a call names each counter and each definition once, however many
//! requests use it.

use std::{collections::HashMap, iter};

use foldhash::fast::RandomState;

use super::scripts::{Call, DECIDE};
use crate::{
    backend::redis::plan::{Change, ChargeSet, Definition, LeaseAsk},
    quota::Algorithm,
};

/// The most keys in a call. The first request is always in.
pub(crate) const MAX_KEYS: usize = 2_000;

/// How many keys a change needs at most: its counter, and the sorted set.
pub(crate) const KEYS_OF_CHANGE: usize = 2;

/// How long the store keeps a counter beyond its use at least, in microseconds: up to twice
/// that.
pub(crate) const RETENTION: u64 = 10_000_000;

/// The same where the limiter's clock decides: it may stand still.
pub(crate) const RETENTION_BY_LIMITER: u64 = 3_600_000_000;

/// How many keys a charge set needs at most: its counters, and their sorted sets; or if it
/// is leased the sets of instances, and the record of its lease.
pub(crate) fn max_keys(set: &ChargeSet) -> usize {
    if set.lease.is_some() { 1 + 2 * set.tiers.len() } else { 2 * set.tiers.len() }
}

/// What the head of every call says.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallHead<'a> {
    /// In microseconds since the Unix epoch; `None` is the server's time.
    pub(crate) now: Option<u64>,
    /// Identifies this process.
    pub(crate) instance: u64,
    /// The latest time that the server's clock has had, if it was set back since;
    /// else 0. In microseconds since the Unix epoch.
    pub(crate) latest: u64,
    /// The prefix of all keys.
    pub(crate) prefix: &'a str,
}

/// One call for changes and charge sets of one hash slot and time, each set with how many
/// requests it is for, those that lease first.
pub(crate) fn call<'a>(
    changes: impl Iterator<Item = &'a Change>,
    sets: impl Iterator<Item = (&'a ChargeSet, usize)>,
    head: CallHead<'_>,
    check: Option<&'a DatasetCheck>,
) -> Call {
    let mut encoder = CallEncoder { check, ..CallEncoder::default() };
    changes.for_each(|change| encoder.change(change));
    for (set, count) in sets {
        match &set.lease {
            Some(ask) => encoder.lease(set, ask, head),
            None => encoder.charge(set, count),
        }
    }
    encoder.finish(head)
}

/// A check of what identifies the dataset, beside what a call does.
#[derive(Debug)]
pub(crate) struct DatasetCheck {
    /// The key that stores it.
    pub(crate) key: String,
    /// An id for a dataset that has none.
    pub(crate) id: String,
}

type Map<K, V> = HashMap<K, V, RandomState>;

#[derive(Debug, Default)]
struct CallEncoder<'a> {
    /// The numbers of each counter and of its sorted set.
    numbers: Map<&'a str, [u64; 2]>,
    counters: Vec<&'a str>,
    /// Other keys, which follow those of the counters.
    others: Vec<String>,
    definition_numbers: Map<Definition, u64>,
    definitions: Vec<Definition>,
    /// What follows the definitions, and of how many changes and leases.
    body: Vec<u64>,
    changes: u64,
    leases: u64,
    check: Option<&'a DatasetCheck>,
}

impl<'a> CallEncoder<'a> {
    /// The numbers of a counter, a definition and a sorted set, each from 1;
    /// 0 where the counter has no sorted set.
    fn add(&mut self, key: &'a str, definition: Definition) {
        let [counter, sorted_set] = *self.numbers.entry(key).or_insert_with(|| {
            self.counters.push(key);
            // Entries that end one by one are in a sorted set beside the counter.
            let has_set = matches!(definition.algorithm, Algorithm::SlidingLog | Algorithm::Concurrency);
            self.others.extend(has_set.then(|| format!("{key}:set")));
            [self.counters.len() as u64, if has_set { self.others.len() as u64 } else { 0 }]
        });
        let definition = *self.definition_numbers.entry(definition).or_insert_with(|| {
            self.definitions.push(definition);
            self.definitions.len() as u64
        });
        self.body.extend([counter, definition, sorted_set]);
    }

    fn other(&mut self, key: String) -> u64 {
        self.others.push(key);
        self.others.len() as u64
    }

    fn change(&mut self, change: &'a Change) {
        self.changes += 1;
        self.body.push(change.op as u64);
        self.add(&change.charge.key, change.charge.definition);
        self.body.extend(change.numbers());
    }

    fn charge(&mut self, set: &'a ChargeSet, count: usize) {
        let count = if set.is_peek { 0 } else { count as u64 };
        self.body.extend([count, set.max_wait, set.not_before, set.request_id, set.tiers.len() as u64]);
        set.tiers.iter().for_each(|tier| self.add(&tier.key, tier.definition));
    }

    fn lease(&mut self, set: &'a ChargeSet, ask: &LeaseAsk, head: CallHead<'_>) {
        self.leases += 1;
        let recorded = set.record(ask, head.prefix, head.instance);
        let numbers = recorded.map_or([0; 3], |key| [ask.number, ask.known, self.other(key)]);
        self.body.extend(numbers);
        self.body.extend([ask.needed, ask.ahead, ask.lately(), set.tiers.len() as u64]);
        set.tiers.iter().for_each(|tier| self.add(&tier.key, tier.definition));
        for tier in &set.tiers {
            let instances = self.other(format!("{}:fleet", tier.key));
            self.body.push(instances);
        }
    }

    fn finish(self, head: CallHead<'_>) -> Call {
        let header = [
            head.now.unwrap_or(0),
            if head.now.is_some() { RETENTION_BY_LIMITER } else { RETENTION },
            head.instance,
            self.counters.len() as u64,
            self.definitions.len() as u64,
            head.latest,
            self.changes,
            self.leases,
        ];
        let definitions = self.definitions.iter().flat_map(Definition::numbers);
        let length = header.len() + 14 * self.definitions.len() + self.body.len();
        let mut argument = Vec::with_capacity(5 + 4 * length);
        // Writing to memory does not fail.
        let _ = rmp::encode::write_array_len(&mut argument, length as u32);
        for number in header.into_iter().chain(definitions).chain(self.body) {
            let _ = rmp::encode::write_uint(&mut argument, number);
        }
        let check = self.check.map(|check| check.key.as_str());
        let others = self.others.iter().map(String::as_str).chain(check);
        let count = self.counters.len() + self.others.len() + usize::from(self.check.is_some());
        let arguments = iter::once(&*argument).chain(self.check.map(|check| check.id.as_bytes()));
        Call::new(&DECIDE, self.counters.iter().copied().chain(others), count, arguments)
    }
}
