//! From what is asked to calls of the scripts, and back.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::Poll,
};

use foldhash::fast::RandomState;
use tokio::sync::Notify;

use super::{
    change::{Change, Lease, Moved, What},
    lane::{Calls, Lane, Sending},
    link::Link,
    plan::{Ask, Manner, Part},
    round::Round,
    single,
};
use crate::{
    backend::{Answer, Outcome, Receipt},
    error::BackendError,
    time::Timestamp,
};

/// What is asked of a lane.
#[derive(Debug)]
pub(super) enum Work {
    Decide(Ask),
    Change {
        receipt: Receipt,
        what: What,
        now: Timestamp,
    },
    /// What holds or lets go of units in flight, and what takes back a whole
    /// request.
    Plain(Vec<Change>),
}

/// What comes of it.
#[derive(Debug)]
pub(super) enum Done {
    Decided(Outcome, Held),
    Changed,
}

/// The units in flight that this process holds, so that it can go on holding
/// them.
pub(super) type Leases = Mutex<HashMap<Lease, usize, RandomState>>;

pub(super) fn leases(leases: &Leases) -> MutexGuard<'_, HashMap<Lease, usize, RandomState>> {
    leases.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends the work of one lane.
#[derive(Debug)]
pub(super) struct Calling {
    pub(super) number: usize,
    pub(super) manner: Arc<Manner>,
    pub(super) link: Arc<Link>,
    pub(super) instance: u64,
    pub(super) leases: Arc<Leases>,
    /// Turns that were to be given back, while others were built upon them.
    pub(super) built_upon: Mutex<Vec<Change>>,
    /// Claims have been moved, of which others may wait to move some.
    pub(super) moved: Arc<Notify>,
    /// The lane itself, for what has to follow.
    pub(super) lane: Weak<Lane<Self>>,
}

/// So many turns that others have built upon are kept, of each lane.
const MOST_BUILT_UPON: usize = 256;

/// What is not to be left behind by a request which may be gone by now: units in
/// flight are let go of when this is dropped, and a turn that is yet to come is
/// given back.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// By what that is done.
    changes: Vec<Change>,
    lane: Weak<Lane<Calling>>,
}

impl Held {
    /// Somebody has taken it over.
    pub(super) fn keep(mut self) {
        self.changes.clear();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.changes.is_empty()
            && let Some(lane) = self.lane.upgrade()
        {
            lane.push(Work::Plain(std::mem::take(&mut self.changes)));
        }
    }
}

impl Calling {
    /// What is let go of is not to be held on to any more, by those who come
    /// later.
    pub(super) fn settle_leases(&self, changes: &mut Vec<Change>) {
        let mut held = leases(&self.leases);
        changes.retain(|change| match Lease::of(change) {
            Some((lease, true)) => held.contains_key(&lease),
            Some((lease, false)) => {
                held.remove(&lease);
                true
            }
            None => true,
        });
    }

    /// A turn that others have built upon stays where it is, until theirs have
    /// come back: those who hang up while the store is asked have often been
    /// asked for one after another. What comes back then has to be given back
    /// once more.
    pub(super) fn gave_back(&self, changes: Vec<Change>, moved: &[Moved], owners: &[Option<usize>]) {
        let mut built_upon = self.built_upon.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = Vec::new();
        for ((change, moved), owner) in changes.into_iter().zip(moved).zip(owners) {
            if change.is_built_upon(moved) {
                // What a receipt is for has been forfeited.
                if owner.is_none() {
                    let excess = (built_upon.len() + 1).saturating_sub(MOST_BUILT_UPON);
                    built_upon.drain(..excess);
                    built_upon.push(change);
                }
            } else if change.gives_back() && !built_upon.is_empty() {
                free.push((change, *moved));
            }
        }
        let mut again = Vec::new();
        for (last, moved) in free {
            if built_upon.iter().any(|change| change.is_next(&last, &moved)) {
                again.extend(built_upon.extract_if(.., |change| change.key == last.key));
            }
        }
        drop(built_upon);
        if !again.is_empty()
            && let Some(lane) = self.lane.upgrade()
        {
            lane.push(Work::Plain(again));
        }
    }

    /// What a request holds from now on: units in flight, and its turn.
    pub(super) fn held(&self, ask: &Ask, outcome: &Outcome) -> Held {
        let Answer::Admitted { wait } = outcome.answer else { return Held::default() };
        if wait == 0 && ask.in_flight.is_empty() {
            return Held::default();
        }
        let holds = ask.parts.iter().filter(|part| part.definition.holds());
        let lease = |part: &Part| Lease {
            tag: ask.tag.clone(),
            key: part.key.clone(),
            request: ask.request,
            definition: part.definition,
        };
        let held: Vec<_> = holds.map(lease).collect();
        let changes = match wait {
            0 => held.iter().map(|lease| lease.let_go(ask.now)).collect(),
            // Lets go as well.
            _ => Change::undo(ask, outcome, wait),
        };
        leases(&self.leases).extend(held.into_iter().map(|lease| (lease, self.number)));
        Held { changes, lane: self.lane.clone() }
    }
}

impl Calls for Calling {
    type Ask = Work;
    type Answer = Done;

    async fn call(&self, mut work: Vec<(Work, usize)>, sending: Sending<Self>) -> Vec<Result<Done, BackendError>> {
        let mut sending = Some(sending);
        if let [(Work::Decide(ask), 1)] = &mut work[..]
            && let Some(call) = single::call(ask)
        {
            let answer = sent(sending.take(), self.link.call(self.number, &call)).await;
            match answer.and_then(|value| single::read(ask, &call, &value)) {
                Ok(Some(outcome)) => return vec![Ok(Done::Decided(outcome, Held::default()))],
                Ok(None) => ask.is_hard = true,
                Err(error) => return vec![Err(error)],
            }
        }
        let mut answers: Vec<_> = (0..work.iter().map(|(_, count)| count).sum()).map(|_| None).collect();
        // Nearly always once: what was written under another limit is asked
        // about once more, and who changes a claim twice does so in turn.
        let mut round = Round::new(self, work);
        loop {
            if !round.is_empty() {
                round = round.send(self, sending.take(), &mut answers).await;
            } else if round.is_held_up() {
                drop(sending.take());
                let moved = self.moved.notified();
                round = round.again(self);
                if round.is_empty() {
                    // No longer than what holds it up may take.
                    let _ = self.link.deadline().within(moved).await;
                }
            } else {
                break;
            }
        }
        // What is changed has no answer.
        answers.into_iter().map(|answer| answer.unwrap_or(Ok(Done::Changed))).collect()
    }

    /// What is held in flight, and a turn that is yet to come, gives itself
    /// back; who was to go at once stays charged, as if it had gone.
    fn abandoned(&self, done: Done) {
        drop(done);
    }
}

/// Says that it is sent once it is polled.
pub(super) async fn sent<F: Future>(sending: Option<Sending<Calling>>, future: F) -> F::Output {
    match sending {
        Some(sending) => sending.with(future).await,
        None => future.await,
    }
}

/// All of them at once, sent in their order.
pub(super) async fn together<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |cx| {
        let mut is_pending = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(done) => *output = Some(done),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        if is_pending { Poll::Pending } else { Poll::Ready(outputs.iter_mut().filter_map(Option::take).collect()) }
    })
    .await
}
