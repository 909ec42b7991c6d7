//! The machine of a tier, or of a key's tier, that a thread caches: [`CachedMachine`].
//!
//! It does not know which share it counts. The invariant: only one thread writes its count.

use std::{
    collections::hash_map::Entry,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    algorithm::{Machine, ShareHistory},
    policy::Tier,
};

/// The longest window of a tier of which keys have shares of their own.
const LONGEST_WINDOW: Duration = Duration::from_secs(60);

/// The units that one thread was asked for. Only that thread writes it.
pub(super) type Asked = Arc<AtomicU64>;

/// A machine that one thread caches.
pub(super) struct CachedMachine {
    /// Keeps the tier's address from being used again.
    tier: Weak<()>,
    pub(super) machine: Machine,
    /// When it has to be made again.
    until: u64,
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

/// The machine of an entry while it holds, else the one that is made.
#[inline]
pub(super) fn renewed<'e, K>(
    entry: Entry<'e, K, CachedMachine>,
    now: u64,
    make: impl FnOnce(Option<&CachedMachine>) -> CachedMachine,
) -> &'e CachedMachine {
    match entry {
        Entry::Occupied(mut cached) => {
            if now >= cached.get().until {
                let made = make(Some(cached.get()));
                cached.insert(made);
            }
            cached.into_mut()
        }
        Entry::Vacant(vacant) => vacant.insert(make(None)),
    }
}

/// Whether keys may have shares of their own of a tier: one that forgets within a minute what
/// was used. Where a key comes to another instance, it begins with a small share there.
pub(super) fn follows_keys(tier: &Tier) -> bool {
    let (limit, full) = (u128::from(tier.quota.limit()), u128::from(tier.quota.capacity()));
    tier.is_in_flight() || full * tier.quota.window().as_nanos() <= LONGEST_WINDOW.as_nanos() * limit
}
