//! The shares of one instance by rule and key ([`Shares`]), those that it has had
//! ([`RuleHistories`]), and the machine of a share ([`CachedMachine`]).
//!
//! It computes no share. The invariants: a rule that has no share of its own has the
//! common one, and a key that has none the rule's, now and in the past; only one thread
//! writes the count of a cached machine.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hasher},
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use foldhash::fast::FixedState;

use crate::{
    algorithm::{Machine, Share, ShareHistory},
    descriptor::TenantId,
    fingerprint::Fingerprint,
    policy::{Tier, charge::Charge},
};

/// What has a share of its own: a rule, or one of its keys. The common share, of all
/// others, is that of the rule without a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Subject {
    pub(super) rule: String,
    /// A [`fleet_key`].
    pub(super) key: Option<u64>,
}

impl Subject {
    pub(super) fn rule(rule: impl Into<String>) -> Self {
        Self { rule: rule.into(), key: None }
    }

    /// The rule of a key.
    #[cfg(any(feature = "gossip", test))]
    pub(super) fn of_rule(&self) -> Self {
        Self::rule(&self.rule)
    }
}

/// The common share, and those of rules and keys that have their own.
pub(super) type Shares = BTreeMap<Subject, Share>;

/// The same share of every rule.
pub(super) fn for_all_rules(common: Share) -> Shares {
    Shares::from([(Subject::default(), common)])
}

/// The shares that an instance has had, and those in force.
#[derive(Clone, Debug)]
pub(super) struct RuleHistories {
    common: ShareHistory,
    rules: HashMap<String, RuleHistory>,
    /// Keys that have shares of their own, by what counts them in this process.
    known: HashMap<u128, u64, FixedState>,
}

#[derive(Clone, Debug)]
struct RuleHistory {
    rule: ShareHistory,
    keys: HashMap<u64, ShareHistory, FixedState>,
}

impl RuleHistories {
    pub(super) fn new(common: Share) -> Self {
        Self { common: ShareHistory::new(common), rules: HashMap::new(), known: HashMap::default() }
    }

    /// The shares of a rule, or of one of its keys.
    pub(super) fn of(&self, rule: &str, key: Option<u64>) -> &ShareHistory {
        let Some(history) = self.rules.get(rule) else { return &self.common };
        key.and_then(|key| history.keys.get(&key)).unwrap_or(&history.rule)
    }

    /// The common share in force.
    pub(super) fn common(&self) -> &Share {
        &self.common.current().share
    }

    pub(super) fn have_keys(&self) -> bool {
        self.rules.values().any(|history| !history.keys.is_empty())
    }

    /// The key that this one is, where it has a share of its own and was seen here.
    pub(super) fn known(&self, key: Fingerprint) -> Option<u64> {
        self.known.get(&key.to_u128()).copied()
    }

    /// The key of a charge that has a share of its own, whether it was seen here or not.
    pub(super) fn find(&self, charge: &Charge<'_>) -> Option<u64> {
        let keys = self.rules.get(charge.rule()).map(|history| &history.keys).filter(|keys| !keys.is_empty())?;
        fleet_key(charge).filter(|key| keys.contains_key(key))
    }

    /// A key that has a share of its own is seen here.
    pub(super) fn learn(&mut self, key: Fingerprint, fleet_key: u64) {
        self.known.insert(key.to_u128(), fleet_key);
    }

