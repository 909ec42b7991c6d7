//! The level `leased`: decides on units that this process has reserved in the store
//! ahead of demand. Rules of other levels never come here.
//!
//! A [`pool`] is what the process knows of one key: the units of its [`lease`], its
//! [`demand`], and its [`in_flight_asks`]. [`pools`] is the table of them. [`level`]
//! decides a request, by units that are there or by asking the store; [`refills`] asks
//! in the background; [`replies`] hands what was leased to requests and pools.
//!
//! Invariant: a request is admitted only by units that the store has charged, and a unit
//! is used once.

mod demand;
mod in_flight_asks;
pub(super) mod instances;
mod last_reply;
mod lease;
pub(super) mod level;
mod limiter_time;
mod pool;
pub(super) mod pool_key;
mod pool_template;
pub(super) mod pools;
mod refills;
pub(super) mod replies;
pub(super) mod returned_units;
