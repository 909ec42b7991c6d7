//! The record of a request that cannot be decided at once: what it asks, what is left
//! of its wait, its place among the waiters, and the step that it is at.
//!
//! | step | holds | waits for | event | next |
//! |---|---|---|---|---|
//! | `Ask` | its charges | the backend's reply | it replied | as for a new request, with its outcome |
//! | | | | it replied, but a cooldown has started | refunds what was charged; starts again |
//! | | | | no reply in time | failure modes; in a queue, stays there |
//! | `CoolDown` | its charges | a timer | the cooldown is over | starts again |
//! | `Queue` | its charges, and a position | a call of its queue | first, and called | starts again, and keeps its position until it leaves |
//! | | | | may wait no longer | `Done`: rejected by its last outcome |
//! | `Sleep` | a slot in the future | a timer, or a call of its queue | its slot was moved to another time | `Sleep` |
//! | | | | a cooldown has started | refunds the slot; starts again |
//! | | | | another tenant's waiter has its slot (fairness) | `Done`: rejected |
//! | | | | its slot has come | `Done`: admitted; or `PutOff` |
//! | `PutOff` | its lease | a timer | a cooldown has started | refunds what was charged; starts again |
//! | | | | its time has come | `Done`: admitted; or `PutOff`, if its schedule has started again |
//! | `AskShadows` | what the step that follows holds | replies for shadow rules | all are there | the step decided before |
//! | `Done` | its lease, if it was admitted | the inner service, in the middleware | a cooldown has started | refunds what was charged; starts again |
//!
//! `Sleep`, `PutOff`, `AskShadows` and `Done` are decided. All but `Done` count as waiters, and
//! `AskShadows` does as the step that follows does. To start again is to ask as a
//! new request does, under the policy in force, at the current adaptive rates, with what
//! is left of the wait. So a new cooldown or policy needs no code of its own.
//!
//! What ends a step is in `drive.rs`. Nothing is decided here.
//!
//! Invariant: an [`Admission`] that is dropped gives back all that it holds: its
//! slot, its position in a queue, and its count among the waiters.

