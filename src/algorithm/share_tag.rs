//! [`ShareTag`]: under which share a bucket's state was written, in 32 bits.
//!
//! It does not hold the share itself, only the rate that it gave. The
//! invariant: no tag is zero, because zero is the tag of a new state.

use super::share::Share;

/// The number of bits that count the changes of the share.
const EPOCH_BITS: u32 = 6;

/// The number of bits of the rate. It is exact up to a limit of 262,144.
/// Above that, and for a share that is a fraction, it is rounded up by less
/// than one part in 131,000.
const MANTISSA_BITS: u32 = 18;

const EXPONENT_BIAS: i32 = 128;

/// From the top: the exponent and the mantissa of the share's units per
/// window, and the share's epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareTag(u32);

impl ShareTag {
    /// The tag of a state that no share has written.
    pub(super) const NEW: Self = Self(0);

    #[allow(clippy::cast_possible_truncation, reason = "18 and 6 bits")]
    pub(super) fn new(limit: u64, share: &Share, epoch: u64) -> Self {
        let (units, parts) = share.fraction_of(limit);
        let epoch = (epoch & ((1 << EPOCH_BITS) - 1)) as u32;
        if units == 0 {
            return Self(1 << EPOCH_BITS | epoch);
        }
        let bits = |value: u128| (u128::BITS - value.leading_zeros()) as i32;
        let mut exponent = bits(units) - bits(parts) - MANTISSA_BITS as i32;
        loop {
            let (scaled_units, scaled_parts) = scaled(units, parts, -exponent);
            let mantissa = scaled_units.div_ceil(scaled_parts);
            if mantissa >> MANTISSA_BITS == 0 {
                let exponent = (exponent + EXPONENT_BIAS).clamp(0, 255) as u32;
                return Self(exponent << (EPOCH_BITS + MANTISSA_BITS) | (mantissa as u32) << EPOCH_BITS | epoch);
            }
            exponent += 1;
        }
    }

    #[inline]
    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    /// Whether both were written under the same share, though perhaps under
    /// different limits.
    pub(super) fn has_epoch_of(self, other: Self) -> bool {
        (self.0 ^ other.0) & ((1 << EPOCH_BITS) - 1) == 0
    }

    /// The units that come back in `length` nanoseconds, rounded up; `window`
    /// is that of the whole quota.
    pub(super) fn units_in(self, length: u64, window: u64) -> u64 {
        let (rate, exponent) = self.rate();
        let (units, window) = scaled(u128::from(length) * rate, u128::from(window), exponent);
        u64::try_from(units.div_ceil(window)).unwrap_or(u64::MAX)
    }

    /// The nanoseconds, rounded down, in which `units` come back.
    pub(super) fn time_for(self, units: u64, window: u64) -> u64 {
        let (rate, exponent) = self.rate();
        let (rate, window) = scaled(rate, u128::from(window), exponent);
        let length = u128::from(units).saturating_mul(window) / rate.max(1);
        u64::try_from(length).unwrap_or(u64::MAX)
    }

    /// Mantissa and exponent of the units per window.
    fn rate(self) -> (u128, i32) {
        let mantissa = self.0 >> EPOCH_BITS & ((1 << MANTISSA_BITS) - 1);
        let exponent = (self.0 >> (EPOCH_BITS + MANTISSA_BITS)).cast_signed() - EXPONENT_BIAS;
        (mantissa.into(), exponent)
    }
}

/// A fraction times a power of two; saturates.
fn scaled(numerator: u128, denominator: u128, exponent: i32) -> (u128, u128) {
    let shift = |value: u128, by: u32| if by < value.leading_zeros() { value << by } else { u128::MAX };
    match exponent {
        0.. => (shift(numerator, exponent.unsigned_abs()), denominator.max(1)),
        _ => (numerator, shift(denominator.max(1), exponent.unsigned_abs())),
    }
}
