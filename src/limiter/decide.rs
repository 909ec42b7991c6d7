//! The synchronous core: resolves a request to its charges, asks the backend once,
//! and says what the request does next. Never awaits, and keeps nothing of the
//! request.
//!
//! Invariant: every decision is made here, for every caller and whatever the request
//! waited for before.

use std::time::Duration;

use http::Extensions;

use super::{
    admission::{Admission, Ask, Decided, Event, Next, Queue, Step},
    attempt::{Attempt, AttemptOptions, Purpose, longest_wait},
    current::PolicySnapshot,
    fallback::fall_back,
    immediate::Immediate,
    lease::Lease,
    observe,
    queue::longest_in_queue,
    shadow::ask_shadows,
    state::{Decider, RateLimiter},
};
use crate::{
    backend::{Charge, Decide, Outcome, OutcomeKind},
    decision::{Decision, RateLimitedKind},
    descriptor::{Descriptor, TenantRef},
    observe::{RequestResult, count_shed},
    overload::Overload,
    policy::{Resolved, Unidentified, UnusableTiers},
    time::{Timestamp, nanos},
};

/// The shortest time after which the limiter counts a backend without a reply
/// as failed. It also applies to a request that may wait for less: a caller
/// with a short deadline must not be able to make a rule fail open.
const REPLIES_WITHIN: Duration = Duration::from_secs(1);

/// What a caller reads of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerNeeds {
    /// The decision of an admitted request. Otherwise it may be left unwritten.
    pub(crate) decision: bool,
    /// A lease, to report upstream feedback to, or to give the charge back by.
    pub(crate) lease: bool,
}

/// In the extensions of a request that a layer of this limiter, by its id, has not shed: layers
/// further in do not look again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedOverload(u64);

impl RateLimiter {
    /// What a layer adds to the extensions of a request that it has admitted.
    pub(crate) fn passed_overload(&self) -> Option<PassedOverload> {
        self.inner.shedder.get().map(|_| PassedOverload(self.id()))
    }

    /// Decides a request and fills in `decision`, which must be
    /// [`Decision::unlimited`].
    pub(crate) fn decide(&self, descriptor: &Descriptor<'_>, max_wait: Duration, decision: &mut Decision) -> Next {
        self.decide_for(Purpose::Send, descriptor, max_wait, &mut Decided::new(decision))
    }

    pub(super) fn decide_for(
        &self,
        purpose: Purpose,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        decided: &mut Decided<'_>,
    ) -> Next {
        let options = AttemptOptions::new(purpose, max_wait);
        self.inner.current.with(|snapshot| self.decide_under(snapshot, descriptor, options, decided))
    }

    /// Decides the request that `describe` describes, for a layer. The boolean that is
    /// returned says whether the request needs an empty charge handle: a rule lets its
    /// handler settle, but no lease of the request can be settled.
    pub(crate) fn decide_on<'d>(
        &self,
        describe: impl FnOnce(&mut Descriptor<'d>),
        max_wait: Duration,
        needs: CallerNeeds,
        decision: &mut Decision,
    ) -> (Next, bool) {
        self.inner.current.with(|snapshot| {
            let mut descriptor = Descriptor::new("");
            describe(&mut descriptor);
            let CallerNeeds { decision: reads_decision, lease: keeps_lease } = needs;
            let reads_decision = reads_decision || observe::LOOKS || self.inner.top.is_some();
            let options =
                AttemptOptions { keeps_lease, reads_decision, ..AttemptOptions::new(Purpose::Send, max_wait) };
            let next = self.decide_under(snapshot, &descriptor, options, &mut Decided::new(decision));
            let is_settled = || matches!(&next, Next::Done(Some(lease)) if lease.is_settled_by_handler());
            let settles = snapshot.policy.settles && !is_settled() && snapshot.policy.lets_settle(&descriptor);
            (next, settles)
        })
    }

    #[inline]
    fn decide_under(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        options: AttemptOptions,
        decided: &mut Decided<'_>,
    ) -> Next {
        if self.inner.first_requests.are_open() && !options.peeks() && !descriptor.exempt {
            self.inner.first_requests.look(snapshot.policy, descriptor);
        }
        let now = self.inner.clock.now();
        if let Some(overload) = &snapshot.policy.policy.overload
            && !options.peeks()
            && self.sheds(overload, snapshot, descriptor, now, decided.decision)
        {
            return Next::Done(None);
        }
        let immediate = Immediate { limiter: self, snapshot, now, options: &options };
        let mut is_possible = immediate.is_possible();
        if is_possible && let Some((rule, key)) = snapshot.policy.uniform(descriptor) {
            if let Some(next) = immediate.allow_uniform(rule, key, descriptor, decided) {
                return next;
            }
            is_possible = false;
        }
        self.decide_resolved(immediate, is_possible, descriptor, decided)
    }