use std::{mem, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{
    attempt::{Attempt, AttemptOptions},
    current::PolicySnapshot,
    lease::Lease,
    observe,
    permit::Charged,
    queue::{is_adaptive, is_of, longest_in_queue, priority_in, rate_queues},
    reservation::Reservation,
    state::RateLimiter,
    wait::{WaiterGrant, fifo::QueueEntry},
};
use crate::{
    backend::{InProcess, Outcome, OwnedCharge},
    decision::Decision,
    error::BackendError,
    fingerprint::Fingerprint,
    jitter::shorten,
    policy::charge::Charges,
    time::{Timestamp, nanos},
};

/// The first request of a queue is decided again at least this often: a store
/// may release a unit, or this instance's share may grow, unnoticed.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// But not more often than this, from where it doubles about each time: most units are in
/// flight for a short time.
const ASK_AGAIN_FIRST: Duration = Duration::from_millis(10);

/// The longest wait under an adaptive concurrency limit while its queue shows overload.
const OVERLOADED_WAIT: Duration = Duration::from_millis(10);

/// What a request does next.
pub(super) enum Step {
    /// The decision holds. `None`: the request was rejected, or has nothing to
    /// keep.
    Done(Option<Arc<Lease>>),
    /// Admitted: sleep until the reserved slot.
    Sleep(Box<Reservation>),
    /// Admitted: sleep until the time to which a resume schedule has put it off.
    PutOff(Arc<Lease>),
    /// A key is cooling down: sleep until that is over, then start again.
    CoolDown(Timestamp),
    /// Wait in the queue of a key until called, then start again.
    Queue(Box<Queue>),
    /// Wait for the backend's reply.
    Ask(Box<Ask>),
    /// Admitted: wait for the backend's replies for shadow rules.
    AskShadows(Box<ShadowReplies>),
}

pub(super) struct Queue {
    pub(super) key: Fingerprint,
    /// Why the request queues, and why it is rejected if it times out.
    pub(super) outcome: Outcome,
    /// For how long the first request of the queue need not be decided again.
    pub(super) pause: Option<Duration>,
}

pub(super) struct Ask {
    pub(super) reply: BoxFuture<'static, Result<Outcome, BackendError>>,
    /// When the backend was asked.
    pub(super) now: Timestamp,
    /// How long to wait for the reply. Without it, the backend's own deadline is
    /// the bound.
    pub(super) reply_timeout: Option<Duration>,
}

pub(super) struct ShadowReplies {
    /// The replies that have not arrived yet, each with its charge.
    pub(super) replies: Vec<(OwnedCharge, BoxFuture<'static, Result<Outcome, BackendError>>)>,
    /// When the backend was asked.
    pub(super) now: Timestamp,
    pub(super) leases: Vec<Lease>,
    pub(super) path: Option<String>,
    /// The step that follows.
    pub(super) then: Step,
}

impl Step {
    /// Whether the request counts as a waiter. A request that only awaits the
    /// replies for shadow rules does not.
    pub(super) fn waits(&self) -> bool {
        match self {
            Self::Done(_) => false,
            Self::AskShadows(replies) => replies.then.waits(),
            _ => true,
        }
    }

    /// Whether the enforced rules have decided.
    pub(super) fn is_decided(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Sleep(_) | Self::PutOff(_) | Self::AskShadows(_))
    }

    /// Until when an admitted request sleeps.
    pub(super) fn departs(&self) -> Option<Timestamp> {
        match self {
            Self::Sleep(reservation) => Some(reservation.at()),
            Self::PutOff(lease) => Some(lease.sent()),
            _ => None,
        }
    }
}

/// A request that is decided, or waits to be. Boxed where it is made, so that
/// requests without one pay for a pointer only.
pub(crate) struct Admission {
    pub(super) limiter: RateLimiter,
    pub(super) options: AttemptOptions,
    /// When the waits in `options` and in the charges began. On the timer's clock,
    /// since the limiter's may be set.
    since: Instant,
    /// `None` where it is decided: the charges are in its receipt. Boxed, since
    /// most waiters are decided.
    undecided: Option<Box<Undecided>>,
    waiter: WaiterGrant,
    pub(super) step: Step,
    /// Leases of shadow rules, which are charged once: the request keeps them, whichever
    /// slot it gets.
    pub(super) shadows: Vec<Lease>,
    /// Whether its wait was reported.
    is_timed: bool,
}

/// What is still to be charged.
#[derive(Default)]
struct Undecided {
    enforced: Vec<OwnedCharge>,
    shadow: Vec<OwnedCharge>,
    /// The request's path, where there are shadow rules.
    path: Option<String>,
    entry: Option<QueueEntry>,
}

/// What follows the first decision of a request.
pub(crate) enum Next {
    /// It is sent now, and keeps this lease, if any; or it is rejected.
    Done(Option<Arc<Lease>>),
    /// It waits.
    Wait(Box<Admission>),
}

/// What a first decision writes. Passed down and filled in: it is too large to return.
pub(super) struct Decided<'d> {
    pub(super) decision: &'d mut Decision,
    /// What a permit keeps of a request that was charged at once.
    pub(super) charged: Option<Charged>,
}

impl<'d> Decided<'d> {
    pub(super) fn new(decision: &'d mut Decision) -> Self {
        Self { decision, charged: None }
    }
}

impl Admission {
    #[cold]
    pub(super) fn new(attempt: &mut Attempt<'_>, step: Step) -> Box<Self> {
        let keep = |charges| OwnedCharge::all(charges, attempt.snapshot.policy);
        let undecided = (!step.is_decided()).then(|| {
            Box::new(Undecided {
                enforced: keep(attempt.enforced),
                shadow: keep(attempt.shadow),
                path: attempt.path.filter(|_| !attempt.shadow.is_empty()).map(str::to_owned),
                ..Undecided::default()
            })
        });
        let waiter = if step.waits() { attempt.waiter.take() } else { WaiterGrant::NotRequested };
        let (limiter, options, since) = (attempt.limiter.clone(), attempt.options, Instant::now());
        let shadows = mem::take(&mut attempt.leases);
        let mut admission =
            Box::new(Self { limiter, options, since, undecided, waiter, step, shadows, is_timed: false });
        admission.enter_queue();
        admission
    }

    /// The request has waited. One that starts again afterwards, for a cooldown,
    /// is not reported twice.
    pub(super) fn report_wait(&mut self, decision: &Decision) {
        if decision.is_allowed() && !self.options.peeks() && !mem::replace(&mut self.is_timed, true) {
            observe::waited(decision.wait());
        }
    }

