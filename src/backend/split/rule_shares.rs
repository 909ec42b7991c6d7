//! The shares of one instance by rule: [`RuleShares`], and those that it has had:
//! [`RuleHistories`].
//!
//! It computes no share. The invariant: a rule that has no share of its own has the
//! common one, now and in the past.

use std::collections::{BTreeMap, HashMap};

use crate::algorithm::{Share, ShareHistory};

/// The common share, and those of rules that have their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleShares {
    pub(super) common: Share,
    pub(super) rules: BTreeMap<String, Share>,
}

impl RuleShares {
    /// The same share of every rule.
    pub(super) fn same(common: Share) -> Self {
        Self { common, rules: BTreeMap::new() }
    }
}

/// The shares that an instance has had, and those in force.
#[derive(Clone, Debug)]
pub(super) struct RuleHistories {
    common: ShareHistory,
    rules: HashMap<String, ShareHistory>,
}

impl RuleHistories {
    pub(super) fn new(common: Share) -> Self {
        Self { common: ShareHistory::new(common), rules: HashMap::new() }
    }

    pub(super) fn of(&self, rule: &str) -> &ShareHistory {
        self.rules.get(rule).unwrap_or(&self.common)
    }

    /// The common share in force.
    pub(super) fn common(&self) -> &Share {
        &self.common.current().share
    }

    /// Puts shares in force from `now` on; returns whether one is another.
    pub(super) fn change(&mut self, mut shares: RuleShares, now: u64) -> bool {
        for rule in shares.rules.keys().filter(|rule| !self.rules.contains_key(*rule)).cloned().collect::<Vec<_>>() {
            self.rules.insert(rule, self.common.clone());
        }
        let mut is_changed = self.common.change(shares.common.clone(), now);
        for (rule, history) in &mut self.rules {
            let share = shares.rules.remove(rule).unwrap_or_else(|| shares.common.clone());
            is_changed |= history.change(share, now);
        }
        is_changed
    }

    /// When the last change was.
    pub(super) fn since(&self) -> u64 {
        self.rules.values().chain([&self.common]).map(|history| history.current().since).max().unwrap_or(0)
    }

    /// The clock is at `now` again: a later change counts as if it happened now.
    pub(super) fn step_back(&mut self, now: u64) {
        self.rules.values_mut().chain([&mut self.common]).for_each(|history| history.step_back(now));
    }
}
