//! Test utilities (feature `test-util`): manual clocks, repeatable jitter, a
//! backend that fails on demand, and the conformance suite for backends.

mod clock;
pub mod conformance;
mod faulty;

pub use self::{
    clock::{ManualClock, TokioClock},
    faulty::{Fault, FaultyBackend},
};
pub use crate::jitter::seeded::SeededJitter;
