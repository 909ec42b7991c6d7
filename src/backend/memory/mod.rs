//! Deciding in this process: one engine, whichever machines count.
//!
//! `engine` decides, `transaction` holds the locks and the states of one decision,
//! `key_tiers` charges the tiers of one key, `counter` charges one tier, and `settle`
//! makes a `Backend` of the engine.
//!
//! Not here: what a share of a limit is (`split`), and the public backends over
//! the engine.

pub(super) mod counter;
pub(super) mod engine;
mod key_tiers;
pub(super) mod machine_source;
mod settle;
#[cfg(test)]
mod tests;
mod transaction;

/// The most counters that a backend keeps by default.
pub(crate) const MAX_KEYS: usize = 1_000_000;
