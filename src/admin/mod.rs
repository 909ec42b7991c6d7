//! A page for operators, and the same as JSON: [`Admin`].
//!
//! It shows the policy in force, the requests and top tenants of each rule, the state of the
//! backend, signals of overload, and what a tenant's counters have left; and it resets
//! counters, overrides a tenant's tiers and blocks tenants, each for a while.
//!
//! It decides no request. `access.rs` says who may use it, `report.rs` what is shown,
//! `page.rs` how, `action.rs` what is done. Invariant: every text of a policy, a request or a
//! tenant passes `text.rs` before it is shown.

mod access;
mod action;
mod escape;
mod page;
mod report;
mod service;
mod text;

pub use self::service::Admin;
