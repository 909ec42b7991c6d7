//! What the store said of the tiers of a pool, in little memory: [`Numbers`]. It does not
//! know what they mean.
//!
//! Invariant: it gives the numbers again that it was made of.

/// Three numbers of each tier.
#[derive(Clone, Debug)]
pub(super) enum Numbers {
    /// Of one tier, as most rules have. Windows longer than 71 minutes need more.
    Narrow([u32; 3]),
    Wide(Box<Wide>),
}

#[derive(Clone, Debug)]
pub(super) struct Wide(Box<[[u64; 3]]>);

impl Numbers {
    pub(super) fn new(tiers: &[[u64; 3]]) -> Self {
        if let [[first, second, third]] = *tiers
            && let (Ok(first), Ok(second), Ok(third)) = (first.try_into(), second.try_into(), third.try_into())
        {
            return Self::Narrow([first, second, third]);
        }
        Self::Wide(Box::new(Wide(tiers.into())))
    }

    /// Those of the tier at an index.
    #[inline]
    pub(super) fn of(&self, tier: usize) -> [u64; 3] {
        match self {
            Self::Narrow(numbers) => numbers.map(u64::from),
            Self::Wide(all) => all.0.get(tier).copied().unwrap_or_default(),
        }
    }
}
