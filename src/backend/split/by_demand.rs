//! Shares by demand: a view of the fleet goes in, this instance's shares come out.
//!
//! A key has its rule's share, until an instance wants it to have its own. Then all
//! measure what it is asked for, and those that have done so divide what they have of it
//! together.
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
//! | it becomes larger | once the view was the same for two gossip intervals, and the others say that they hold no more than the rest |
//! | a member leaves | is divided by demand |
//! | a member is missing | it keeps what it held last; the others divide the rest |
//! | one is missing for long, and most are not | is divided by demand |
//! | all others are missing | an equal part of those that were known last |

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::rule_shares::{Shares, Subject, for_all_rules};
use crate::algorithm::Share;

/// The whole of a limit, of which members hold parts.
pub(super) const WHOLE: u64 = 1 << 40;

/// The most rules that have shares of their own, the most keys that ever had, and the
/// largest demand: what others send must not use up memory, or overflow a sum.
const MAX_RULES: usize = 256;
const MAX_KEYS: usize = 1_024;
pub(super) const MAX_DEMAND: u64 = 1 << 48;

/// What a member says of itself under one rule, or of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Units that it was lately asked for, rounded, and at least 1; 0 for a key that it has
    /// yet to measure.
    pub(super) demand: u64,
    /// The part of the whole that it has, or is about to have.
    pub(super) held: u64,
    /// Of a key: whether it wants a share of its own for it.
    pub(super) is_wanted: bool,
}

/// A member of the fleet, by its claim under each rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) is_live: bool,
    pub(super) claims: Arc<Claims>,
}

pub(super) type Claims = BTreeMap<Subject, Claim>;

impl Member {
    /// Whether another member decides the same: what a live one holds does not.
    fn decides_as(&self, other: &Self) -> bool {
        let decides = |(subject, claim): (&Subject, &Claim)| {
            let own = other.claims.get(subject);
            own.is_some_and(|own| *own == if self.is_live { Claim { held: own.held, ..*claim } } else { *claim })
        };
        let are_same = Arc::ptr_eq(&self.claims, &other.claims)
            || self.claims.len() == other.claims.len() && self.claims.iter().all(decides);
        self.is_live == other.is_live && are_same
    }
}

/// What a member has of a rule or key.
#[derive(Clone, Copy, Debug)]
enum Part {
    Fixed(u64),
    ByDemand(u64),
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

/// Follows the views of one instance.
#[derive(Debug)]
pub(super) struct DemandShares {
    own: String,
    patience: Patience,
    /// The last view that decided otherwise than the one before, and when it came.
    seen: View,
    seen_since: u64,
    missing_since: BTreeMap<String, u64>,
    in_force: Shares,
    targets: Shares,
    /// Keys that a member wants to have shares of their own.
    wanted: BTreeSet<Subject>,
}

impl DemandShares {
    pub(super) fn new(own: String, patience: Patience) -> Self {
        Self {
            own,
            patience,
            seen: View::new(),
            seen_since: 0,
            missing_since: BTreeMap::new(),
            in_force: for_all_rules(Share::none()),
            targets: Shares::new(),
            wanted: BTreeSet::new(),
        }
    }

    /// Follows a view; returns the shares in force if one has changed.
    pub(super) fn update(&mut self, view: View, now: u64) -> Option<Shares> {
        let places = self.places(view, now);
        let is_alone = places.values().filter(|member| member.is_live).count() <= 1;
        let is_same = self.seen.keys().eq(places.keys())
            && self.seen.values().zip(places.values()).all(|(seen, member)| seen.decides_as(member));
        let mut is_changed = false;
        if !is_same {
            (self.seen, self.seen_since) = (places.clone(), now);
            is_changed = self.follow_wanted(&places);
            self.targets = self.all_targets(&places, is_alone);
        }
        // An instance that has just started has yet to be answered.
        let intervals = if places.len() == 1 { 10 } else { 2 };
        let quiet = now.saturating_sub(self.seen_since);
        let is_stable = quiet >= self.patience.gossip_interval.saturating_mul(intervals);
        for (subject, target) in &self.targets {
            let held = self.held(subject);
            let is_guarded = !is_alone && !subject.rule.is_empty();
            let may_grow = || is_stable && (!is_guarded || self.have_made_way(&places, subject, target));
            if held != target && (target.is_smaller_than(held) || may_grow()) {
                self.in_force.insert(subject.clone(), target.clone());
                is_changed = true;
            }
        }
        is_changed.then(|| self.in_force.clone())
    }