    /// Decides by all rules that apply. Out of line: inlined, it makes the immediate allow of
    /// one rule slower by a third.
    #[inline(never)]
    fn decide_resolved(
        &self,
        immediate: Immediate<'_>,
        is_possible: bool,
        descriptor: &Descriptor<'_>,
        decided: &mut Decided<'_>,
    ) -> Next {
        let renewed = self.without_expired(immediate.snapshot.policy, immediate.now);
        let immediate = immediate.under(renewed.as_ref());
        let Immediate { snapshot, now, options: &options, .. } = immediate;
        let policy = &**snapshot.policy;
        policy.resolve(descriptor, |Resolved { enforced, shadows, unidentified }| {
            if let Some(unidentified) = *unidentified {
                reject_unidentified(snapshot, unidentified, now, options, decided.decision);
                return Next::Done(None);
            }
            if enforced.is_empty() && shadows.is_empty() {
                return Next::Done(None);
            }
            if policy.is_dynamic {
                policy.estimate(descriptor, enforced.iter_mut().chain(&mut *shadows));
            }
            if is_possible
                && shadows.is_empty()
                && let Some(next) = immediate.allow(enforced, decided)
            {
                return next;
            }
            if policy.adapts {
                enforced.iter_mut().chain(&mut *shadows).for_each(|charge| drop(self.adapt(charge, now)));
            }
            if options.acquires() {
                enforced.iter_mut().chain(&mut *shadows).for_each(Charge::allow_any_wait);
            }
            let endpoint_until = self.endpoint_cooling_until(descriptor, now);
            let options = AttemptOptions { endpoint_until, ..options.within(policy, descriptor) };
            let mut attempt = Attempt::new(self, snapshot, (enforced, shadows), now, options);
            attempt.path = Some(descriptor.path());
            attempt.start(decided.decision)
        })
    }

    /// Whether the request is shed, before any rule: the process is overloaded.
    fn sheds(
        &self,
        overload: &Overload,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        decision: &mut Decision,
    ) -> bool {
        let policy = snapshot.policy;
        // An outer layer of this limiter has looked already.
        let has_passed = |passed: &PassedOverload| passed.0 == self.id();
        if descriptor.exempt
            || descriptor.extensions.and_then(Extensions::get).is_some_and(has_passed)
            || policy.exempts(descriptor)
        {
            return false;
        }
        let priority = policy.priority(descriptor);
        let tenant = descriptor.tenant.as_ref().map(TenantRef::id);
        let shedder = self.inner.shedder.get_or_init(Box::default);
        let Some(retry_after) = shedder.shed(overload, priority, tenant, now) else { return false };
        decision.reject(RateLimitedKind::Overloaded, now, Some(retry_after));
        snapshot.counters.count(RequestResult::Shed);
        count_shed(priority.as_str());
        true
    }
}

#[cold]
fn reject_unidentified(
    snapshot: PolicySnapshot<'_>,
    Unidentified { rule, kind, priority, reason }: Unidentified<'_>,
    now: Timestamp,
    options: AttemptOptions,
    decision: &mut Decision,
) {
    let blocked_until = if let Some(UnusableTiers::Blocked(until)) = reason { Some(*until) } else { None };
    decision.reject(kind, now, blocked_until.map(|until| nanos(until.saturating_since(now))));
    if options.peeks() {
        return;
    }
    if let Some(UnusableTiers::Invalid(error)) = reason {
        observe::invalid_tiers(rule, error, now);
    }
    observe::record(snapshot.counters, Some((rule, priority)), RequestResult::Rejected, decision, now);
}

