//! Charge sets and changes as calls of the scripts. It does not read replies.
//!
//! Invariant: a call names each counter and each definition once, however many
//! requests use it.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::scripts::{CHANGE, Call, DECIDE, LEASE, PLAIN, Script};
use crate::backend::redis::plan::{Change, ChargeSet, Decider, Definition};

/// The most keys in a call. The first request is always in.
pub(crate) const MAX_KEYS: usize = 2_000;

/// How many keys a change needs at most: its counter, the sorted set, and the set of
/// instances in a call that leases.
pub(crate) const KEYS_OF_CHANGE: usize = 3;

/// How long the store keeps a counter beyond its use, in microseconds. A time
/// to live is extended only when most of this has passed.
pub(crate) const RETENTION: u64 = 10_000_000;

/// The same where the limiter's clock decides: it may stand still.
pub(crate) const RETENTION_BY_LIMITER: u64 = 3_600_000_000;

/// How many keys a charge set needs at most: its counters, their sorted sets, and
/// if it is leased the sets of instances and the record of its lease.
pub(crate) fn max_keys(set: &ChargeSet) -> usize {
    if set.lease.is_some() { 1 + 3 * set.tiers.len() } else { 2 * set.tiers.len() }
}

/// What the head of every call of `plain.lua`, `decide.lua` and `change.lua` says.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallHead<'a> {
    /// Identifies this process.
    pub(crate) instance: u64,
    /// The latest time that the server's clock has had, if it was set back since;
    /// else 0. In microseconds since the Unix epoch.
    pub(crate) latest: u64,
    /// The prefix of all keys.
    pub(crate) prefix: &'a str,
}

/// One call for charge sets of one hash slot and time, each with how many
/// requests it is for. All have the same decider. Only one that leases makes `changes`
/// as well, and checks the dataset.
pub(crate) fn charges(
    sets: &[(ChargeSet, usize)],
    changes: &[Change],
    head: CallHead<'_>,
    check: Option<&DatasetCheck>,
) -> Call {
    let mut encoder = CallEncoder { check, ..CallEncoder::default() };
    let decider = sets.first().map_or(Decider::General, |(set, _)| set.decider());
    let is_plain = decider == Decider::Plain;
    if decider == Decider::Lease {
        encoder.body.extend([changes.len() as u64, sets.len() as u64]);
        for (set, _) in sets {
            let record = set.record(head.prefix, head.instance);
            let numbers = record.as_ref().map_or([0; 2], |(_, numbers)| *numbers);
            encoder.body.extend(numbers);
            encoder.records.extend(record.map(|(key, _)| key));
        }
        changes.iter().for_each(|change| encoder.change(change));
    }
    for (set, count) in sets {
        let (count, tiers) = (if set.is_peek { 0 } else { *count as u64 }, set.tiers.len() as u64);
        match &set.lease {
            Some(lease) => {
                encoder.names_instances = true;
                encoder.body.extend([lease.needed, lease.ahead, lease.lately(), set.request_id, tiers]);
            }
            None if is_plain => encoder.body.push(count),
            None => encoder.body.extend([count, set.max_wait, set.not_before, set.request_id, tiers]),
        }
        for tier in &set.tiers {
            let [counter, definition, sorted_set] = encoder.add(&tier.key, tier.definition);
            encoder.body.extend([counter, definition]);
            encoder.body.extend((!is_plain).then_some(sorted_set));
        }
    }
    let now = sets.first().and_then(|(set, _)| set.now);
    let script = match decider {
        Decider::Plain => &PLAIN,
        Decider::General => &DECIDE,
        Decider::Lease => &LEASE,
    };
    encoder.finish(script, now, head)
}

/// One call for changes of one hash slot and time.
pub(crate) fn changes(changes: &[Change], head: CallHead<'_>) -> Call {
    let mut encoder = CallEncoder::default();
    changes.iter().for_each(|change| encoder.change(change));
    let now = changes.first().and_then(|change| change.now);
    encoder.finish(&CHANGE, now, head)
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
    sorted_sets: Vec<String>,
    definition_numbers: Map<Definition, u64>,
    definitions: Vec<Definition>,
    /// What follows the definitions.
    body: Vec<u64>,
    /// The keys that record what was leased last.
    records: Vec<String>,
    /// Whether each counter has a set of instances beside it.
    names_instances: bool,
    check: Option<&'a DatasetCheck>,
}

impl<'a> CallEncoder<'a> {
    /// The numbers of a counter, a definition and a sorted set, each from 1;
    /// 0 where the counter has no sorted set.
    fn add(&mut self, key: &'a str, definition: Definition) -> [u64; 3] {
        let [counter, sorted_set] = *self.numbers.entry(key).or_insert_with(|| {
            self.counters.push(key);
            let has_set = definition.kind.has_set();
            self.sorted_sets.extend(has_set.then(|| format!("{key}:set")));
            [self.counters.len() as u64, if has_set { self.sorted_sets.len() as u64 } else { 0 }]
        });
        let definition = *self.definition_numbers.entry(definition).or_insert_with(|| {
            self.definitions.push(definition);
            self.definitions.len() as u64
        });
        [counter, definition, sorted_set]
    }

    fn change(&mut self, change: &'a Change) {
        let numbers = self.add(&change.charge.key, change.charge.definition);
        self.body.push(change.op as u64);
        self.body.extend(numbers);
        self.body.extend(change.numbers());
    }

    /// `now` is in microseconds since the Unix epoch; `None` is the server's
    /// time.
    fn finish(self, script: &'static Script, now: Option<u64>, head: CallHead<'_>) -> Call {
        let header = [
            now.unwrap_or(0),
            if now.is_some() { RETENTION_BY_LIMITER } else { RETENTION },
            u64::from(now.is_none()),
            head.instance,
            self.counters.len() as u64,
            self.definitions.len() as u64,
            head.latest,
        ];
        let definitions = self.definitions.iter().flat_map(Definition::numbers);
        let length = header.len() + 14 * self.definitions.len() + self.body.len();
        let mut argument = Vec::with_capacity(5 + 4 * length);
        // Writing to memory does not fail.
        let _ = rmp::encode::write_array_len(&mut argument, length as u32);
        for number in header.into_iter().chain(definitions).chain(self.body) {
            let _ = rmp::encode::write_uint(&mut argument, number);
        }
        let named = if self.names_instances { &self.counters[..] } else { &[] };
        let instances: Vec<_> = named.iter().map(|key| format!("{key}:fleet")).collect();
        let check = self.check.map(|check| check.key.as_str());
        let sets = self.sorted_sets.iter().chain(&self.records).chain(&instances).map(String::as_str).chain(check);
        let keys: Vec<_> = self.counters.iter().copied().chain(sets).collect();
        let call = Call::new(script, keys.iter().copied(), keys.len(), &argument);
        match self.check {
            Some(check) => call.with_check(&check.id),
            None => call,
        }
    }
}
