//! How a simulated fleet shares its limit, what fails meanwhile, and what it did.
//!
//! Used by `tests/sim.rs` and `benches/simulate`.
#![allow(dead_code, reason = "each uses some of it")]

use tower_ratelimit::{Consistency, FailureMode};

use super::fleet::Window;

/// How the fleet shares its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Level(Consistency),
    /// Each instance adds its own count to the last known one, and exchanges it each
    /// interval.
    Naive,
}

/// What fails.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Of a thousand replies.
    pub(crate) lost: u64,
    /// Whether an instance is killed in each second, and another one starts.
    pub(crate) kills: bool,
    /// In which second the store freezes, and for how many seconds.
    pub(crate) frozen: Option<(usize, u64)>,
    pub(crate) failure_mode: FailureMode,
}

/// What a fleet did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) windows: Vec<Window>,
    /// Scripts that the store has run, in each second.
    pub(crate) calls: Vec<u64>,
}

impl Outcome {
    /// How much of the limit was used, in percent, from the second window on.
    pub(crate) fn used(&self) -> f64 {
        let used = |window: &Window| window.admitted.min(window.limit);
        100.0 * self.sum(used) as f64 / self.sum(|window| window.limit) as f64
    }

    /// What was admitted beyond it, on average, in percent.
    pub(crate) fn over(&self) -> f64 {
        100.0 * self.sum(Window::over) as f64 / self.sum(|window| window.limit) as f64
    }

    /// The most units beyond the limit of a window.
    pub(crate) fn worst(&self) -> u64 {
        self.counted().iter().map(Window::over).max().unwrap_or(0)
    }

    /// A second, on average.
    pub(crate) fn calls(&self) -> f64 {
        let counted = &self.calls[1.min(self.calls.len())..];
        counted.iter().sum::<u64>() as f64 / counted.len().max(1) as f64
    }

    /// All windows but the first, in which the instances get to know the key.
    fn counted(&self) -> &[Window] {
        &self.windows[1.min(self.windows.len())..]
    }

    fn sum(&self, of: impl Fn(&Window) -> u64) -> u64 {
        self.counted().iter().map(of).sum()
    }
}
