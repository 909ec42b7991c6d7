//! Shares by demand: a view of the fleet goes in, this instance's shares come out.
//!
//! It is pure arithmetic: it reads no clock and sends nothing; `gossip.rs` does. The
//! invariants: equal views give shares that sum to the whole; and an instance never
//! has more than its share by its own view. So where views differ, all instances
//! together have at most the whole, times the largest factor by which two of them
//! differ on one demand, and the shares of those that not all know.
//!
//! | what changes | this instance's share |
//! |---|---|
//! | it becomes smaller | at once |
//! | it becomes larger | once the view was the same for two gossip intervals |
//! | a member leaves | is divided by demand |
//! | a member is missing | it keeps what it held last; the others divide the rest |
//! | one is missing for long, and most are not | is divided by demand |
//! | all others are missing | an equal part of those that were known last |

use std::collections::{BTreeMap, BTreeSet};

use super::rule_shares::RuleShares;
use crate::algorithm::Share;

/// The whole of a limit, of which members hold parts.
pub(super) const WHOLE: u64 = 1 << 40;

/// The most rules that have shares of their own, and the largest demand: what others
/// send must not use up memory, or overflow a sum.
const MAX_RULES: usize = 256;
const MAX_DEMAND: u64 = 1 << 48;

/// What a member says of itself under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Units that it was lately asked for, rounded, and at least 1.
    pub(super) demand: u64,
    /// The part of the whole that it has, or is about to have.
    pub(super) held: u64,
}

/// A member of the fleet, by its claim under each rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) is_live: bool,
    pub(super) claims: BTreeMap<String, Claim>,
}

/// All members by name, this instance included.
pub(super) type View = BTreeMap<String, Member>;

/// How patient an instance is. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) gossip_interval: u64,
    /// How long a missing member keeps its share.
    pub(super) forget_after: u64,
    /// How many instances there are, as long as none has been seen.
    pub(super) expected: u64,
}

/// What this instance holds of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holding {
    part: u64,
    total: u64,
    share: Share,
}

impl Holding {
    fn of(index: usize, weights: &[u64]) -> Self {
        let (part, total) = (weights[index], weights.iter().sum());
        Self { part, total, share: Share::by_weight(index, weights) }
    }

    fn none() -> Self {
        Self { part: 0, total: 1, share: Share::none() }
    }

    fn of_whole(&self) -> u64 {
        let part = u128::from(self.part) * u128::from(WHOLE) / u128::from(self.total.max(1));
        u64::try_from(part).unwrap_or(WHOLE)
    }
}

/// Follows the views of one instance.
#[derive(Debug)]
pub(super) struct DemandShares {
    own: String,
    patience: Patience,
    /// What decides of the last view, and since when it is the same.
    seen: View,
    seen_since: Option<u64>,
    missing_since: BTreeMap<String, u64>,
    /// By rule; the common share has no name.
    in_force: BTreeMap<String, Holding>,
    targets: BTreeMap<String, Holding>,
}

impl DemandShares {
    pub(super) fn new(own: String, patience: Patience) -> Self {
        Self {
            own,
            patience,
            seen: View::new(),
            seen_since: None,
            missing_since: BTreeMap::new(),
            in_force: BTreeMap::from([(String::new(), Holding::none())]),
            targets: BTreeMap::new(),
        }
    }

    /// Follows a view; returns the shares in force if one has changed.
    pub(super) fn update(&mut self, view: View, now: u64) -> Option<RuleShares> {
        let places = self.places(view, now);
        let is_alone = places.values().filter(|member| member.is_live).count() <= 1;
        let seen = deciding(&places);
        if self.seen_since.is_none() || seen != self.seen {
            (self.seen, self.seen_since) = (seen, Some(now));
        }
        // An instance that has just started has yet to be answered.
        let intervals = if is_alone && places.len() == 1 { 10 } else { 2 };
        let quiet = now.saturating_sub(self.seen_since.unwrap_or(now));
        let is_stable = quiet >= self.patience.gossip_interval.saturating_mul(intervals);
        let rules = [String::new()].into_iter().chain(known_rules(&places)).chain(self.in_force.keys().cloned());
        let mut is_changed = false;
        for rule in rules.collect::<BTreeSet<_>>().into_iter().take(MAX_RULES) {
            let target = self.target(&places, &rule, is_alone);
            // A rule that is new here had the common share.
            let common = &self.in_force[""];
            let held = self.in_force.get(&rule).unwrap_or(common);
            if *held != target && (is_stable || target.share.is_smaller_than(&held.share)) {
                self.in_force.insert(rule.clone(), target.clone());
                is_changed = true;
            }
            self.targets.insert(rule, target);
        }
        is_changed.then(|| self.shares())
    }

    /// What this instance says of itself, for its demand by rule.
    pub(super) fn claims(&self, demand: &BTreeMap<String, u64>) -> BTreeMap<String, Claim> {
        let rules = self.targets.keys().chain(demand.keys()).filter(|rule| !rule.is_empty());
        let claim = |rule: &String| {
            let held = self.in_force.get(rule).unwrap_or(&self.in_force[""]).of_whole();
            let target = self.targets.get(rule).map_or(0, Holding::of_whole);
            Claim { demand: demand.get(rule).copied().unwrap_or(1), held: held.max(target) }
        };
        rules.map(|rule| (rule.clone(), claim(rule))).collect()
    }

