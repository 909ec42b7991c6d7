//! The constructors of [`Share`], which check what they are given.
//!
//! How a limit is shared out is in `algorithm/share.rs`. The invariant: an
//! index is below the number of instances, and not all weights are zero.

use std::{fmt, net::IpAddr, sync::Arc};

use super::weights::to_integers;
pub use crate::algorithm::Share;
use crate::error::ConfigError;

impl Share {
    /// One of `count` equal shares. Any integer type will do.
    ///
    /// # Errors
    ///
    /// If the count is 0 or above [`MAX_COUNT`](Self::MAX_COUNT), or the index
    /// is not below it.
    pub fn new(
        index: impl TryInto<u64> + Copy + fmt::Display,
        count: impl TryInto<u64> + Copy + fmt::Display,
    ) -> Result<Self, ConfigError> {
        Self::from_keys(index, "share.index", count, "share.count")
    }

    /// One of `count` equal shares; errors name the given keys.
    pub(super) fn from_keys(
        index: impl TryInto<u64> + Copy + fmt::Display,
        index_key: &str,
        count: impl TryInto<u64> + Copy + fmt::Display,
        count_key: &str,
    ) -> Result<Self, ConfigError> {
        let rejected = |key: &str, reason: String| ConfigError::new(key, reason);
        let Some(instances) = count.try_into().ok().filter(|count| (1..=Self::MAX_COUNT).contains(count)) else {
            return Err(rejected(count_key, format!("must be from 1 to {}", Self::MAX_COUNT)).with_value(count));
        };
        match index.try_into().ok().filter(|index| *index < instances) {
            Some(index) => Ok(Self::equal(index, instances)),
            None => Err(rejected(index_key, format!("must be below the count, {instances}")).with_value(index)),
        }
    }

    /// The share `weights[index]` of their sum, for instances that differ in
    /// size. All instances need the same weights. Equal weights give equal
    /// shares. How a limit is shared out by weight is described at
    /// [`Split`](super::Split#what-the-fleet-admits).
    ///
    /// Weights become integers, by which limits are shared out exactly. They
    /// are kept as they are if multiplication by a power of two makes all of
    /// them whole (1, 2.5, 0.125). Otherwise (0.1) they are rounded to one part
    /// in 2^46 of their sum. An instance with a weight has a share, however
    /// small; one with a weight of 0 admits nothing.
    ///
    /// # Errors
    ///
    /// If there are no weights or more than [`MAX_COUNT`](Self::MAX_COUNT), if
    /// one is negative or not finite, if all are 0, or if the index is not
    /// below their number.
    pub fn weighted(
        index: impl TryInto<usize> + Copy + fmt::Display,
        weights: impl Into<Arc<[f64]>>,
    ) -> Result<Self, ConfigError> {
        let weights = to_integers(&weights.into(), Self::MAX_COUNT)?;
        match index.try_into().ok().filter(|index| *index < weights.len()) {
            Some(index) => Ok(Self::by_weight(index, &weights)),
            None => {
                let reason = format!("must be below the number of weights, {}", weights.len());
                Err(ConfigError::new("share.index", reason).with_value(index))
            }
        }
    }

    /// The share of the instance at `own` among all `addresses`, in their
    /// order. All instances have to be given the same set.
    ///
    /// Addresses of another family than `own` are left out, so an instance with
    /// an address of each family counts once. Duplicates count once.
    ///
    /// # Errors
    ///
    /// If `own` is not among them.
    pub fn among(own: IpAddr, addresses: impl IntoIterator<Item = IpAddr>) -> Result<Self, ConfigError> {
        let own = own.to_canonical();
        let mut all: Vec<IpAddr> = addresses.into_iter().map(|address| address.to_canonical()).collect();
        all.retain(|address| address.is_ipv4() == own.is_ipv4());
        all.sort_unstable();
        all.dedup();
        match all.binary_search(&own) {
            Ok(index) => Self::from_keys(index, "share.address", all.len(), "share.addresses"),
            Err(_) => {
                let reason = format!("is not among the {} addresses of its kind", all.len());
                Err(ConfigError::new("share.address", reason).with_value(own))
            }
        }
    }
}
