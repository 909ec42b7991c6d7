//! Keys without their strings: [`Fingerprint`].
//!
//! It stores nothing. The invariant: hashes are keyed at random for each
//! process, so a client cannot choose two keys that share a counter. All keys of
//! a rule end in the same bits, so that a store can tell whose they are.

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hasher},
    net::IpAddr,
    sync::LazyLock,
};

use foldhash::{SharedSeed, fast::FoldHasher};

use crate::descriptor::TenantId;

/// Two independent seeds, unknown outside this process.
static SEEDS: LazyLock<Seeds> =
    LazyLock::new(|| Seeds([0u8, 1].map(|salt| SharedSeed::from_u64(RandomState::new().hash_one(salt)))));

struct Seeds([SharedSeed; 2]);

/// Never shows them.
impl fmt::Debug for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seeds")
    }
}

/// 128 bits that identify a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    high: u64,
    low: u64,
}

impl Fingerprint {
    /// The value of an empty entry; never that of a key.
    pub(crate) const NONE: Self = Self { high: 0, low: 0 };

    #[cfg(test)]
    pub(crate) fn new(high: u64, low: u64) -> Self {
        Self { high, low: low.max(1) }
    }

    #[allow(clippy::cast_possible_truncation, reason = "splits it into words")]
    pub(crate) fn from_u128(bits: u128) -> Self {
        Self { high: (bits >> 64) as u64, low: (bits as u64).max(1) }
    }

    /// The fingerprint of one tier of the key, in the same shard as the key's
    /// other tiers, and near them. The salt is a [`Scope::salt`].
    pub(crate) fn tier(self, salt: u64) -> Self {
        Self { low: self.low ^ salt, ..self }
    }

    /// A number that all keys of a rule share, and few other rules.
    pub(crate) fn rule(self) -> u64 {
        self.low & RULE_MASK
    }

    /// A number that all keys of a tier of a rule share, and few other tiers.
    pub(crate) fn rule_and_tier(self) -> u64 {
        self.low & (RULE_MASK | TIER_MASK)
    }

    /// A hash of the key.
    pub(crate) fn hash(self) -> u64 {
        let product = u128::from(self.high) * u128::from(self.low | 1);
        #[allow(clippy::cast_possible_truncation, reason = "two halves")]
        let folded = (product >> 64) as u64 ^ product as u64;
        folded
    }

    pub(crate) fn spread_over(self, shards: usize) -> usize {
        scale(self.high, shards)
    }

    /// The index, of `entries`, where a search starts.
    pub(crate) fn home(self, entries: usize) -> usize {
        scale(self.low, entries)
    }

    pub(crate) fn to_u128(self) -> u128 {
        // The lower bits are the ones that differ between all keys.
        u128::from(self.low) << 64 | u128::from(self.high)
    }
}

/// Maps a word to `0..len`, evenly and without a division.
#[allow(clippy::cast_possible_truncation, reason = "less than len")]
fn scale(word: u64, len: usize) -> usize {
    ((u128::from(word) * len as u128) >> 64) as usize
}

/// The bits of a key's lower word that name its rule; never all zero.
const RULE_MASK: u64 = (1 << 16) - 1;

/// The bits of a key's lower word that name the tier; zero without one.
const TIER_MASK: u64 = ((1 << 8) - 1) << 16;

/// All parts of a key except the tenant: rule, endpoint and method. The bits of
/// [`RULE_MASK`] depend on the rule alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    bits: u64,
    seeds: &'static Seeds,
}

impl Scope {
    /// Created once per policy, so with a slower and stronger hash than that of
    /// tenants.
    pub(crate) fn new(parts: &[&str]) -> Self {
        static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let rule = parts.first().map_or(0, |rule| KEYED.hash_one(rule)) & RULE_MASK;
        Self { bits: KEYED.hash_one(parts) & !RULE_MASK | rule.max(1), seeds: &SEEDS }
    }

    /// What distinguishes the keys of a tier from those of others: bits that
    /// move a key neither to another shard nor far away in it.
    pub(crate) fn salt(self) -> u64 {
        self.bits >> 16 & !RULE_MASK
    }

    /// The key of a tenant; `None` is the anonymous one.
    pub(crate) fn key(self, tenant: Option<TenantId<'_>>) -> Fingerprint {
        match tenant {
            Some(TenantId::Name(name)) => self.fingerprint(self.bits, name.as_bytes()),
            Some(TenantId::Address(IpAddr::V4(address))) => self.fingerprint(!self.bits, &address.octets()),
            Some(TenantId::Address(IpAddr::V6(address))) => self.fingerprint(!self.bits, &address.octets()),
            None => self.shared(),
        }
    }

    /// The key that does not depend on a tenant.
    pub(crate) fn shared(self) -> Fingerprint {
        self.fingerprint(self.bits.rotate_left(32), &[])
    }

    fn fingerprint(self, seed: u64, bytes: &[u8]) -> Fingerprint {
        let hash = |shared: &SharedSeed| {
            let mut hasher = FoldHasher::with_seed(seed, shared);
            hasher.write(bytes);
            finalize(hasher.finish())
        };
        let Seeds([first, second]) = self.seeds;
        let (high, low) = (hash(first), hash(second));
        Fingerprint { high, low: low & !(RULE_MASK | TIER_MASK) | self.bits & RULE_MASK }
    }
}

/// Mixes a hash into its upper bits, by which shards and home entries are chosen. Different
/// hashes stay different. foldhash leaves these bits nearly linear in a short name: keys
/// that are numbered in sequence would meet in few shards, and far from their homes.
fn finalize(hash: u64) -> u64 {
    (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests;
