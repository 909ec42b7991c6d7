//! Charge sets and changes as calls of the scripts. It does not read replies.
//!
//! Invariant: a call names each counter and each definition once, however many
//! requests use it.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::scripts::{CHANGE, Call, DECIDE, PLAIN, Script};
use crate::backend::redis::plan::{Change, ChargeSet, Definition};

/// The most keys in a call. The first request is always in.
pub(crate) const MAX_KEYS: usize = 2_000;

/// How long the store keeps a counter beyond its use, in microseconds. A time
/// to live is extended only when most of this has passed.
pub(crate) const RETENTION: u64 = 10_000_000;

/// The same where the limiter's clock decides: it may stand still.
pub(crate) const RETENTION_BY_LIMITER: u64 = 3_600_000_000;

/// How many keys a charge set needs at most: its counters and their sorted
/// sets.
pub(crate) fn max_keys(set: &ChargeSet) -> usize {
    2 * set.tiers.len()
}

/// What the head of every call of `plain.lua`, `decide.lua` and `change.lua` says.
#[derive(Clone, Copy)]
pub(crate) struct CallHead {
    /// Identifies this process.
    pub(crate) instance: u64,
    /// The latest time that the server's clock has had, if it was set back since;
    /// else 0. In microseconds since the Unix epoch.
    pub(crate) latest: u64,
}

/// One call for charge sets of one hash slot and time, each with how many
/// requests it is for. All are plain, or none is.
pub(crate) fn charges(sets: &[(ChargeSet, usize)], head: CallHead) -> Call {
    let mut encoder = CallEncoder::default();
    let is_plain = sets.first().is_some_and(|(set, _)| set.is_plain());
    for (set, count) in sets {
        let (count, tiers) = (*count as u64, set.tiers.len() as u64);
        match is_plain {
            true => encoder.body.extend([count, tiers]),
            false => encoder.body.extend([count, set.max_wait, set.not_before, set.request_id, tiers]),
        }
        for tier in &set.tiers {
            let [counter, definition, sorted_set] = encoder.add(&tier.key, tier.definition);
            encoder.body.extend([counter, definition]);
            encoder.body.extend((!is_plain).then_some(sorted_set));
        }
    }
    let now = sets.first().and_then(|(set, _)| set.now);
    encoder.finish(if is_plain { &PLAIN } else { &DECIDE }, now, head)
}

/// One call for changes of one hash slot and time.
pub(crate) fn changes(changes: &[Change], head: CallHead) -> Call {
    let mut encoder = CallEncoder::default();
    for change in changes {
        let numbers = encoder.add(&change.charge.key, change.charge.definition);
        encoder.body.push(change.op as u64);
        encoder.body.extend(numbers);
        encoder.body.extend(change.numbers());
    }
    let now = changes.first().and_then(|change| change.now);
    encoder.finish(&CHANGE, now, head)
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

    /// `now` is in microseconds since the Unix epoch; `None` is the server's
    /// time.
    fn finish(self, script: &'static Script, now: Option<u64>, head: CallHead) -> Call {
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
        let keys = self.counters.len() + self.sorted_sets.len();
        let sorted_sets = self.sorted_sets.iter().map(String::as_str);
        Call::new(script, self.counters.into_iter().chain(sorted_sets), keys, &argument)
    }
}
