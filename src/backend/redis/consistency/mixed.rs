//! Requests that are charged by rules of several levels.
//!
//! Invariant: all or nothing. What a level has taken is put back unless every other
//! part admits the request, also if the request is dropped meanwhile.

use smallvec::SmallVec;

use super::{
    Levels,
    taken::{Taken, Undo, may_wait, of_level},
};
use crate::{
    backend::{Acquire, AcquireRequest, Charge, Outcome, OutcomeKind, TierState},
    policy::Consistency,
};

/// The levels that decide in this process, in the order in which they are asked.
const LOCAL: [Consistency; 2] = [Consistency::Eventual, Consistency::Leased];

/// What was taken so far. Put back when it is dropped.
#[derive(Default)]
struct TakenParts(Vec<Undo>);

impl TakenParts {
    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for TakenParts {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|undo| undo());
    }
}

impl Levels {
    #[cold]
    pub(super) fn acquire_mixed(&self, request: &AcquireRequest<'_>) -> Acquire {
        if may_wait(request) {
            return self.eventual.ask(request);
        }
        let of_level = |level| of_level(request.charges.iter().copied(), level);
        let mut statuses = Statuses::new(request.charges);
        let mut taken = TakenParts::default();
        for level in LOCAL {
            let charges = of_level(level);
            if charges.is_empty() {
                continue;
            }
            match self.take(level, &AcquireRequest { charges: &charges, ..*request }) {
                Taken::Admitted(outcome, undo) => {
                    statuses.add(level, outcome);
                    taken.0.push(undo);
                }
                Taken::Rejected(outcome) => {
                    let answer = outcome.answer;
                    statuses.add(level, outcome);
                    return Acquire::Ready(Ok(statuses.outcome(answer, None)));
                }
                Taken::Undecided => {
                    drop(taken);
                    return self.eventual.ask(request);
                }
            }
        }
        let charges = of_level(Consistency::Exact);
        if charges.is_empty() {
            taken.keep();
            return Acquire::Ready(Ok(statuses.outcome(OutcomeKind::Admitted { wait: 0 }, None)));
        }
        let mut conclude = move |decided: Result<Outcome, _>| {
            let outcome = decided?;
            let (answer, decided_at) = (outcome.answer, outcome.decided_at);
            if let OutcomeKind::Admitted { .. } = answer {
                std::mem::take(&mut taken).keep();
            }
            statuses.add(Consistency::Exact, outcome);
            Ok(statuses.outcome(answer, decided_at))
        };
        match self.dispatcher.acquire(&AcquireRequest { charges: &charges, ..*request }) {
            Acquire::Ready(result) => Acquire::Ready(conclude(result)),
            Acquire::Pending(reply) => Acquire::Pending(Box::pin(async move { conclude(reply.await) })),
        }
    }
}

/// The status of all tiers of a request, from the outcomes of its parts.
struct Statuses {
    /// The level and the tiers of each charge.
    charges: SmallVec<[(Consistency, SmallVec<[TierState; 2]>); 2]>,
    /// When each part that was decided by a clock of its own was.
    decided: SmallVec<[(Consistency, u64); 2]>,
}

impl Statuses {
    fn new(charges: &[Charge<'_>]) -> Self {
        // The status of a part that was not asked is that of an unused limit.
        let unused = |charge: &Charge<'_>| {
            let tiers = charge.tiers().iter().map(|tier| TierState::unused(tier.quota().limit())).collect();
            (charge.rule.options.consistency, tiers)
        };
        Self { charges: charges.iter().map(unused).collect(), decided: SmallVec::new() }
    }

    fn add(&mut self, level: Consistency, outcome: Outcome) {
        self.decided.extend(outcome.decided_at.map(|at| (level, at)));
        let mut states = outcome.tiers.into_iter();
        let own = self.charges.iter_mut().filter(|(of, _)| *of == level).flat_map(|(_, tiers)| tiers);
        own.zip(&mut states).for_each(|(tier, state)| *tier = state);
    }

    /// The outcome of the whole request. `decided_at` is that of the last part; a
    /// status that is older keeps its own time.
    fn outcome(&mut self, answer: OutcomeKind, decided_at: Option<u64>) -> Outcome {
        let decided_at = decided_at.or_else(|| self.decided.iter().map(|(_, at)| *at).max());
        for (level, tiers) in &mut self.charges {
            let own = self.decided.iter().find(|(of, _)| of == level);
            if let (Some((_, own)), Some(whole)) = (own, decided_at) {
                tiers.iter_mut().for_each(|tier| tier.age = whole.saturating_sub(own.saturating_sub(tier.age)));
            }
        }
        let tiers = self.charges.drain(..).flat_map(|(_, tiers)| tiers).collect();
        Outcome { answer, tiers, decided_at }
    }
}
