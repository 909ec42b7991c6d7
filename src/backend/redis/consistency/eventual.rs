//! The level `eventual`: decides by this process's copies of the counters, and
//! exchanges them with the store in the background.
//!
//! A request asks the store, exactly, where a copy may not decide: for a key that this
//! process does not know, or has not used for two intervals; when this instance's part
//! of what is left is used up; and where the request waits. It reports the copy in the
//! same round trip. Sliding logs and concurrency limits have no copies: requests that
//! they limit are decided by the store.
//!
//! Invariant: what was charged here reaches the store exactly once, unless this
//! process ends before.

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::taken::{Taken, may_wait};
use crate::{
    backend::{
        Acquire, AcquireRequest, Charge, Outcome, QuotaStatuses,
        redis::{
            copies::{Copies, StreamId, Take, stream_of},
            dispatch::Dispatcher,
            executor::{Operation, SyncTicket},
            lanes::since,
            plan::{Counters, Kind},
            sync::lock,
        },
    },
    observe::MEASURES,
    policy::{Consistency, Tier, charge::LocalCharge},
};

/// How soon a batch without a reply is sent again.
const RETRY: Duration = Duration::from_millis(100);

/// How often units are counted that are not reported, at most.
const COUNTED: Duration = Duration::from_secs(1);

/// How many replies a request waits for before it is sent.
const FLUSH_ROUNDS: usize = 4;

/// How often [`Eventual::drain`] waits for replies.
const DRAIN_ROUNDS: usize = 64;

pub(super) struct Eventual {
    dispatcher: Arc<Dispatcher>,
    copies: Arc<Copies>,
    /// Held until a batch that was made is before all that is sent afterwards.
    sending: Mutex<()>,
}

/// The counters of a request, each with its cost.
type Wanted = SmallVec<[(Arc<Counters>, u64); 2]>;

/// What the store is asked to charge, until it has, or its caller is gone.
struct Asked {
    copies: Arc<Copies>,
    wanted: Wanted,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.wanted.iter().for_each(|(counters, cost)| self.copies.decided(counters.key, *cost));
    }
}

impl Eventual {
    pub(super) fn new(dispatcher: &Arc<Dispatcher>) -> Arc<Self> {
        let copies = Arc::clone(&dispatcher.copies);
        let eventual = Arc::new(Self { dispatcher: Arc::clone(dispatcher), copies, sending: Mutex::default() });
        let weak = Arc::downgrade(&eventual);
        let copies = Arc::clone(&eventual.copies);
        dispatcher.link.home.keep(move || exchange(weak.clone(), Arc::clone(&copies)));
        eventual
    }

    #[inline]
    pub(super) fn acquire(self: &Arc<Self>, request: &AcquireRequest<'_>) -> Acquire {
        let waits = may_wait(request);
        let is_paced = waits && request.charges.iter().any(Charge::is_smooth);
        if !is_paced && has_copies(request) {
            match self.copies.take(request) {
                Take::Decided(outcome, _) if !waits || outcome.is_admitted() => {
                    return Acquire::Ready(Ok(self.dated(outcome, request.now.as_nanos())));
                }
                _ => {}
            }
        }
        self.ask(request)
    }

    /// Makes a charge that the copy of its counters admits.
    #[inline]
    pub(super) fn try_charge(&self, charge: &LocalCharge<'_>, now: u64, statuses: &mut QuotaStatuses) -> bool {
        // By the limiter's clock, outcomes are dated.
        let is_plain = !charge.rule.options.smooth && !self.dispatcher.uses_limiter_time();
        is_plain && self.copies.try_charge(charge, now, statuses)
    }

    /// Takes the part of a request that other rules decide as well.
    pub(super) fn take(&self, request: &AcquireRequest<'_>) -> Taken {
        if !has_copies(request) {
            return Taken::Undecided;
        }
        match self.copies.take(request) {
            Take::Decided(outcome, charged) if outcome.is_admitted() => {
                let outcome = self.dated(outcome, request.now.as_nanos());
                let copies = Arc::clone(&self.copies);
                Taken::Admitted(outcome, Box::new(move || copies.undo(&charged)))
            }
            Take::Decided(outcome, _) => Taken::Rejected(self.dated(outcome, request.now.as_nanos())),
            Take::Ask => Taken::Undecided,
        }
    }

    /// The store decides, after it has taken what the copies have to report. Charges
    /// of other levels are decided exactly as well.
    #[cold]
    pub(super) fn ask(self: &Arc<Self>, request: &AcquireRequest<'_>) -> Acquire {
        let now = request.now.as_nanos();
        let wanted = self.report(request.charges, now);
        let asked = Asked { copies: Arc::clone(&self.copies), wanted };
        let wanted = &asked.wanted;
        // A reservation is in the future of what the copies know.
        let is_plain = wanted.len() == request.charges.len();
        let is_unsent = wanted.iter().any(|(counters, _)| self.copies.is_unsent(counters));
        // In several hash slots, the order of the calls is not known.
        let after = Arc::new(AtomicU64::new(self.copies.last_number()));
        let acquire = self.dispatcher.acquire_after(request, &after, is_unsent);
        match acquire {
            Acquire::Ready(Err(error)) => match self.copies.fall_back(wanted, now).filter(|_| is_plain) {
                Some(outcome) => Acquire::Ready(Ok(self.dated(outcome, request.now.as_nanos()))),
                None => Acquire::Ready(Err(error)),
            },
            Acquire::Ready(Ok(outcome)) => Acquire::Ready(Ok(outcome)),
            Acquire::Pending(reply) => {
                let own = Arc::clone(self);
                Acquire::Pending(Box::pin(async move {
                    let Asked { copies, wanted } = &asked;
                    let decided = async {
                        if is_unsent {
                            own.flush(wanted).await;
                        }
                        reply.await
                    };
                    match own.dispatcher.link.deadline.decide(decided).await {
                        Ok(outcome) => {
                            if outcome.is_admitted() {
                                copies.charged(wanted, now, after.load(Ordering::Relaxed));
                            }
                            Ok(outcome)
                        }
                        Err(error) if is_plain => {
                            copies.fall_back(wanted, now).map(|outcome| own.dated(outcome, now)).ok_or(error)
                        }
                        Err(error) => Err(error),
                    }
                }))
            }
        }
    }

