use std::{fmt, net::IpAddr, sync::Arc};

use super::weights::whole;
use crate::{algorithm::Portion, error::ConfigError};

/// What one instance has of every limit: the part at `index` of `count` equal
/// ones, or of parts by weight.
///
/// Indexes start at 0. Every instance has to have one of its own, and all the
/// same count (or weights): two instances with the same index admit twice what
/// they should, and a missing index leaves its part unused.
///
/// ```
/// use tower_ratelimit::backend::Share;
///
/// let share = Share::new(3, 96)?;
/// assert_eq!((share.index(), share.count()), (3, 96));
///
/// // A quarter, and three quarters.
/// let small = Share::weighted(0, [1.0, 3.0])?;
/// assert_eq!(small.fraction(), 0.25);
///
/// let error = Share::new(96, 96).unwrap_err();
/// assert_eq!(error.to_string(), "share.index: `96`: must be below the count, 96");
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Share {
    portion: Portion,
}

impl Share {
    /// The most instances there can be.
    pub const MAX_COUNT: u64 = 1 << 20;

    /// One of `count` equal parts. Any integer type will do.
    ///
    /// # Errors
    ///
    /// Where the count is 0 or more than [`MAX_COUNT`](Self::MAX_COUNT), or
    /// the index is not below it.
    pub fn new(
        index: impl TryInto<u64> + Copy + fmt::Display,
        count: impl TryInto<u64> + Copy + fmt::Display,
    ) -> Result<Self, ConfigError> {
        Self::named(index, "share.index", count, "share.count")
    }

    /// The same, for an index and a count that stand elsewhere.
    pub(super) fn named(
        index: impl TryInto<u64> + Copy + fmt::Display,
        index_key: &str,
        count: impl TryInto<u64> + Copy + fmt::Display,
        count_key: &str,
    ) -> Result<Self, ConfigError> {
        let rejected = |key: &str, reason: String| ConfigError::new(key, reason);
        let Some(parts) = count.try_into().ok().filter(|count| (1..=Self::MAX_COUNT).contains(count)) else {
            return Err(rejected(count_key, format!("must be from 1 to {}", Self::MAX_COUNT)).with_value(count));
        };
        match index.try_into().ok().filter(|index| *index < parts) {
            Some(index) => Ok(Self { portion: Portion::equal(index, parts) }),
            None => Err(rejected(index_key, format!("must be below the count, {parts}")).with_value(index)),
        }
    }

    /// The part `weights[index]` of their sum: for instances that differ in
    /// size. All instances have to be given the same weights. Where these are
    /// all the same, it is an equal part. How limits are shared out by weights
    /// stands at [`Split`](super::Split#what-the-fleet-admits).
    ///
    /// Weights become whole numbers, by which limits are shared out exactly:
    /// they are kept as they are where a common factor of a power of two makes
    /// them whole (1, 2.5, 0.125), and rounded to one part in 2^46 of their
    /// sum where it does not (0.1). What has a weight has a part, however
    /// small; what has none admits nothing.
    ///
    /// # Errors
    ///
    /// Where there are no weights or too many, where one is negative or not
    /// finite, where all are 0, and where the index is not below their number.
    pub fn weighted(
        index: impl TryInto<usize> + Copy + fmt::Display,
        weights: impl Into<Arc<[f64]>>,
    ) -> Result<Self, ConfigError> {
        let weights = whole(&weights.into(), Self::MAX_COUNT)?;
        match index.try_into().ok().filter(|index| *index < weights.len()) {
            Some(index) => Ok(Self { portion: Portion::weighted(index, weights) }),
            None => {
                let reason = format!("must be below the number of weights, {}", weights.len());
                Err(ConfigError::new("share.index", reason).with_value(index))
            }
        }
    }

    /// No part of anything: whoever has it admits nothing. An instance that
    /// is yet to be told its share starts with this.
    #[must_use]
    pub const fn none() -> Self {
        Self { portion: Portion::NONE }
    }

    /// The part of `own` among all `addresses`, by their order: each instance
    /// that is given the same set has another. Addresses of another family
    /// than its own are left out, so that instances with two of them count
    /// once; those that are there twice count once.
    ///
    /// # Errors
    ///
    /// Where `own` is not among them.
    pub fn among(own: IpAddr, addresses: impl IntoIterator<Item = IpAddr>) -> Result<Self, ConfigError> {
        let own = own.to_canonical();
        let mut all: Vec<IpAddr> = addresses.into_iter().map(|address| address.to_canonical()).collect();
        all.retain(|address| address.is_ipv4() == own.is_ipv4());
        all.sort_unstable();
        all.dedup();
        match all.binary_search(&own) {
            Ok(index) => Self::named(index, "share.address", all.len(), "share.addresses"),
            Err(_) => {
                let reason = format!("is not among the {} addresses of its kind", all.len());
                Err(ConfigError::new("share.address", reason).with_value(own))
            }
        }
    }

    /// This instance's place among all, from 0 on.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.portion.index()
    }

    /// How many instances there are; 0 for [`none`](Self::none).
    #[must_use]
    pub fn count(&self) -> u64 {
        self.portion.count()
    }

    /// Whether it is no part of anything: [`none`](Self::none), or a weight of
    /// 0.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.portion.is_none()
    }

    /// What part it is, from 0 to 1; rounded, as numbers of this kind are.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        self.portion.fraction()
    }

    pub(super) fn into_portion(self) -> Portion {
        self.portion
    }

    pub(super) fn portion(&self) -> &Portion {
        &self.portion
    }

    pub(super) fn of(portion: Portion) -> Self {
        Self { portion }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, count, fraction) = (self.index(), self.count(), self.fraction());
        f.debug_struct("Share").field("index", &index).field("count", &count).field("fraction", &fraction).finish()
    }
}
