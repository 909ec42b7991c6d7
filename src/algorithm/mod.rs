//! How units are counted: one pure state machine per algorithm.
//!
//! Nothing here reads a clock, takes a lock or knows a key. A backend stores
//! one [`State`](state_machine::State) per key and tier and passes it to the
//! tier's [`Machine`] together with the time.
//!
//! **The invariant is monotone conformity.** A cost that conforms at a time
//! conforms at every later time while nothing else is committed. So the
//! earliest time that suits several machines is the latest of their answers,
//! found in one pass, and a commit at a future time is a reservation.
//!
//! **A debt is a series of reservations.** A cost that is known only
//! afterwards is counted whatever the limit says, as if each of its units had
//! been reserved after the one before it. The debt is paid back before
//! anything else is admitted, and no state grows because of it.
//!
//! **A refund never undercounts.** Units that no later charge builds upon are
//! undone exactly. Of the others, a machine refunds only what provably has not
//! come back over time and forfeits the rest. A state never counts less than
//! if the refunded units had never been charged.
//!
//! **A state is never further ahead than it can be.** Its capacity takes a
//! [`span`](state_machine::StateMachine::span) to come back, and a reservation
//! lies at most the longest wait ahead. After the clock was set back, states are
//! ahead of it by more. Until it has caught up, a backend moves them
//! [back](state_machine::StateMachine::move_back) to that bound. What was used
//! stays used, so a key is rejected for at most the bound, not for the whole jump.
//! Of a debt, what exceeds the bound is forgiven.

mod bucket_state;
mod calendar;
mod fixed_window;
mod gcra;
mod in_flight;
mod log_memory;
mod machine;
mod rate;
mod share;
mod sliding_log;
mod sliding_window;
mod split_path;
mod state_machine;
mod window;

#[cfg(test)]
mod tests;

pub use self::share::Share;
pub(crate) use self::{
    bucket_state::{narrowed, widened},
    in_flight::UNKNOWN_TIME,
    log_memory::LogMemory,
    machine::{Machine, MachineOptions},
    rate::gcd,
    share::ShareHistory,
    sliding_log::RequestLog,
    state_machine::{Claim, CompactState, QuotaStatus, State, StateMachine, WideState},
};