    /// The store looks, after it has taken what the copies have to report. Charges of
    /// other levels are looked at as well.
    pub(super) fn peek(self: &Arc<Self>, request: &AcquireRequest<'_>) -> Acquire {
        let known = request.charges.iter().filter(|charge| self.copies.has(charge.key));
        let known: SmallVec<[_; 2]> = known.map(|charge| Charge { cost: 0, ..*charge }).collect();
        let wanted = self.report(&known, request.now.as_nanos());
        let own = Arc::clone(self);
        self.dispatcher.peek(request, async move {
            _ = own.dispatcher.link.deadline.within(own.flush(&wanted)).await;
        })
    }

    /// Waits until all of some copies is on its way: another batch is before it.
    async fn flush(&self, wanted: &Wanted) {
        for _ in 0..FLUSH_ROUNDS {
            let replied = self.copies.replied.notified();
            self.send_wanted(wanted);
            if !wanted.iter().any(|(counters, _)| self.copies.is_unsent(counters)) {
                return;
            }
            replied.await;
        }
    }

    /// The outcome by the limiter's clock, where that decides.
    fn dated(&self, outcome: Outcome, now: u64) -> Outcome {
        let uses_limiter_time = self.dispatcher.uses_limiter_time();
        if uses_limiter_time { since(outcome, now) } else { outcome }
    }

    /// Reports the copies of some charges, and reads their counters, before anything
    /// that is sent afterwards.
    pub(super) fn report(&self, charges: &[Charge<'_>], now: u64) -> Wanted {
        let mut wanted = Wanted::new();
        let is_copied =
            |charge: &&Charge<'_>| charge.rule.options.consistency == Consistency::Eventual && has_copy(charge);
        for charge in charges.iter().filter(is_copied) {
            let lane = |tag: &str| self.dispatcher.lane_of(std::slice::from_ref(charge), tag);
            let counters = self.copies.want(self.dispatcher.context(), charge, lane, now);
            wanted.extend(counters.map(|counters| (counters, charge.cost)));
        }
        self.send_wanted(&wanted);
        wanted
    }

    fn send_wanted(&self, wanted: &Wanted) {
        let mut streams: SmallVec<[StreamId; 2]> = SmallVec::new();
        for (counters, _) in wanted {
            let stream = stream_of(counters);
            if !streams.contains(&stream) {
                streams.push(stream);
            }
        }
        streams.iter().for_each(|stream| self.send(stream));
    }

    /// Before something else changes what was charged: reports it, and relies on the
    /// store until the change is known.
    pub(super) fn before_change(&self, charges: &[Charge<'_>], now: u64) {
        let known: SmallVec<[Charge<'_>; 2]> =
            charges.iter().filter(|charge| self.copies.has(charge.key)).copied().collect();
        let wanted = self.report(&known, now);
        drop(Asked { copies: Arc::clone(&self.copies), wanted });
        known.iter().for_each(|charge| self.copies.invalidate(charge.key));
    }

    fn send(&self, stream: &StreamId) {
        let _sending = lock(&self.sending);
        if let Some(batch) = self.copies.next_batch(stream, &self.dispatcher.link.settings.prefix) {
            self.dispatcher.push_all(vec![(stream.0, Operation::Sync(SyncTicket::new(batch, &self.copies)))]);
        }
    }

    fn send_all(&self) {
        self.copies.waiting(Instant::now()).iter().for_each(|stream| self.send(stream));
    }

    /// Reports all that was charged here, and waits until the store has it.
    pub(super) async fn drain(&self) {
        self.copies.make_all_due();
        for _ in 0..DRAIN_ROUNDS {
            let replied = self.copies.replied.notified();
            self.send_all();
            if self.copies.is_idle() || self.dispatcher.link.deadline.within(replied).await.is_none() {
                return;
            }
        }
    }
}

/// Whether there are copies of all counters of a request.
#[inline]
fn has_copies(request: &AcquireRequest<'_>) -> bool {
    request.charges.iter().all(has_copy)
}

#[inline]
fn has_copy(charge: &Charge<'_>) -> bool {
    let is_copied = |tier: &Tier| !Kind::of(tier).has_set();
    charge.tiers().iter().all(is_copied)
}

/// Sends what is due, for as long as the backend exists.
async fn exchange(eventual: Weak<Eventual>, copies: Arc<Copies>) {
    let mut counted = Instant::now();
    loop {
        let changed = copies.changed.notified();
        let retry = (!copies.is_idle()).then(|| Instant::now() + RETRY);
        match copies.next_due().into_iter().chain(retry).min() {
            Some(due) => _ = timeout_at(due, changed).await,
            None => changed.await,
        }
        let Some(eventual) = eventual.upgrade() else { return };
        eventual.send_all();
        if MEASURES {
            let is_done = copies.is_idle() && copies.next_due().is_none();
            if is_done || counted.elapsed() >= COUNTED {
                let units = if is_done { 0 } else { copies.unreported() };
                eventual.dispatcher.link.report.unreported(units);
                counted = Instant::now();
            }
        }
    }
}
