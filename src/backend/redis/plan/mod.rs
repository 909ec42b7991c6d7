//! The lowest floor of the Redis backend: charges and receipts in the terms of
//! the scripts. It knows no bytes, no scripts and no connections.
//!
//! Invariant: the same charge gives the same key and definition on every
//! instance, since instances meet only in the store.

pub(crate) mod change;
pub(crate) mod charge_set;
pub(crate) mod definition;
pub(crate) mod fixed_point;
pub(crate) mod key;
