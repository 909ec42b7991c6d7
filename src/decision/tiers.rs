use std::cell::Cell;

use super::{Naming, TierStatus};
use crate::quota::Quota;

/// The tiers of a decision.
///
/// Nearly always there is one. It is written in place, field by field, so that
/// a decision is small and made without being copied. Several are kept in a
/// vector that goes back to its thread's pool, so that they cost no allocation
/// either.
#[derive(Clone, Debug)]
pub(super) struct Tiers {
    /// Whether `first` means anything.
    any: bool,
    first: TierStatus,
    /// All of them, where there are several.
    several: Option<Pooled>,
}

const NOTHING: TierStatus = TierStatus {
    rule: &"",
    quota: Quota::per_second(0),
    remaining: 0,
    reset: 0,
    naming: Naming::Alone,
    violated: false,
};

impl Tiers {
    pub(super) const NONE: Self = Self { any: false, first: NOTHING, several: None };

    #[inline]
    pub(super) fn push(&mut self, tier: TierStatus) {
        if self.any {
            return self.push_more(tier);
        }
        self.any = true;
        self.first.rule = tier.rule;
        self.first.quota = tier.quota;
        self.first.remaining = tier.remaining;
        self.first.reset = tier.reset;
        self.first.naming = tier.naming;
        self.first.violated = tier.violated;
    }

    #[cold]
    fn push_more(&mut self, tier: TierStatus) {
        let first = self.first;
        let tiers = self.several.get_or_insert_with(|| {
            let mut tiers = Pooled::take();
            tiers.0.push(first);
            tiers
        });
        tiers.0.push(tier);
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[TierStatus] {
        match &self.several {
            Some(tiers) => &tiers.0,
            None if self.any => std::slice::from_ref(&self.first),
            None => &[],
        }
    }
}

/// A vector from its thread's pool.
#[derive(Clone, Debug)]
struct Pooled(Vec<TierStatus>);

/// How many vectors a thread keeps.
const KEPT: usize = 32;

thread_local! {
    static POOL: Cell<Vec<Vec<TierStatus>>> = const { Cell::new(Vec::new()) };
}

impl Pooled {
    fn take() -> Self {
        let reuse = |pool: &Cell<Vec<_>>| {
            let mut vectors = pool.take();
            let vector = vectors.pop();
            pool.set(vectors);
            vector
        };
        // While the thread ends there is no pool left.
        Self(POOL.try_with(reuse).ok().flatten().unwrap_or_default())
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let mut tiers = std::mem::take(&mut self.0);
        tiers.clear();
        let _ = POOL.try_with(|pool| {
            let mut vectors = pool.take();
            if vectors.len() < KEPT {
                vectors.push(tiers);
            }
            pool.set(vectors);
        });
    }
}
