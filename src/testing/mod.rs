//! For tests (feature `test-util`): clocks that are moved by hand, a backend
//! that fails on demand, and the suite that says whether a backend keeps the
//! contract.

mod clock;
pub mod conformance;
mod faulty;

pub use self::{
    clock::{ManualClock, TokioClock},
    faulty::{Fault, FaultyBackend},
};
