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