    /// Puts shares in force from `now` on; returns whether one is another.
    pub(super) fn change(&mut self, shares: &Shares, now: u64) -> bool {
        let common = &shares[&Subject::default()];
        for Subject { rule, key } in shares.keys().filter(|subject| !subject.rule.is_empty()) {
            let new = || RuleHistory { rule: self.common.clone(), keys: HashMap::default() };
            let history = self.rules.entry(rule.clone()).or_insert_with(new);
            if let Some(key) = key {
                history.keys.entry(*key).or_insert_with(|| history.rule.clone());
            }
        }
        let mut is_changed = self.common.change(common.clone(), now);
        for (rule, history) in &mut self.rules {
            let of_rule = shares.get(&Subject::rule(rule)).unwrap_or(common);
            is_changed |= history.rule.change(of_rule.clone(), now);
            history.keys.retain(|key, history| {
                let share = shares.get(&Subject { rule: rule.clone(), key: Some(*key) });
                is_changed |= share.is_none_or(|share| history.change(share.clone(), now));
                share.is_some()
            });
        }
        self.known.retain(|_, key| self.rules.values().any(|history| history.keys.contains_key(key)));
        is_changed
    }

    /// When the last change was.
    pub(super) fn since(&self) -> u64 {
        let of_rules = self.rules.values().flat_map(|history| history.keys.values().chain([&history.rule]));
        of_rules.chain([&self.common]).map(|history| history.current().since).max().unwrap_or(0)
    }

    /// The clock is at `now` again: a later change counts as if it happened now.
    pub(super) fn step_back(&mut self, now: u64) {
        let of_rules = self.rules.values_mut().flat_map(|history| history.keys.values_mut().chain([&mut history.rule]));
        of_rules.chain([&mut self.common]).for_each(|history| history.step_back(now));
    }
}

/// The key of a charge as all instances know it; `None` where all requests share it.
pub(super) fn fleet_key(charge: &Charge<'_>) -> Option<u64> {
    // Its seeds are fixed, and it is strong enough that no name can be found for another's key.
    let mut hasher = DefaultHasher::new();
    match charge.tenant()? {
        TenantId::Name(name) => hasher.write(name.as_bytes()),
        TenantId::Address(IpAddr::V4(address)) => hasher.write(&address.octets()),
        TenantId::Address(IpAddr::V6(address)) => hasher.write(&address.octets()),
    }
    for part in [charge.endpoint(), charge.method()] {
        hasher.write_u8(0xff);
        hasher.write(part.as_bytes());
    }
    Some(hasher.finish())
}

/// The longest window of a tier of which keys have shares of their own.
const LONGEST_WINDOW: Duration = Duration::from_secs(60);

/// Whether keys may have shares of their own of a tier: one that forgets within a minute what
/// was used. Where a key comes to another instance, it begins with a small share there.
pub(super) fn follows_keys(tier: &Tier) -> bool {
    let (limit, full) = (u128::from(tier.quota.limit()), u128::from(tier.quota.capacity()));
    tier.is_in_flight() || full * tier.quota.window().as_nanos() <= LONGEST_WINDOW.as_nanos() * limit
}

/// The units that one thread was asked for. Only that thread writes it.
pub(super) type Asked = Arc<AtomicU64>;

/// A machine that one thread caches.
pub(super) struct CachedMachine {
    /// Keeps the tier's address from being used again.
    tier: Weak<()>,
    pub(super) machine: Machine,
    /// When it has to be made again.
    pub(super) until: u64,
    asked: Asked,
}

impl CachedMachine {
    /// Keeps the count of the one that it replaces.
    #[cold]
    pub(super) fn new(
        tier: &Tier,
        history: &ShareHistory,
        now: u64,
        old: Option<&Self>,
        count: impl FnOnce() -> Asked,
    ) -> Self {
        let (machine, until) = tier.machine.share(&tier.quota, history, now);
        let asked = old.filter(|old| old.is_used()).map(|old| Arc::clone(&old.asked));
        Self { tier: Arc::downgrade(&tier.identity), machine, until, asked: asked.unwrap_or_else(count) }
    }

    /// Whether its tier is not dropped.
    pub(super) fn is_used(&self) -> bool {
        self.tier.strong_count() > 0
    }

    /// No other thread writes, so no locked instruction is needed.
    #[inline]
    pub(super) fn count(&self, units: u64) {
        self.asked.store(self.asked.load(Ordering::Relaxed).wrapping_add(units), Ordering::Relaxed);
    }
}
