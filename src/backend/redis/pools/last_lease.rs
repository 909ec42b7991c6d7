//! What a pool has leased last, and what it is to lease: [`LastLease`] and [`Leased`]. It
//! counts no units.
//!
//! Invariant: a status is as old as the reply that it is from.

use crate::backend::{
    Outcome, OutcomeKind,
    redis::{
        plan::{ChargeSet, LeaseAsk},
        wire::decode::ChargeReply,
    },
};

/// Units that were leased ahead.
pub(super) struct Leased {
    pub(super) set: ChargeSet,
    pub(super) ask: LeaseAsk,
    pub(super) reply: ChargeReply,
    pub(super) units: u64,
    /// The first name of a unit in flight.
    pub(super) first_slot: u64,
    pub(super) lane: usize,
    /// The request that asked, and the time until which the reply took.
    pub(super) asked: u64,
}

/// What was leased last: the status of its tiers, and what to give back.
#[derive(Debug)]
pub(super) struct LastLease {
    pub(super) set: ChargeSet,
    pub(super) reply: ChargeReply,
    /// The lane that leased it.
    pub(super) lane: usize,
    /// What names each unit in flight that is not used.
    pub(super) slots: Vec<u64>,
    /// Whether all its units end with a window, and so are worth nothing after it.
    pub(super) ends_with_window: bool,
    pub(super) interval: u64,
    /// When the store was asked for it.
    pub(super) asked: u64,
}

impl LastLease {
    /// The outcome of a request, with `later` units left.
    pub(super) fn outcome(&self, later: u64, slot: u64, now: u64) -> Outcome {
        let age = now.saturating_sub(self.asked);
        let mut tiers = self.reply.statuses(&self.set, later, slot);
        tiers.iter_mut().for_each(|tier| tier.age = age);
        let decided_at = Some(self.reply.now.saturating_mul(1_000).saturating_add(age));
        Outcome { answer: OutcomeKind::Admitted { wait: 0 }, tiers, decided_at }
    }
}
