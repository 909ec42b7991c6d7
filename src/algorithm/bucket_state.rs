//! What is stored of a bucket: its [`Arrival`], in two words or in six.
//!
//! It decides nothing. The invariant: a state says under which limit and share
//! it was written, so a key keeps what it has used when these change. Either
//! form can become the other.

use super::state_machine::{CompactState, State, WideState};

/// The theoretical arrival time: when all units have come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(super) stamp: Stamp,
    /// Whole nanoseconds, as far as a word can count.
    pub(super) nanos: u64,
    /// The parts of the rate beyond them.
    pub(super) excess: u128,
}

/// What six words say in addition, to refund units that later charges build
/// upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ledger {
    /// How many nanoseconds were refunded; wraps.
    pub(super) refunded: u64,
    /// The latest time charged for.
    pub(super) latest: u64,
}

/// More than is refunded while a request lasts: 208 days.
pub(super) const FORFEITED: u64 = 1 << 54;

impl Ledger {
    /// Ends all claims: they are in the terms of another limit, share or clock,
    /// in which their units cannot be found any more.
    pub(super) fn forfeit(&mut self) {
        self.refunded = self.refunded.wrapping_add(FORFEITED);
    }
}

/// A state that holds an arrival time.
pub(crate) trait BucketState: State + Copy {
    /// Whether it can hold times that a word of nanoseconds cannot.
    const IS_WIDE: bool;

    fn arrival(&self) -> Arrival;

    /// Replaces the arrival time, and keeps the ledger.
    fn set_arrival(&mut self, arrival: Arrival);

    fn ledger(&self) -> Option<Ledger>;

    fn set_ledger(&mut self, ledger: Ledger);
}

/// The number of bits of a fraction in two words: enough for the exact rate of
/// every limit whose stamp is exact.
pub(super) const FRACTION_BITS: u32 = 26;

/// The words are: whole nanoseconds; the stamp, and parts of a nanosecond.
impl BucketState for CompactState {
    const IS_WIDE: bool = false;

    #[inline]
    fn arrival(&self) -> Arrival {
        let [nanos, low] = *self;
        let fraction = low & ((1 << FRACTION_BITS) - 1);
        Arrival { stamp: Stamp(low >> FRACTION_BITS), nanos, excess: fraction.into() }
    }

    /// A fraction that does not fit is rounded up.
    #[inline]
    fn set_arrival(&mut self, Arrival { stamp, nanos, excess }: Arrival) {
        let (nanos, fraction) = match u64::try_from(excess) {
            Ok(excess) if excess >> FRACTION_BITS == 0 => (nanos, excess),
            _ => (nanos.saturating_add(1), 0),
        };
        *self = [nanos, stamp.0 << FRACTION_BITS | fraction];
    }

    fn ledger(&self) -> Option<Ledger> {
        None
    }

    fn set_ledger(&mut self, _: Ledger) {}
}

/// The words are: whole nanoseconds; the upper and lower half of the parts
/// beyond them; the stamp; the ledger.
impl BucketState for WideState {
    const IS_WIDE: bool = true;

    fn arrival(&self) -> Arrival {
        let [nanos, upper, lower, stamp, ..] = *self;
        Arrival { stamp: Stamp(stamp), nanos, excess: u128::from(upper) << 64 | u128::from(lower) }
    }

    #[allow(clippy::cast_possible_truncation, reason = "two halves")]
    fn set_arrival(&mut self, Arrival { stamp, nanos, excess }: Arrival) {
        [self[0], self[1], self[2], self[3]] = [nanos, (excess >> 64) as u64, excess as u64, stamp.0];
    }

    fn ledger(&self) -> Option<Ledger> {
        Some(Ledger { refunded: self[4], latest: self[5] })
    }

    fn set_ledger(&mut self, ledger: Ledger) {
        [self[4], self[5]] = [ledger.refunded, ledger.latest];
    }
}

/// The same arrival time in six words. Claims on it are forfeited: nothing says
/// what was charged after them, except that it lies before the arrival time.
pub(crate) fn widened(state: CompactState) -> WideState {
    let (mut wide, arrival) = (WideState::default(), state.arrival());
    wide.set_arrival(arrival);
    wide.set_ledger(Ledger { refunded: FORFEITED, latest: arrival.nanos.saturating_add(1) });
    wide
}

/// The same arrival time in two words.
pub(crate) fn narrowed(state: WideState) -> CompactState {
    let mut compact = CompactState::default();
    compact.set_arrival(state.arrival());
    compact
}

/// Under which limit, of the whole quota, and in which epoch of the share a
/// state was written.
///
/// The limit is held in 32 bits, rounded up: exact below 67 million, and never
/// off by more than one part in 33 million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u64);

const MANTISSA_BITS: u32 = 26;
const EPOCH_BITS: u32 = 6;

impl Stamp {
    pub(super) fn new(limit: u64, epoch: u64) -> Self {
        let mut exponent = (u64::BITS - limit.leading_zeros()).saturating_sub(MANTISSA_BITS);
        let mut mantissa = limit.div_ceil(1 << exponent);
        if mantissa >> MANTISSA_BITS != 0 {
            exponent += 1;
            mantissa = limit.div_ceil(1 << exponent);
        }
        let limit = u64::from(exponent) << MANTISSA_BITS | mantissa;
        Self(limit << EPOCH_BITS | epoch & ((1 << EPOCH_BITS) - 1))
    }

    /// Whether the state is that of a new key. So is what a limit of nothing wrote.
    #[inline]
    pub(super) fn is_new(self) -> bool {
        self.0 == 0
    }

    /// Whether both were written under the same share, though perhaps under
    /// different limits.
    pub(super) fn has_epoch_of(self, other: Self) -> bool {
        (self.0 ^ other.0) & ((1 << EPOCH_BITS) - 1) == 0
    }

    /// Whether the limit cannot have been rounded.
    pub(super) fn is_exact(self) -> bool {
        self.0 >> (EPOCH_BITS + MANTISSA_BITS) == 0
    }

    pub(super) fn limit(self) -> u64 {
        let mantissa = u128::from(self.0 >> EPOCH_BITS & ((1 << MANTISSA_BITS) - 1));
        u64::try_from(mantissa << (self.0 >> (EPOCH_BITS + MANTISSA_BITS))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
