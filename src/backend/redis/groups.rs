//! Requests that are charged in several slots of a cluster. No script reaches
//! into two of them: each slot is asked by itself, all at once, and what one
//! has charged is given back if another rejects.

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    Redis,
    calling::{Work, together},
    change::Change,
    plan::Ask,
};
use crate::{
    backend::{Answer, Outcome, TierState},
    error::BackendError,
    time::nanos,
};

/// How far apart the times may be for which the slots were charged: what a
/// timer is off by.
const APART: u64 = 2_000_000;

/// How often slots are asked for a later time because another one has no
/// earlier.
const MOST_ROUNDS: usize = 4;

/// What is asked of one slot, and what it says. Dropped before all agree, it
/// gives back what it was charged.
struct Group {
    redis: Redis,
    ask: Ask,
    /// With the time, in nanoseconds since the first question, from which its
    /// times are counted.
    answer: Option<(Result<Outcome, BackendError>, u64)>,
}

impl Group {
    fn outcome(&self) -> Option<(&Outcome, u64)> {
        self.answer.as_ref().and_then(|(result, at)| Some((result.as_ref().ok()?, *at)))
    }

    /// When it would go, if it is admitted.
    fn goes(&self) -> Option<u64> {
        let (outcome, at) = self.outcome()?;
        if let Answer::Admitted { wait } = outcome.answer { Some(at.saturating_add(wait)) } else { None }
    }

    /// With its answer, where it had none.
    async fn answered(mut self, now: u64, elapsed: impl Fn() -> u64) -> Self {
        if self.answer.is_none() {
            let answer = self.redis.ask(self.ask.clone(), now).await;
            self.answer = Some((answer, elapsed()));
        }
        self
    }

    /// Gives back what the slot has charged.
    fn undo(&mut self) {
        if let Some((Ok(outcome), _)) = self.answer.take()
            && let Answer::Admitted { wait } = outcome.answer
        {
            self.redis.lane(&self.ask.tag).push(Work::Plain(Change::undo(&self.ask, &outcome, wait)));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.undo();
    }
}

impl Redis {
    /// `slots` says for each charge which of the asks it is in.
    pub(super) async fn ask_all(&self, asks: Vec<Ask>, slots: Vec<Slot>, now: u64) -> Result<Outcome, BackendError> {
        let start = Instant::now();
        // A clock that somebody else moves stands still meanwhile.
        let frozen = self.shared.manner.limiter_time;
        let elapsed = || if frozen { 0 } else { nanos(start.elapsed()) };
        let group = |ask| Group { redis: self.clone(), ask, answer: None };
        let mut groups: Vec<_> = asks.into_iter().map(group).collect();
        for _ in 0..MOST_ROUNDS {
            groups = together(groups.into_iter().map(|group| group.answered(now, elapsed))).await;
            let goes = groups.iter().map(Group::goes).collect::<Option<Vec<_>>>();
            let Some(latest) = goes.and_then(|all| all.into_iter().max()) else { break };
            let at = elapsed();
            let mut agreed = true;
            for group in &mut groups {
                if group.goes().is_some_and(|goes| latest - goes > APART) {
                    group.undo();
                    group.ask.not_before = latest.saturating_sub(at).div_ceil(1_000);
                    agreed = false;
                }
            }
            if agreed {
                let outcome = admitted(&groups, &slots, latest.saturating_sub(at));
                groups.iter_mut().for_each(|group| group.answer = None);
                return Ok(outcome);
            }
        }
        rejected(groups, &slots)
    }
}

/// Which of the asks a charge is in, and how many tiers it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) group: usize,
    pub(super) tiers: usize,
}

/// Where all tiers stand, in the order of the charges.
fn tiers(groups: &[Group], slots: &[Slot], of: impl Fn(&Group, &TierState) -> TierState) -> SmallVec<[TierState; 2]> {
    let mut next: Vec<usize> = groups.iter().map(|_| 0).collect();
    let mut tiers = SmallVec::new();
    for slot in slots {
        for _ in 0..slot.tiers {
            let group = &groups[slot.group];
            let place = next[slot.group];
            next[slot.group] += 1;
            tiers.extend(group.outcome().and_then(|(outcome, _)| outcome.tiers.get(place)).map(|tier| of(group, tier)));
        }
    }
    tiers
}

fn admitted(groups: &[Group], slots: &[Slot], wait: u64) -> Outcome {
    let decided_at = groups.first().and_then(|group| group.outcome()?.0.decided_at);
    let in_its_time = |group: &Group, tier: &TierState| {
        let (Some((outcome, _)), Some(first)) = (group.outcome(), decided_at) else { return *tier };
        let own = if let Answer::Admitted { wait } = outcome.answer { wait } else { 0 };
        let decided = outcome.decided_at.unwrap_or(first);
        // Its own time for which it was charged, and its own end.
        let ahead = decided.saturating_add(own).cast_signed().wrapping_sub(first.saturating_add(wait).cast_signed());
        TierState { ahead, reset: tier.reset.saturating_add(wait).saturating_sub(own), ..*tier }
    };
    Outcome { answer: Answer::Admitted { wait }, tiers: tiers(groups, slots, in_its_time), decided_at }
}

/// The first error, or else what the slots that reject say together.
fn rejected(mut groups: Vec<Group>, slots: &[Slot]) -> Result<Outcome, BackendError> {
    let failed = |group: &&mut Group| matches!(group.answer, Some((Err(_), _)));
    if let Some((Err(error), _)) = groups.iter_mut().find(failed).and_then(|group| group.answer.take()) {
        return Err(error);
    }
    let answers = || groups.iter().filter_map(|group| group.outcome()).map(|(outcome, _)| outcome.answer);
    let (mut never, mut busy, mut after) = (false, None, 0);
    for answer in answers() {
        match answer {
            Answer::Rejected { retry_after: None } => never = true,
            Answer::Rejected { retry_after: Some(retry_after) } => after = after.max(retry_after),
            Answer::Busy { key } => busy = busy.or(Some(key)),
            Answer::Admitted { wait } => after = after.max(wait),
        }
    }
    let rejects = answers().any(|answer| matches!(answer, Answer::Rejected { .. }));
    let answer = match busy {
        _ if never => Answer::Rejected { retry_after: None },
        // The others would let it pass.
        Some(key) if !rejects => Answer::Busy { key },
        _ => Answer::Rejected { retry_after: Some(after) },
    };
    let decided_at = groups.first().and_then(|group| group.outcome()?.0.decided_at);
    Ok(Outcome { answer, tiers: tiers(&groups, slots, |_, tier| *tier), decided_at })
}