    /// Those of the common share, of the rules, and of the keys that have or had shares of
    /// their own.
    fn all_targets(&self, places: &View, is_alone: bool) -> Shares {
        let claimed = places.values().flat_map(|member| member.claims.keys());
        let rules: BTreeSet<&Subject> =
            claimed.chain(self.in_force.keys()).filter(|subject| subject.key.is_none()).collect();
        let target = |subject: &Subject| (subject.clone(), self.target(places, subject, is_alone));
        let mut targets: Shares = rules.into_iter().take(MAX_RULES).map(target).collect();
        for key in self.in_force.keys().filter(|subject| subject.key.is_some()) {
            let of_rule = targets.get(&key.of_rule()).filter(|_| !self.wanted.contains(key)).cloned();
            targets.insert(key.clone(), of_rule.unwrap_or_else(|| self.target(places, key, is_alone)));
        }
        targets
    }

    /// Keys that are wanted have holdings of their own from now on, as long as there is room;
    /// the rule's at first. None is forgotten: an open window, or a bucket, may have been
    /// counted by its shares.
    fn follow_wanted(&mut self, places: &View) -> bool {
        let claims = places.values().filter(|member| member.is_live).flat_map(|member| member.claims.iter());
        let wanted = claims.filter(|(subject, claim)| claim.is_wanted && subject.key.is_some());
        self.wanted.clear();
        let mut count = self.in_force.keys().filter(|subject| subject.key.is_some()).count();
        let mut is_changed = false;
        for key in wanted.map(|(subject, _)| subject).collect::<BTreeSet<_>>() {
            if !self.in_force.contains_key(key) {
                if count >= MAX_KEYS {
                    continue;
                }
                self.in_force.insert(key.clone(), self.held(key).clone());
                (count, is_changed) = (count + 1, true);
            }
            self.wanted.insert(key.clone());
        }
        is_changed
    }

    /// What this instance holds. A key that is new here had its rule's share, and a rule the
    /// common one.
    fn held(&self, subject: &Subject) -> &Share {
        let of_rule = || self.in_force.get(&subject.of_rule()).unwrap_or(&self.in_force[&Subject::default()]);
        self.in_force.get(subject).unwrap_or_else(of_rule)
    }

    /// Whether the others say that they hold no more than what is left beside the target.
    /// Those that are missing say nothing, and have what the target leaves them.
    fn have_made_way(&self, places: &View, subject: &Subject, target: &Share) -> bool {
        let equal = WHOLE / places.len() as u64;
        let of_rule = subject.of_rule();
        let held = |member: &Member| {
            let claim = member.claims.get(subject).or_else(|| member.claims.get(&of_rule));
            claim.map_or(equal, |claim| claim.held)
        };
        let weights = weights(&places.values().collect::<Vec<_>>(), subject);
        let members = places.iter().zip(weights).filter(|((name, _), _)| **name != self.own);
        let others = members.map(|((_, member), weight)| if member.is_live { held(member) } else { weight });
        others.fold(of_whole(target), u64::saturating_add) <= WHOLE + places.len() as u64
    }

    /// The keys that all members measure, each with what they are asked for as far as it is
    /// known.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (&Subject, u64)> {
        let demand = |key| {
            let claims = self.seen.values().filter_map(|member| member.claims.get(key));
            claims.fold(0_u64, |sum, claim| sum.saturating_add(claim.demand))
        };
        self.wanted.iter().map(move |key| (key, demand(key)))
    }