impl Attempt<'_> {
    /// Decides a new request.
    pub(super) fn start(&mut self, decision: &mut Decision) -> Next {
        match self.ask(decision) {
            Step::Done(kept) => Next::Done(kept.and_then(Lease::send)),
            step => Next::Wait(Admission::new(self, step)),
        }
    }

    /// Decides the request.
    pub(super) fn admit(&mut self, event: Event, decision: &mut Decision) -> Step {
        match event {
            Event::Arrived => self.ask(decision),
            // A backend that has just failed is not asked for shadow rules: that
            // might take as long again.
            Event::Replied(Err(error)) => fall_back(self, error, decision),
            Event::Replied(Ok(mut outcome)) => self.reply(&mut outcome, decision),
            Event::TimedOut(outcome) => self.conclude(self.enforced, &outcome, Decider::Backend, decision),
        }
    }

    /// Asks the backend, unless a key is cooling down, or another request is ahead
    /// in its queue.
    fn ask(&mut self, decision: &mut Decision) -> Step {
        if self.enforced.is_empty() {
            return self.reply(&mut Outcome::admitted(Duration::ZERO), decision);
        }
        if let Some(until) = self.held_until() {
            return self.cool_down(until, decision);
        }
        if let Some(key) = self.blocked() {
            return self.reply(&mut self.behind(key), decision);
        }
        let mut decided = self.ask_backend();
        match decided {
            Decide::Now(Ok(ref mut outcome)) => self.reply(outcome, decision),
            // Shadow rules would ask in vain.
            Decide::Now(Err(error)) => fall_back(self, error, decision),
            Decide::Later(reply) => {
                Step::Ask(Box::new(Ask { reply, now: self.now, waited: 0, reply_timeout: self.reply_timeout() }))
            }
        }
    }

    /// Until when the backend must not be asked, since a key is cooling down or resumes by a
    /// schedule.
    fn held_until(&self) -> Option<Timestamp> {
        let cooldowns = &self.limiter.inner.cooldowns;
        if !cooldowns.any(self.now) && !cooldowns.is_paced() && self.options.endpoint_until.is_none() {
            return None;
        }
        let of_endpoint = self.options.endpoint_until.filter(|until| *until > self.now);
        let paced = || {
            let until = cooldowns.paced_until(self.enforced, self.now)?;
            (nanos(until.saturating_since(self.now)) > self.shortest_bound(self.enforced)).then_some(until)
        };
        self.limiter.cooling_until(self.enforced, self.now).max(of_endpoint).or_else(paced)
    }

    fn ask_backend(&self) -> Decide {
        let inner = &self.limiter.inner;
        if self.options.peeks() {
            return inner.backend.peek(&self.request(self.enforced, Duration::ZERO));
        }
        let mut max_wait = self.reserved_ahead();
        // An engine in this process asks for a waiter slot when it is about to reserve.
        // Another backend is asked once: a second round trip costs more than to count a
        // waiter that never waits.
        if inner.engine.is_none() && longest_wait(self.enforced, self.options.max_wait) > 0 && !self.enter() {
            max_wait = Duration::ZERO;
        }
        self.lock_slots(max_wait);
        let decided = inner.backend.decide(&self.request(self.enforced, max_wait));
        if !matches!(&decided, Decide::Now(Ok(Outcome { answer: OutcomeKind::Admitted { wait: 1.. }, .. }))) {
            self.slots.take();
        }
        decided
    }

    /// Turns the backend's reply into the next step.
    fn reply(&mut self, outcome: &mut Outcome, decision: &mut Decision) -> Step {
        if outcome.later > 0 {
            self.now = self.now.saturating_add(Duration::from_nanos(outcome.later));
        }
        let pause = self.queue_for_rate(outcome);
        if let OutcomeKind::Busy { key } = outcome.answer
            && longest_in_queue(self.enforced, key, self.options.max_wait) > 0
            && self.enter()
        {
            return Step::Queue(Box::new(Queue { key, outcome: outcome.clone(), pause }));
        }
        let step = self.conclude(self.enforced, outcome, Decider::Backend, decision);
        let asks_shadows = !self.shadow.is_empty() && (decision.is_allowed() || self.options.peeks());
        if asks_shadows { ask_shadows(self, step, decision) } else { step }
    }

    /// A key is cooling down: the request waits for the end, or is rejected.
    #[cold]
    fn cool_down(&mut self, until: Timestamp, decision: &mut Decision) -> Step {
        let wait = nanos(until.saturating_since(self.now));
        let may_wait = wait <= self.shortest_bound(self.enforced);
        if may_wait && self.enter() {
            return Step::CoolDown(until);
        }
        let kind = if may_wait { RateLimitedKind::QueueFull } else { RateLimitedKind::Cooldown };
        decision.reject(kind, self.now, Some(wait));
        self.record_rejection(self.enforced, decision);
        Step::Done(None)
    }

    /// How long to wait for a reply: as long as the request may wait. `None` where
    /// it may not wait: the backend's own deadline is then the bound. In a queue
    /// there is always a bound, since other requests wait behind this one.
    fn reply_timeout(&self) -> Option<Duration> {
        let (charges, max_wait) = (self.enforced, self.options.max_wait);
        let longest = match self.queued {
            Some((key, _)) => Duration::from_nanos(longest_in_queue(charges, key, max_wait)),
            None => charges.iter().map(Charge::max_wait).max().unwrap_or_default().min(max_wait),
        };
        (self.queued.is_some() || !longest.is_zero()).then(|| longest.max(REPLIES_WITHIN))
    }
}
