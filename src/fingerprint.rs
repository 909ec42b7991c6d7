//! Keys without their strings: [`Fingerprint`].
//!
//! It stores nothing. The invariant: hashes are keyed at random for each
//! process, so a client cannot choose two keys that share a counter.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    net::IpAddr,
    sync::LazyLock,
};

use foldhash::{SharedSeed, quality::FoldHasher};

use crate::descriptor::TenantId;

/// Two independent seeds, unknown outside this process.
static SEEDS: LazyLock<[SharedSeed; 2]> =
    LazyLock::new(|| [0u8, 1].map(|salt| SharedSeed::from_u64(RandomState::new().hash_one(salt))));

/// 128 bits that identify a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    high: u64,
    low: u64,
}

impl Fingerprint {
    /// The value of an empty entry; never that of a key.
    pub(crate) const NONE: Self = Self { high: 0, low: 0 };

    #[inline]
    pub(crate) fn new(high: u64, low: u64) -> Self {
        Self { high, low: low.max(1) }
    }

    /// The fingerprint of one tier of the key, in the same shard as the key's
    /// other tiers, and near them.
    #[inline]
    pub(crate) fn tier(self, salt: u64) -> Self {
        Self::new(self.high, self.low ^ (salt >> 16))
    }

    #[inline]
    pub(crate) fn spread_over(self, shards: usize) -> usize {
        scale(self.high, shards)
    }

    /// The index, of `entries`, where a search starts.
    #[inline]
    pub(crate) fn home(self, entries: usize) -> usize {
        scale(self.low, entries)
    }

    pub(crate) fn to_u128(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

/// Maps a word to `0..len`, evenly and without a division.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "less than len")]
fn scale(word: u64, len: usize) -> usize {
    ((u128::from(word) * len as u128) >> 64) as usize
}

/// All parts of a key except the tenant: rule, endpoint and method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope(u64);

impl Scope {
    /// Created once per policy, so with a slower and stronger hash than that of
    /// tenants.
    pub(crate) fn new(parts: &[&str]) -> Self {
        static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(KEYED.hash_one(parts))
    }

    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// The key of a tenant; `None` is the anonymous one.
    #[inline]
    pub(crate) fn key(self, tenant: Option<TenantId<'_>>) -> Fingerprint {
        match tenant {
            Some(TenantId::Name(name)) => self.fingerprint(name.as_bytes()),
            Some(TenantId::Address(IpAddr::V4(address))) => Self(!self.0).fingerprint(&address.octets()),
            Some(TenantId::Address(IpAddr::V6(address))) => Self(!self.0).fingerprint(&address.octets()),
            None => self.shared(),
        }
    }

    /// The key that does not depend on a tenant.
    #[inline]
    pub(crate) fn shared(self) -> Fingerprint {
        Self(self.0.rotate_left(32)).fingerprint(&[])
    }

    #[inline]
    fn fingerprint(self, bytes: &[u8]) -> Fingerprint {
        let [first, second] = &*SEEDS;
        Fingerprint::new(self.hash(first, bytes), self.hash(second, bytes))
    }

    #[inline]
    fn hash(self, seed: &SharedSeed, bytes: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.0, seed);
        hasher.write(bytes);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests;