    /// The request is sent: what it keeps.
    #[allow(clippy::boxed_local, reason = "it comes in a box")]
    pub(crate) fn take_lease(self: Box<Self>) -> Option<Arc<Lease>> {
        if let Step::Done(lease) = self.step { Lease::send(lease, self.shadows) } else { None }
    }

    /// If a key of the admitted request is cooling down by now: gives back its
    /// slot and starts again, behind the cooldown. It leaves first, so that it
    /// is in no other request's way.
    pub(crate) fn restart_if_cooling_down(&mut self, decision: &mut Decision) -> bool {
        let (Step::PutOff(lease) | Step::Done(Some(lease))) = &mut self.step else { return false };
        let is_cooling_down = lease.is_cooling_down();
        if is_cooling_down {
            let enforced = lease.receipt().kept().cloned().collect();
            lease.refund();
            self.undecided = Some(Box::new(Undecided { enforced, ..Undecided::default() }));
            self.options.counted = true;
            self.waiter = WaiterGrant::NotRequested;
            self.restart(decision);
        }
        is_cooling_down
    }

    /// It counts as a waiter for as long as it waits, and gives back what shadow rules have
    /// charged if it is rejected.
    pub(super) fn take_step(&mut self, step: Step, decision: &Decision) {
        if !step.waits() {
            self.waiter = WaiterGrant::NotRequested;
        }
        if step.is_decided() && !decision.is_allowed() {
            self.shadows.clear();
        }
        self.step = step;
    }

    /// Starts again, with what is left of the wait.
    pub(super) fn restart(&mut self, decision: &mut Decision) {
        self.spend(self.elapsed());
        self.refresh();
        if let WaiterGrant::Full = self.waiter {
            self.waiter = WaiterGrant::NotRequested;
        }
        self.admit((self.limiter.now(), 0), decision, |attempt, decision| attempt.ask(decision));
    }

