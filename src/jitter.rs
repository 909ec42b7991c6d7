//! Delays that grow, and their random parts, so that the callers and instances
//! that were put off together do not return together.
//!
//! It knows neither what is delayed nor why. Invariant: no delay and no draw
//! exceeds its bound, so that a delay keeps both of its ends.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use crate::time::nanos;

/// A number in `0..=most`, uniform within rounding.
pub(crate) fn draw(most: u64) -> u64 {
    let scaled = (u128::from(random()) * (u128::from(most) + 1)) >> 64;
    u64::try_from(scaled).unwrap_or(most)
}

/// Between half of `delay` and all of it.
pub(crate) fn shorten(delay: Duration) -> Duration {
    let nanos = nanos(delay);
    Duration::from_nanos(nanos - draw(nanos / 2))
}

/// An exponential delay: `base`, doubled so many times, and at most `max`.
pub(crate) fn doubled(base: Duration, times: u32, max: Duration) -> Duration {
    let factor = 1_u64.checked_shl(times).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos(base).saturating_mul(factor).min(nanos(max)))
}

/// The standard library seeds each `RandomState` differently, so that no
/// generator has to be kept.
fn random() -> u64 {
    #[cfg(feature = "test-util")]
    if let Some(seeded) = seeded::next() {
        return seeded;
    }
    RandomState::new().hash_one(())
}

#[cfg(feature = "test-util")]
pub(crate) mod seeded {
    //! Jitter that tests can repeat: [`SeededJitter`].
    //!
    //! Invariant: a seed changes the jitter of its own thread only.

    use std::{cell::Cell, marker::PhantomData};

    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Makes all jitter on this thread repeatable until it is dropped: the same
    /// seed gives the same sequence. It holds for cooldowns, `Retry-After`,
    /// [`Backoff`](crate::Backoff), retries and reconnects.
    ///
    /// With Tokio's paused time on its current-thread runtime, as in
    /// `#[tokio::test(start_paused = true)]`, a whole test is repeatable. Other
    /// threads keep their random jitter.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Backoff, testing::SeededJitter};
    ///
    /// let delays = |seed| {
    ///     let _jitter = SeededJitter::new(seed);
    ///     let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60)).jitter(true);
    ///     [backoff.failed("pod-7"), backoff.failed("pod-7")]
    /// };
    /// assert_eq!(delays(1), delays(1));
    /// assert_ne!(delays(1), delays(2));
    /// ```
    #[derive(Debug)]
    #[must_use = "jitter is random again when this is dropped"]
    pub struct SeededJitter {
        previous: Option<u64>,
        /// It belongs to its thread.
        not_send: PhantomData<*const ()>,
    }

    impl SeededJitter {
        /// Starts the sequence of `seed`.
        pub fn new(seed: u64) -> Self {
            Self { previous: STATE.replace(Some(seed)), not_send: PhantomData }
        }
    }

    /// The sequence before it goes on.
    impl Drop for SeededJitter {
        fn drop(&mut self) {
            STATE.set(self.previous);
        }
    }

    /// The next number of the sequence (`SplitMix64`), if there is one.
    pub(super) fn next() -> Option<u64> {
        let state = STATE.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(Some(state));
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    }
}

#[cfg(test)]
mod tests;