    /// What this instance says of itself, for its demand by rule and key. `wants` are keys
    /// that it wants to have shares of their own.
    pub(super) fn claims(&self, demand: &BTreeMap<Subject, u64>, wants: &BTreeMap<Subject, u64>) -> Claims {
        let rules = self.targets.keys().chain(demand.keys()).filter(|subject| subject.key.is_none());
        let keys = self.wanted.iter().chain(wants.keys());
        let claim = |subject: &Subject| {
            let target = self.targets.get(subject).map_or(0, of_whole);
            let unknown = u64::from(subject.key.is_none());
            Claim {
                demand: demand.get(subject).copied().unwrap_or(unknown),
                held: of_whole(self.held(subject)).max(target),
                is_wanted: wants.contains_key(subject),
            }
        };
        let named = rules.chain(keys).filter(|subject| !subject.rule.is_empty());
        named.map(|subject| (subject.clone(), claim(subject))).collect()
    }

    /// Those of the view that have a place: not those that are missing for long, where most
    /// are not. Two sides that do not see each other are not both most.
    fn places(&mut self, mut view: View, now: u64) -> View {
        let since = |name: &String| self.missing_since.get(name).copied().unwrap_or(now);
        let missing = view.iter().filter(|(_, member)| !member.is_live);
        self.missing_since = missing.map(|(name, _)| (name.clone(), since(name))).collect();
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

    fn target(&self, places: &View, subject: &Subject, is_alone: bool) -> Share {
        let index = places.keys().position(|name| *name == self.own).unwrap_or(0);
        if places.len() == 1 {
            let expected = self.patience.expected.clamp(1, Share::MAX_COUNT);
            return Share::equal(0, expected);
        }
        let members: Vec<&Member> = places.values().collect();
        Share::by_weight(index, &if is_alone { vec![1; members.len()] } else { weights(&members, subject) })
    }
}

/// What a share has of the whole.
fn of_whole(share: &Share) -> u64 {
    let part = u128::from(share.weight) * u128::from(WHOLE) / u128::from(share.total);
    u64::try_from(part).unwrap_or(WHOLE)
}

/// The part of each member, in their order: a missing one has what it held. Of a key, one
/// that has not measured it has what it has of the rule.
fn weights(members: &[&Member], subject: &Subject) -> Vec<u64> {
    let equal = WHOLE / members.len() as u64;
    let claimed = |member: &Member, claim: Claim| match member.is_live {
        true => Part::ByDemand(claim.demand.clamp(1, MAX_DEMAND)),
        false => Part::Fixed(claim.held.clamp(1, WHOLE)),
    };
    let unknown = Claim { demand: 1, held: equal, is_wanted: false };
    let rule = subject.of_rule();
    let of_rule = |member: &&Member| claimed(member, member.claims.get(&rule).copied().unwrap_or(unknown));
    let weights = divided(&members.iter().map(of_rule).collect::<Vec<_>>());
    if subject.key.is_none() {
        return weights;
    }
    let of_key = |(member, weight): (&&Member, &u64)| match member.claims.get(subject) {
        Some(claim) if claim.demand > 0 => claimed(member, *claim),
        _ => Part::Fixed(*weight),
    };
    divided(&members.iter().zip(&weights).map(of_key).collect::<Vec<_>>())
}

/// The weights of all parts: one by demand has at least a quarter of an equal part of what
/// the fixed ones leave, and else what its demand is of all.
fn divided(parts: &[Part]) -> Vec<u64> {
    let equal = WHOLE / parts.len() as u64;
    let fixed = |part: &Part| if let Part::Fixed(weight) = part { *weight } else { 0 };
    let mut weights: Vec<u64> = parts.iter().map(fixed).collect();
    let demand =
        |(index, part): (usize, &Part)| if let Part::ByDemand(demand) = part { Some((*demand, index)) } else { None };
    let mut live: Vec<(u64, usize)> = parts.iter().enumerate().filter_map(demand).collect();
    if live.is_empty() {
        return weights;
    }
    if weights.iter().sum::<u64>() > WHOLE - equal / 8 {
        // They cannot all be right.
        weights.iter_mut().filter(|weight| **weight > 0).for_each(|weight| *weight = equal);
    }
    live.sort_unstable();
    let mut units = u128::from(WHOLE - weights.iter().sum::<u64>());
    let mut demand: u128 = live.iter().map(|(demand, _)| u128::from(*demand)).sum();
    let floor = (units / (4 * live.len() as u128)).max(1);
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

#[cfg(test)]
mod tests;