    /// Has it decided again, `waited` nanoseconds after it began to wait, and takes
    /// the next step.
    pub(super) fn admit(
        &mut self,
        (now, waited): (Timestamp, u64),
        decision: &mut Decision,
        decide: impl FnOnce(&mut Attempt<'_>, &mut Decision) -> Step,
    ) {
        decision.clear();
        let step = self.decide((now, waited), |attempt| decide(attempt, decision)).unwrap_or(Step::Done(None));
        let is_decided = step.is_decided();
        self.take_step(step, decision);
        match &self.step {
            Step::Queue(_) => self.enter_queue(),
            Step::Ask(_) => {}
            _ => {
                // Only now the next of its queue is called.
                self.undecided.iter_mut().for_each(|undecided| undecided.entry = None);
                self.spend(waited);
                if is_decided {
                    self.undecided = None;
                }
            }
        }
    }

    /// `None` where it has no charges.
    fn decide(
        &mut self,
        (now, waited): (Timestamp, u64),
        decide: impl FnOnce(&mut Attempt<'_>) -> Step,
    ) -> Option<Step> {
        let waiter = mem::take(&mut self.waiter);
        let Undecided { enforced, shadow, path, entry, .. } = self.undecided.as_deref()?;
        let policy = enforced.first()?.policy();
        let enforced: Charges<'_> = enforced.iter().map(|kept| kept.charge().after_waiting(waited)).collect();
        let shadow = charges_of(shadow);
        let (step, waiter, leases) = self.limiter.inner.current.with(|in_force| {
            let (snapshot, options) = (PolicySnapshot { policy, ..in_force }, self.options.after(waited));
            let mut attempt = Attempt::new(&self.limiter, snapshot, (&enforced, &shadow), now, options);
            attempt.queued = entry.as_ref();
            attempt.path = path.as_deref();
            attempt.waiter = waiter.into();
            let step = decide(&mut attempt);
            (step, attempt.waiter.take(), attempt.leases)
        });
        self.waiter = waiter;
        self.shadows.extend(leases);
        Some(step)
    }

    /// Its enforced charges, where it is undecided.
    pub(super) fn charges(&self) -> Charges<'_> {
        charges_of(self.kept())
    }

    pub(super) fn kept(&self) -> &[OwnedCharge] {
        self.undecided.as_ref().map_or(&[], |undecided| &undecided.enforced)
    }

    pub(super) fn since_asked(&self) -> Duration {
        self.since.elapsed()
    }

    /// Nanoseconds since it began to wait.
    pub(super) fn elapsed(&self) -> u64 {
        nanos(self.since_asked())
    }

    /// From here on its waits are what is left of them after `waited` nanoseconds.
    /// Time in the queue of a rate counts towards the bound of the rule whose rate
    /// it is, and of no other. A wait for anything else counts towards all.
    fn spend(&mut self, waited: u64) {
        self.options = self.options.after(waited);
        if let Some(Undecided { enforced, entry, .. }) = self.undecided.as_deref_mut() {
            let is_rate = |key: &Fingerprint| rate_queues(&charges_of(enforced)).any(|keys| keys.contains(key));
            let rate = entry.as_ref().map(QueueEntry::key).filter(is_rate);
            let spends = |kept: &&mut OwnedCharge| rate.is_none_or(|key| is_of(key, &kept.charge()));
            enforced.iter_mut().filter(spends).for_each(|kept| kept.spend_wait(waited));
        }
        self.since = Instant::now();
    }

    /// From here on it is decided by the policy in force, if that has a
    /// counter for each of its enforced charges, and at the current adaptive
    /// rates. A receipt is by one policy, so it is all or nothing.
    pub(super) fn refresh(&mut self) {
        let Some(undecided) = &mut self.undecided else { return };
        let Undecided { enforced, shadow, .. } = &mut **undecided;
        let policy = self.limiter.inner.current.policy();
        if enforced.first().is_some_and(|first| !Arc::ptr_eq(first.policy(), &policy)) {
            let moved: Option<Vec<_>> = enforced.iter().map(|kept| kept.under(&policy)).collect();
            if let Some(moved) = moved {
                *shadow = shadow.iter().filter_map(|kept| kept.under(&policy)).collect();
                *enforced = moved;
            }
        }
        let now = self.limiter.now();
        for kept in enforced.iter_mut().chain(shadow) {
            let mut charge = kept.charge();
            self.limiter.adapt(&mut charge, now);
            kept.set_tier_set(charge.tier_set);
        }
    }

    /// Its position in a queue.
    pub(super) fn entry(&self) -> Option<&QueueEntry> {
        self.undecided.as_ref()?.entry.as_ref()
    }

    /// If it queues: joins the queue, or moves there. From here on its position is
    /// kept, whether it is polled or not.
    fn enter_queue(&mut self) {
        let (Step::Queue(queue), Some(undecided)) = (&self.step, &mut self.undecided) else { return };
        let charges = charges_of(&undecided.enforced);
        let priority = priority_in(&charges, queue.key);
        if let Some(entry) = &mut undecided.entry {
            return entry.move_to(queue.key, priority);
        }
        let queues = &self.limiter.inner.queues;
        undecided.entry = Some(queues.join(queue.key, priority, is_adaptive(&charges, queue.key).then(Instant::now)));
    }

    /// How long it waits for a call of its queue before it is decided again, and
    /// before it may wait no longer. The first of a queue need not be decided again
    /// within `pause`.
    pub(super) fn queue_times(&self, pause: Option<Duration>) -> (Duration, Duration) {
        let Some(entry) = self.entry() else { return (Duration::ZERO, Duration::ZERO) };
        let longest = Duration::from_nanos(longest_in_queue(&self.charges(), entry.key(), self.options.max_wait));
        let left = longest.saturating_sub(self.since_asked());
        let waited = Duration::from_nanos(self.options.waited) + self.since_asked();
        let left = match entry.overloaded_in() {
            Some(Duration::ZERO) => left.min(OVERLOADED_WAIT.saturating_sub(waited)),
            _ => left,
        };
        // Until then its slot is no sooner, at the current rate.
        let is_first = entry.is_first();
        let nap = pause.filter(|_| is_first).unwrap_or(left).min(left);
        let nap = entry.overloaded_in().filter(|time| !time.is_zero()).map_or(nap, |time| nap.min(time));
        let is_unnoticed = self.limiter.inner.engine.as_ref().is_none_or(InProcess::may_release_unnoticed);
        let ask_again = || if waited < ASK_AGAIN { shorten(waited.max(ASK_AGAIN_FIRST)) } else { ASK_AGAIN };
        (if is_unnoticed && is_first { nap.min(ask_again()) } else { nap }, left)
    }
}

fn charges_of(kept: &[OwnedCharge]) -> Charges<'_> {
    kept.iter().map(OwnedCharge::charge).collect()
}
