//! What this instance is asked for, and has to refuse, by rule and key: [`AskedUnits`].
//!
//! It decides nothing. The invariant: a thread that is admitted at once writes no memory that
//! another thread writes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
};

use super::{cached_machine::Asked, rule_shares::Subject};

/// The most keys that are refused in a round and noticed.
const MAX_REFUSED: usize = 1_024;

/// What all threads have counted since it was last read.
#[derive(Debug, Default)]
pub(super) struct AskedUnits(HashMap<Subject, Vec<AskedByThread>>);

#[derive(Debug)]
struct AskedByThread {
    units: Asked,
    read: u64,
}

impl AskedUnits {
    /// A count for one more thread.
    pub(super) fn add(&mut self, subject: Subject) -> Asked {
        let units = Asked::default();
        self.0.entry(subject).or_default().push(AskedByThread { units: Arc::clone(&units), read: 0 });
        units
    }

    /// How many units were asked for since the last call; those of a rule without those of
    /// its keys that are counted apart.
    pub(super) fn take(&mut self) -> BTreeMap<Subject, u64> {
        let of_subject = |(subject, threads): (&Subject, &mut Vec<AskedByThread>)| {
            let mut sum = 0_u64;
            threads.retain_mut(|thread| {
                // Before the count is read: its thread may add to it and then end.
                let is_used = Arc::strong_count(&thread.units) > 1;
                let units = thread.units.load(Ordering::Acquire);
                sum = sum.saturating_add(units.wrapping_sub(thread.read));
                thread.read = units;
                is_used
            });
            (subject.clone(), sum)
        };
        let asked = self.0.iter_mut().map(of_subject).collect();
        self.0.retain(|subject, threads| subject.key.is_none() || !threads.is_empty());
        asked
    }
}

/// Units of keys that were not admitted at once.
#[derive(Debug, Default)]
pub(super) struct RefusedUnits(HashMap<(&'static str, u64), u64>);

impl RefusedUnits {
    pub(super) fn count(&mut self, rule: &'static str, key: u64, units: u64) {
        let has_room = self.0.len() < MAX_REFUSED;
        match self.0.get_mut(&(rule, key)) {
            Some(refused) => *refused = refused.saturating_add(units),
            None if has_room => drop(self.0.insert((rule, key), units)),
            None => {}
        }
    }

    /// Those since the last call.
    pub(super) fn take(&mut self) -> BTreeMap<Subject, u64> {
        let refused = std::mem::take(&mut self.0).into_iter();
        refused.map(|((rule, key), units)| (Subject { rule: rule.to_owned(), key: Some(key) }, units)).collect()
    }
}