    /// Those of the view that have a place: not those that are missing for long, where most
    /// are not. Two sides that do not see each other are not both most.
    fn places(&mut self, mut view: View, now: u64) -> View {
        self.missing_since.retain(|name, _| view.get(name).is_some_and(|member| !member.is_live));
        for (name, _) in view.iter().filter(|(_, member)| !member.is_live) {
            self.missing_since.entry(name.clone()).or_insert(now);
        }
        let live = view.values().filter(|member| member.is_live).count();
        if live * 2 > view.len() {
            let since = &self.missing_since;
            let is_forgotten = |name: &String| {
                since.get(name).is_some_and(|since| now.saturating_sub(*since) >= self.patience.forget_after)
            };
            view.retain(|name, _| !is_forgotten(name));
        }
        view.entry(self.own.clone()).or_default().is_live = true;
        view
    }

    fn target(&self, places: &View, rule: &str, is_alone: bool) -> Holding {
        let index = places.keys().position(|name| *name == self.own).unwrap_or(0);
        if is_alone && places.len() == 1 {
            let expected = self.patience.expected.clamp(1, Share::MAX_COUNT);
            return Holding { part: 1, total: expected, share: Share::equal(0, expected) };
        }
        let members: Vec<&Member> = places.values().collect();
        Holding::of(index, &if is_alone { vec![1; members.len()] } else { weights(&members, rule) })
    }

    fn shares(&self) -> RuleShares {
        let share = |holding: &Holding| holding.share.clone();
        let mut rules: BTreeMap<_, _> =
            self.in_force.iter().map(|(rule, holding)| (rule.clone(), share(holding))).collect();
        let common = rules.remove("").unwrap_or(Share::none());
        RuleShares { common, rules }
    }
}

/// What decides of a view: what a live member holds does not.
fn deciding(places: &View) -> View {
    let mut seen = places.clone();
    for claim in seen.values_mut().filter(|member| member.is_live).flat_map(|member| member.claims.values_mut()) {
        claim.held = 0;
    }
    seen
}

fn known_rules(places: &View) -> BTreeSet<String> {
    places.values().flat_map(|member| member.claims.keys()).cloned().collect()
}

/// The part of each member, in their order: a live one has at least a quarter of an
/// equal part, and else what its demand is of all; a missing one what it held.
fn weights(members: &[&Member], rule: &str) -> Vec<u64> {
    let equal = WHOLE / members.len() as u64;
    let missing = Claim { demand: 1, held: equal };
    let claim = |member: &&Member| member.claims.get(rule).copied().unwrap_or(missing);
    let mut weights: Vec<u64> =
        members.iter().map(|member| if member.is_live { 0 } else { claim(member).held.clamp(1, WHOLE) }).collect();
    if weights.iter().sum::<u64>() > WHOLE - equal / 8 {
        // They cannot all be right.
        weights.iter_mut().filter(|weight| **weight > 0).for_each(|weight| *weight = equal);
    }
    let mut live: Vec<(u64, usize)> = (0..members.len())
        .filter(|index| members[*index].is_live)
        .map(|index| (claim(&members[index]).demand.clamp(1, MAX_DEMAND), index))
        .collect();
    live.sort_unstable();
    let mut units = u128::from(WHOLE - weights.iter().sum::<u64>());
    let mut demand: u128 = live.iter().map(|(demand, _)| u128::from(*demand)).sum();
    let floor = (units / (4 * live.len().max(1) as u128)).max(1);
    for (own, index) in live {
        let own = u128::from(own);
        // Those with the least demand come first: no later one falls below the floor
        // once one is above it, and then the proportion stays as it is.
        let part = (units * own / demand).max(floor);
        weights[index] = u64::try_from(part).unwrap_or(WHOLE);
        if part == floor {
            (units, demand) = (units.saturating_sub(floor), demand - own);
        }
    }
    weights
}

/// What an instance is asked for in a round under a rule, averaged over as many rounds as it
/// takes to tell a change from chance: each change of a demand moves shares, and a window
/// that is open keeps the smallest.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// 0 before the first round.
    pub(super) published: u64,
    /// What was counted since it was last compared, and in how many rounds.
    units: u64,
    rounds: u64,
}

/// So many units differ by chance by a 32nd, and so many rounds are the most.
const ENOUGH: u64 = 1_024;
const MOST_ROUNDS: u64 = 60;

impl Demand {
    /// Counts what was asked for in some rounds.
    pub(super) fn count(&mut self, units: u64, rounds: u64) {
        let all = (self.units.saturating_add(units), self.rounds.saturating_add(rounds));
        // A jump shows at once, and without what was before it.
        (self.units, self.rounds) = if self.is_other(units, rounds) { (units, rounds) } else { all };
        let is_due = self.published == 0 || self.units >= ENOUGH || self.rounds >= MOST_ROUNDS;
        if is_due || self.is_other(self.units, self.rounds) {
            self.published = rounded(self.published, self.units / self.rounds.max(1));
            (self.units, self.rounds) = (0, 0);
        }
    }

    /// Whether so many units are of another demand than the published one. By chance, they
    /// differ by more than three times their root once in 400 rounds.
    fn is_other(&self, units: u64, rounds: u64) -> bool {
        let expected = self.published.saturating_mul(rounds);
        units.abs_diff(expected) > expected / 8 + 3 * units.max(expected).isqrt()
    }
}

/// The last demand while it is close, so that noise changes nothing; else the new one, to
/// four bits.
fn rounded(last: u64, demand: u64) -> u64 {
    let demand = demand.clamp(1, MAX_DEMAND);
    if last.abs_diff(demand) <= last / 8 {
        return last;
    }
    let unit = 1_u64 << demand.ilog2().saturating_sub(3);
    (demand + unit / 2) / unit * unit
}

#[cfg(test)]
mod tests;
