//! The level `leased`: decides on units that this process has reserved in the store
//! ahead of demand. Rules of other levels never come here, and neither do sliding windows
//! and logs (a unit that was reserved in one window may be used in the next), and
//! concurrency limits (each release is a change in the store anyway).
//!
//! A [`pool`] is what the process knows of one key: the units of its [`lease`], its
//! [`demand`], and its exchange with the store. [`pools`] is the table of them. [`level`]
//! decides a request: by units that are there, else by those of an exchange, else by the
//! store. [`exchanges`] sends: at once for a key that is dry, and together at the end of
//! an interval.
//!
//! Invariant: a request is admitted only by units that the store has charged, and a unit
//! is used once.

mod demand;
mod exchanges;
mod last_reply;
mod lease;
pub(super) mod level;
mod pool;
mod pool_key;
mod pool_template;
pub(super) mod pools;
