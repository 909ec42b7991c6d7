//! The theoretical arrival time of a bucket: how it is counted, in parts of a
//! nanosecond ([`Rate`]), and how it is stored, in two words or in six
//! ([`BucketState`]).
//!
//! It decides nothing. The invariant: a state says under which limit and share
//! it was written, so a key keeps what it has used when these change. Either
//! form can become the other. No interval is ever rounded: rounding one to whole
//! nanoseconds would turn 600 million a second into a billion.

use super::{CompactState, State, WideState};

/// So many units in so many nanoseconds, in lowest terms. 3 a second is
/// 1,000,000,000 / 3, not 333,333,333.
///
/// A nanosecond has `units` parts, so every unit takes whole parts: `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) units: u64,
    pub(super) period: u64,
}

impl Rate {
    /// A rate of no units counts as one in `period`: its bucket holds nothing.
    pub(super) fn new((units, period): (u64, u64)) -> Self {
        Self { units: units.max(1), period: period.max(1) }
    }

    /// Whether units take longer than at the other rate.
    pub(super) fn is_slower_than(self, other: Self) -> bool {
        u128::from(self.period) * u128::from(other.units) > u128::from(other.period) * u128::from(self.units)
    }

    /// The parts that so many units take. Less than 2^128: two factors of 64 bits.
    pub(super) fn time_for(self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.period)
    }

    pub(super) fn parts(self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.units)
    }

    /// Whole nanoseconds, rounded up; saturates.
    pub(super) fn nanos(self, parts: u128) -> u64 {
        let (nanos, rest) = self.split(parts);
        nanos.saturating_add(u64::from(rest > 0))
    }

    /// Whole nanoseconds, rounded down, and the parts beyond them; saturates.
    pub(super) fn split(self, parts: u128) -> (u64, u128) {
        match u64::try_from(parts) {
            // The parts of most rates are nanoseconds. A division takes as long as
            // all the rest of a decision.
            Ok(nanos) if self.units == 1 => (nanos, 0),
            Ok(parts) => (parts / self.units, u128::from(parts % self.units)),
            Err(_) => {
                let nanos = u64::try_from(parts / u128::from(self.units)).unwrap_or(u64::MAX);
                (nanos, parts - self.parts(nanos))
            }
        }
    }

    /// The units that come back in this time, rounded up; saturates.
    pub(super) fn units_in(self, parts: u128) -> u64 {
        u64::try_from(parts.div_ceil(u128::from(self.period))).unwrap_or(u64::MAX)
    }
}

/// The theoretical arrival time: when all units have come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(super) stamp: Stamp,
    /// Whole nanoseconds, as far as a word can count.
    pub(super) nanos: u64,
    /// The parts of the rate beyond them.
    pub(super) excess: u128,
    /// Whether slots are reserved that a change to a lower limit has found. A higher
    /// limit does not move the arrival time closer then, or the slots would be given
    /// again after each change.
    pub(super) is_reserved: bool,
}

impl Arrival {
    /// Whole nanoseconds, rounded up.
    pub(super) fn end(&self) -> u64 {
        self.nanos.saturating_add(u64::from(self.excess > 0))
    }
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
    /// Whether it has a ledger, knows every limit, and can hold times that a word of
    /// nanoseconds cannot.
    const IS_WIDE: bool;

    /// The stamp of a limit, as the state can hold it.
    fn stamp(limit: u64, epoch: u64) -> Stamp;

    fn arrival(&self) -> Arrival;

    /// Replaces the arrival time, and keeps the ledger.
    fn set_arrival(&mut self, arrival: Arrival);

    /// What a state that was written under these terms says beside whole nanoseconds, if
    /// that is one word.
    fn terms(_: Stamp) -> Option<u64> {
        None
    }

    /// The arrival time, if the state was written under these terms.
    fn whole_nanos(&self, _terms: u64) -> Option<u64> {
        None
    }

    /// Replaces the arrival time, under the same terms.
    fn set_whole_nanos(&mut self, _nanos: u64) {}

    fn ledger(&self) -> Option<Ledger>;

    fn set_ledger(&mut self, ledger: Ledger);
}

/// The number of bits of a fraction in two words: enough for the exact rate of
/// every limit that they hold exactly.
pub(super) const FRACTION_BITS: u32 = 26;

const MANTISSA_BITS: u32 = 26;
const EPOCH_BITS: u32 = 6;

/// The bits below the stamp in the second of two words: a fraction, and whether slots
/// are reserved.
const LOW_BITS: u32 = FRACTION_BITS + 1;

/// The bits above the parts in the second of six words: the epoch, and whether slots
/// are reserved.
const HIGH_BITS: u32 = EPOCH_BITS + 1;

/// The lowest bits of a word.
fn lowest(bits: u32, word: u64) -> u64 {
    word & ((1 << bits) - 1)
}

/// The words are: whole nanoseconds; and from the top the limit's code, the epoch,
/// whether slots are reserved, and parts of a nanosecond. The limit is rounded up: exact
/// below 67 million, and never off by more than one part in 33 million.
impl BucketState for CompactState {
    const IS_WIDE: bool = false;

    fn stamp(limit: u64, epoch: u64) -> Stamp {
        Stamp { limit: limit_of(code_of(limit)), epoch: lowest(EPOCH_BITS, epoch) }
    }

    fn arrival(&self) -> Arrival {
        let [nanos, low] = *self;
        let (fraction, stamp) = (lowest(FRACTION_BITS, low), low >> LOW_BITS);
        let is_reserved = low >> FRACTION_BITS & 1 == 1;
        let stamp = Stamp { limit: limit_of(stamp >> EPOCH_BITS), epoch: lowest(EPOCH_BITS, stamp) };
        Arrival { stamp, nanos, excess: fraction.into(), is_reserved }
    }

