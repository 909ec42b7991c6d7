//! A time in half a word: [`Moment`]. Times are nanoseconds.
//!
//! Invariant: it is rounded down, by at most 66 microseconds, and can be told from times
//! that are less than 39 hours away.

/// A time, in steps of 2^16 nanoseconds. It wraps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment(u32);

const STEP_BITS: u32 = 16;

impl Moment {
    /// Nanoseconds between one moment and the next.
    pub(super) const STEP: u64 = 1 << STEP_BITS;

    #[allow(clippy::cast_possible_truncation, reason = "wraps")]
    pub(super) fn of(time: u64) -> Self {
        Self((time >> STEP_BITS) as u32)
    }

    /// How long ago it was at a time; negative if it is later.
    pub(super) fn age(self, now: u64) -> i64 {
        #[allow(clippy::cast_possible_wrap, reason = "the sign of the difference")]
        let steps = Self::of(now).0.wrapping_sub(self.0) as i32;
        i64::from(steps) << STEP_BITS
    }
}
