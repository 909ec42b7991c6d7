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
    change::{Change, Lease, What},
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
    /// Claims have been moved, of which others may wait to move some.
    pub(super) moved: Arc<Notify>,
    /// The lane itself, for what has to follow.
    pub(super) lane: Weak<Lane<Self>>,
}

/// Units in flight that were charged to a request which may be gone by now:
/// dropped, they are let go of.
#[derive(Debug, Default)]
pub(super) struct Held {
    leases: Vec<Lease>,
    now: Option<u64>,
    lane: Weak<Lane<Calling>>,
}

impl Held {
    /// Somebody has taken them over.
    pub(super) fn keep(mut self) {
        self.leases.clear();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.leases.is_empty()
            && let Some(lane) = self.lane.upgrade()
        {
            lane.push(Work::Plain(self.leases.drain(..).map(|lease| lease.let_go(self.now)).collect()));
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

    /// What a request holds in flight from now on.
    pub(super) fn held(&self, ask: &Ask, outcome: &Outcome) -> Held {
        if ask.in_flight.is_empty() || !matches!(outcome.answer, Answer::Admitted { .. }) {
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
        leases(&self.leases).extend(held.iter().map(|lease| (lease.clone(), self.number)));
        Held { leases: held, now: ask.now, lane: self.lane.clone() }
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

    /// What is held in flight lets go of itself; the rest stays charged, as if
    /// the request had gone.
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
