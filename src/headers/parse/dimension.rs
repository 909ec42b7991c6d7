//! One thing that is limited, and which of several one has to wait for.

use std::{cmp::Reverse, time::Duration};

use super::{Dialect, form::When};
use crate::time::Timestamp;

/// What counts first, first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precedence {
    /// The `RateLimit` of the IETF's draft.
    RateLimit,
    /// A vendor's seconds from now.
    Delay,
    /// A vendor's point in time: it takes two clocks to understand it.
    Date,
}

/// After what time there is more, and in what way that was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reset {
    pub(super) precedence: Precedence,
    pub(super) after: Duration,
}

impl Reset {
    pub(super) const fn new(when: When, from: Timestamp) -> Self {
        let precedence = match when {
            When::After(_) => Precedence::Delay,
            When::Epoch(_) | When::Date(_) => Precedence::Date,
        };
        Self { precedence, after: when.after(from) }
    }

    /// What two lines of one field come to.
    pub(super) fn and(self, other: Self) -> Self {
        Self { precedence: self.precedence.min(other.precedence), after: self.after.max(other.after) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dimension {
    pub(super) dialect: Dialect,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Reset>,
}

impl Dimension {
    const fn is_exhausted(&self) -> bool {
        matches!(self.remaining, Some(0))
    }

    /// After what time there is more, if that is not now.
    fn wait(&self) -> Option<Reset> {
        self.reset.filter(|reset| !reset.after.is_zero())
    }

    /// Least for the one that binds.
    fn order(&self) -> impl Ord + use<> {
        let wait = self.wait();
        // Of those that are exhausted by whom to believe, else by the share
        // that is left.
        let believed = wait.filter(|_| self.is_exhausted()).map_or(Precedence::Date, |wait| wait.precedence);
        let after = wait.map(|wait| wait.after);
        (self.share(), self.is_exhausted() && wait.is_none(), believed, Reverse(after), self.remaining, self.limit)
    }

    /// What is left of it, in millionths; as much as there can be where that
    /// was not said.
    fn share(&self) -> u128 {
        match (self.remaining, self.limit) {
            (Some(0), _) => 0,
            (Some(remaining), Some(limit @ 1..)) => (u128::from(remaining) * 1_000_000).div_ceil(u128::from(limit)),
            (Some(_), _) => u128::MAX - 1,
            (None, _) => u128::MAX,
        }
    }
}

/// All that a response speaks of.
#[derive(Debug, Default)]
pub(super) struct Survey {
    binding: Option<Dimension>,
    /// The one to wait for of those that do not say what remains.
    unsaid: Option<(Reset, Dialect)>,
}

impl Survey {
    pub(super) fn add(&mut self, dimension: Dimension) {
        if self.binding.is_none_or(|binding| dimension.order() < binding.order()) {
            self.binding = Some(dimension);
        }
        let order = |&(reset, _): &(Reset, Dialect)| (reset.precedence, Reverse(reset.after));
        if let (None, Some(wait)) = (dimension.remaining, dimension.wait())
            && self.unsaid.is_none_or(|unsaid| order(&(wait, dimension.dialect)) < order(&unsaid))
        {
            self.unsaid = Some((wait, dimension.dialect));
        }
    }

    pub(super) const fn binding(&self) -> Option<&Dimension> {
        self.binding.as_ref()
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.binding.is_some_and(|binding| binding.is_exhausted())
    }

    /// How long to wait for what is exhausted. Of what does not say what
    /// remains, only a rejection shows that nothing does.
    pub(super) fn wait(&self, rejection: bool) -> Option<(Duration, Dialect)> {
        let exhausted = self.binding.filter(Dimension::is_exhausted);
        let exhausted = exhausted.and_then(|binding| Some((binding.wait()?, binding.dialect)));
        let (wait, dialect) = exhausted.or(self.unsaid.filter(|_| rejection))?;
        Some((wait.after, dialect))
    }
}