    /// A fraction that does not fit is rounded up.
    fn set_arrival(&mut self, Arrival { stamp, nanos, excess, is_reserved }: Arrival) {
        let (nanos, fraction) = match u64::try_from(excess) {
            Ok(excess) if excess >> FRACTION_BITS == 0 => (nanos, excess),
            _ => (nanos.saturating_add(1), 0),
        };
        let stamp = code_of(stamp.limit) << EPOCH_BITS | stamp.epoch;
        *self = [nanos, stamp << LOW_BITS | u64::from(is_reserved) << FRACTION_BITS | fraction];
    }

    fn terms(stamp: Stamp) -> Option<u64> {
        let mut state = Self::default();
        state.set_arrival(Arrival { stamp, nanos: 0, excess: 0, is_reserved: false });
        Some(state[1])
    }

    fn whole_nanos(&self, terms: u64) -> Option<u64> {
        (self[1] == terms).then_some(self[0])
    }

    fn set_whole_nanos(&mut self, nanos: u64) {
        self[0] = nanos;
    }

    fn ledger(&self) -> Option<Ledger> {
        None
    }

    fn set_ledger(&mut self, _: Ledger) {}
}

/// A limit as a float of 31 bits, rounded up. As in IEEE 754, the highest bit of the
/// mantissa is not stored where there is an exponent, and a mantissa that overflows
/// carries into it.
fn code_of(limit: u64) -> u64 {
    let exponent = (u64::BITS - limit.leading_zeros()).saturating_sub(MANTISSA_BITS);
    let mantissa = (limit >> exponent) + u64::from(lowest(exponent, limit) > 0);
    (u64::from(exponent) << (MANTISSA_BITS - 1)) + mantissa
}

/// The limit of a code; saturates.
fn limit_of(code: u64) -> u64 {
    let exponent = (code >> (MANTISSA_BITS - 1)).saturating_sub(1);
    let mantissa = code - (exponent << (MANTISSA_BITS - 1));
    u64::try_from(u128::from(mantissa) << exponent).unwrap_or(u64::MAX)
}

/// The words are: whole nanoseconds; the parts beyond them, in a word and in the
/// lowest bits of the one before, whose other bits are the epoch and whether slots
/// are reserved; the limit; the ledger.
impl BucketState for WideState {
    const IS_WIDE: bool = true;

    fn stamp(limit: u64, epoch: u64) -> Stamp {
        Stamp { limit, epoch: lowest(EPOCH_BITS, epoch) }
    }

    fn arrival(&self) -> Arrival {
        let [nanos, upper, lower, limit, ..] = *self;
        let stamp = Stamp { limit, epoch: upper >> (u64::BITS - EPOCH_BITS) };
        let is_reserved = upper >> (u64::BITS - HIGH_BITS) & 1 == 1;
        let upper = lowest(u64::BITS - HIGH_BITS, upper);
        Arrival { stamp, nanos, excess: u128::from(upper) << 64 | u128::from(lower), is_reserved }
    }

    #[allow(clippy::cast_possible_truncation, reason = "two halves")]
    fn set_arrival(&mut self, Arrival { stamp, nanos, excess, is_reserved }: Arrival) {
        let excess = excess.min(MOST_PARTS);
        let terms = stamp.epoch << 1 | u64::from(is_reserved);
        let upper = terms << (u64::BITS - HIGH_BITS) | (excess >> 64) as u64;
        [self[0], self[1], self[2], self[3]] = [nanos, upper, excess as u64, stamp.limit];
    }

    fn ledger(&self) -> Option<Ledger> {
        Some(Ledger { refunded: self[4], latest: self[5] })
    }

    fn set_ledger(&mut self, ledger: Ledger) {
        [self[4], self[5]] = [ledger.refunded, ledger.latest];
    }
}

/// The most parts that six words hold.
pub(super) const MOST_PARTS: u128 = u128::MAX >> HIGH_BITS;

/// The same arrival time in six words. Claims on it are forfeited: nothing says
/// what was charged after them, except that it lies before the arrival time.
pub(crate) fn widened(state: CompactState) -> WideState {
    let (mut wide, mut arrival) = (WideState::default(), state.arrival());
    if !arrival.stamp.is_exact_in_two_words() && arrival.excess > 0 {
        (arrival.nanos, arrival.excess) = (arrival.nanos.saturating_add(1), 0);
    }
    wide.set_arrival(arrival);
    wide.set_ledger(Ledger { refunded: FORFEITED, latest: arrival.nanos.saturating_add(1) });
    wide
}

/// The same arrival time in two words.
pub(crate) fn narrowed(state: WideState) -> CompactState {
    let (mut compact, arrival) = (CompactState::default(), state.arrival());
    let stamp = CompactState::stamp(arrival.stamp.limit, arrival.stamp.epoch);
    compact.set_arrival(Arrival { stamp, ..arrival });
    compact
}

/// Under which limit, of the whole quota, and in which epoch of the share a
/// state was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(super) limit: u64,
    pub(super) epoch: u64,
}

impl Stamp {
    /// Whether the state is that of a new key. So is what a limit of nothing wrote.
    pub(super) fn is_new(self) -> bool {
        self == Self { limit: 0, epoch: 0 }
    }

    /// Whether the limit cannot have been rounded.
    pub(super) fn is_exact_in_two_words(self) -> bool {
        self.limit >> MANTISSA_BITS == 0
    }
}

#[cfg(test)]
mod tests {
    mod bucket_state;
    mod rate;
}
