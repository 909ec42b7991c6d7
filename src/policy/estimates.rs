//! What requests turn out to cost, of which one that does not know its cost reserves what
//! suffices for most: [`Estimates`].
//!
//! They neither charge nor settle. Invariant: their memory grows with the rules, whatever
//! keys requests have: keys share classes, and a class has the latest costs only.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use smallvec::SmallVec;

use crate::{fingerprint::Fingerprint, sync::lock};

/// The classes of a rule, which take up to 36 KB.
const CLASSES: usize = 64;

/// The costs that a class remembers.
const LATEST: usize = 64;

/// Of fewer costs than these, even the highest may be that of less than 95 of 100 requests.
const LEAST: usize = 20;

/// What requests have cost, by rule and class of keys. A rule has none until a request asks.
#[derive(Debug, Default)]
pub(crate) struct Estimates(RwLock<BTreeMap<&'static str, Vec<Class>>>);

/// What the latest requests of some keys have cost.
#[derive(Debug)]
struct Class {
    /// What 95 of 100 have cost at most; the largest number where too few are known.
    usual: AtomicU64,
    latest: Mutex<VecDeque<u64>>,
}

impl Default for Class {
    fn default() -> Self {
        Self { usual: AtomicU64::new(u64::MAX), latest: Mutex::default() }
    }
}

impl Class {
    fn learn(&self, cost: u64) {
        let mut latest = lock(&self.latest);
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(cost);
        let mut known: SmallVec<[u64; LATEST]> = latest.iter().copied().collect();
        known.sort_unstable();
        if known.len() >= LEAST {
            self.usual.store(known[(known.len() * 95).div_ceil(100) - 1], Ordering::Relaxed);
        }
    }
}

impl Estimates {
    /// What most requests of this key have cost; the largest number where too few are known.
    pub(super) fn usual(&self, rule: &'static str, key: Fingerprint) -> u64 {
        let of_rule = |classes: &Vec<Class>| classes[class_of(key)].usual.load(Ordering::Relaxed);
        if let Some(usual) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(rule).map(of_rule) {
            return usual;
        }
        let mut rules = self.0.write().unwrap_or_else(PoisonError::into_inner);
        of_rule(rules.entry(rule).or_insert_with(|| (0..CLASSES).map(|_| Class::default()).collect()))
    }

    /// A request of this key has cost so much.
    pub(crate) fn learn(&self, rule: &'static str, key: Fingerprint, cost: u64) {
        if let Some(classes) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(rule) {
            classes[class_of(key)].learn(cost);
        }
    }
}

/// Keys are hashes already.
#[allow(clippy::cast_possible_truncation, reason = "a remainder")]
fn class_of(key: Fingerprint) -> usize {
    (key.to_u128() % CLASSES as u128) as usize
}

#[cfg(test)]
mod tests;
