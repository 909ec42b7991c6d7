//! The lowest floor of the Redis backend: charges and receipts in the terms of
//! the scripts. It knows no bytes, no scripts and no connections.
//!
//! Invariant: the same charge gives the same key and definition on every
//! instance, since instances meet only in the store.

mod change;
mod charge_set;
mod definition;
mod fixed_point;
mod key;

pub(crate) use self::{
    change::{Change, ChangeOp, CounterCharge, ReceiptOp},
    charge_set::{ChargeSet, LEASE, LeaseAsk, TierCharge},
    definition::{Definition, PlanContext, ends_with_window, is_leasable},
    fixed_point::{Span, micros},
    key::{RESERVED, RESERVED_IN_TAG, around_tag, percent_encode},
};
