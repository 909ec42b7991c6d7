//! What an attempt asks, and of which limiter: the backend; in its place, while it fails, the
//! fallback limiter; and for shadow rules the backend once more.
//!
//! Each rule has a failure mode, and the strictest of a request's rules decides while the
//! backend fails. Shadow rules are evaluated and counted, and never reject: they are charged
//! once, after the enforced rules have admitted the request, each on its own. Their backend
//! failures are ignored. A peek asks them whatever the enforced rules say.
//!
//! Invariants: for each event, the backend is asked at most once about the enforced rules. No
//! request waits for the fallback limiter.

use std::{
    iter, mem, slice,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    admission::{Admission, Ask, Next, Queue, ShadowReplies, Step},
    attempt::{Attempt, AttemptOptions, longest_wait, rules},
    conclude::{BUSY_RETRY, add_tiers, at_local_share, state_status},
    current::PolicySnapshot,
    lease::Lease,
    observe,
    queue::longest_in_queue,
    state::{Decider, Grant, RateLimiter},
    wait::WaiterGrant,
};
use crate::{
    backend::{Charge, Decide, Outcome, OutcomeKind, OwnedCharge, Receipt, Request},
    decision::{Decision, RateLimitedKind},
    error::BackendError,
    observe::RequestResult,
    policy::{FailureMode, charge::Charges},
    time::{Timestamp, nanos},
};

/// The shortest time after which the limiter counts a backend without a reply
/// as failed. It also applies to a request that may wait for less: a caller
/// with a short deadline must not be able to make a rule fail open.
const REPLIES_WITHIN: Duration = Duration::from_secs(1);

impl Attempt<'_> {
    /// Decides a new request.
    pub(super) fn start(&mut self, decision: &mut Decision) -> Next {
        match self.ask(decision) {
            Step::Done(lease) => Next::Done(Lease::send(lease, mem::take(&mut self.leases))),
            step => Next::Wait(Admission::new(self, step)),
        }
    }

    /// Asks the backend, unless a key is cooling down, or another request is ahead
    /// in its queue.
    pub(super) fn ask(&mut self, decision: &mut Decision) -> Step {
        if self.enforced.is_empty() {
            return self.reply(&mut Outcome::admitted(Duration::ZERO), decision);
        }
        if let Some(until) = self.cooldown_until() {
            return self.cool_down(until, decision);
        }
        if let Some(key) = self.blocked() {
            return self.reply(&mut self.behind(key), decision);
        }
        let mut decided = self.ask_backend();
        match decided {
            Decide::Now(Ok(ref mut outcome)) => self.reply(outcome, decision),
            // Shadow rules would ask in vain.
            Decide::Now(Err(error)) => self.fall_back(error, decision),
            Decide::Later(reply) => {
                Step::Ask(Box::new(Ask { reply, now: self.now, reply_timeout: self.reply_timeout() }))
            }
        }
    }

    /// Until when the backend must not be asked, since a key is cooling down or resumes by a
    /// schedule.
    fn cooldown_until(&self) -> Option<Timestamp> {
        let of_endpoint = self.options.endpoint_until.filter(|until| *until > self.now);
        let paced = || {
            let until = self.limiter.inner.cooldowns.paced_until(self.enforced, self.now)?;
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
    pub(super) fn reply(&mut self, outcome: &mut Outcome, decision: &mut Decision) -> Step {
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
        if asks_shadows { self.ask_shadows(step, decision) } else { step }
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
            Some(entry) => Duration::from_nanos(longest_in_queue(charges, entry.key(), max_wait)),
            None => charges.iter().map(Charge::max_wait).max().unwrap_or_default().min(max_wait),
        };
        (self.queued.is_some() || !longest.is_zero()).then(|| longest.max(REPLIES_WITHIN))
    }
}

/// Failure modes: what happens to a request while the backend fails. Each rule has its own.
impl Attempt<'_> {
    /// Decides a request without the backend. If any rule fails closed, the request
    /// is rejected. Else the fallback limiter decides the rules that fail local,
    /// all or nothing. Rules that fail open admit.
    #[cold]
    pub(super) fn fall_back(&mut self, error: BackendError, decision: &mut Decision) -> Step {
        self.options.max_wait = Duration::ZERO;
        *self.waiter.get_mut() = WaiterGrant::NotRequested;
        let Attempt { limiter, snapshot, enforced: charges, now, options, .. } = *self;
        if !options.peeks() {
            limiter.inner.backend_metrics.failed(rules(charges), &error, now);
        }
        let kind = error.kind();
        let rules_that_fail = |mode| rules(charges).filter(move |(rule, _)| rule.failure_mode(kind) == mode);
        if rules_that_fail(FailureMode::Closed).next().is_some() {
            decision.reject(RateLimitedKind::BackendUnavailable, now, None);
            decision.set_error(error);
            self.record(rules_that_fail(FailureMode::Closed), RequestResult::FailedClosed, decision);
            return Step::Done(None);
        }
        let keeps_lease = options.needs_lease() && !charges.is_empty();
        if !options.peeks() {
            limiter.follow_instances(snapshot.policy);
        }
        let local = at_local_share(charges, |rule| rule.failure_mode(kind) == FailureMode::Local);
        if local.is_empty() {
            if options.waited > 0 {
                decision.admit(now, options.waited);
            }
            self.record(rules(charges), RequestResult::FailedOpen, decision);
            // Nothing is charged, but the upstream may send feedback all the same.
            return Step::Done(keeps_lease.then(|| {
                let receipt = Receipt::counted(snapshot.policy, charges, now, []);
                let mut lease = Lease::new(limiter, Grant::new(Decider::Fallback, receipt));
                lease.is_kept = true;
                Arc::new(lease)
            }));
        }
        let request = self.request(&local, Duration::ZERO);
        let outcome = match options.peeks() {
            true => limiter.fallback().look(&request),
            false => limiter.fallback().charge(&request),
        };
        self.now = self.now.saturating_add(Duration::from_nanos(outcome.later));
        let mut step = self.conclude(&local, &outcome, Decider::Fallback, decision);
        if decision.is_allowed() && !options.peeks() {
            observe::count_for_rules(rules_that_fail(FailureMode::Open), RequestResult::FailedOpen);
        }
        if keeps_lease && let Step::Done(Some(lease)) = &mut step {
            // Upstream feedback concerns the rules that failed open as well.
            let fails_open = |charge: &&Charge<'_>| charge.rule.failure_mode(kind) == FailureMode::Open;
            let open: Charges<'_> = charges.iter().filter(fails_open).copied().collect();
            lease.add_uncharged(Receipt::counted(snapshot.policy, &open, now, []));
        }
        step
    }
}

/// Shadow rules.
impl Attempt<'_> {
    /// Asks the shadow rules of a request that was admitted, or is peeked at.
    #[cold]
    fn ask_shadows(&mut self, then: Step, decision: &mut Decision) -> Step {
        let Attempt { limiter, snapshot, now, path, options, .. } = *self;
        let (mut replies, mut leases) = (Vec::new(), Vec::new());
        for charge in self.shadow {
            let request = Request::new(slice::from_ref(charge), now, Duration::ZERO);
            let backend = &limiter.inner.backend;
            match if options.peeks() { backend.peek(&request) } else { backend.decide(&request) } {
                Decide::Now(result) => leases.extend(self.conclude_shadow(charge, &result, decision)),
                Decide::Later(reply) => replies.push((OwnedCharge::new(charge, snapshot.policy), reply)),
            }
        }
        if replies.is_empty() {
            self.leases = leases;
            return then;
        }
        let path = path.map(str::to_owned);
        Step::AskShadows(Box::new(ShadowReplies { replies, now, leases, path, then }))
    }

    /// Adds to the decision what a shadow rule says, and counts it; its lease, where it has
    /// anything to keep.
    fn conclude_shadow(
        &self,
        charge: &Charge<'_>,
        result: &Result<Outcome, BackendError>,
        decision: &mut Decision,
    ) -> Option<Lease> {
        let Self { limiter, snapshot, now, path, options, .. } = *self;
        let outcome = result.as_ref().ok()?;
        let mut own = Decision::unlimited();
        add_tiers(&mut own, slice::from_ref(charge), &outcome.tiers);
        match outcome.answer {
            OutcomeKind::Admitted { .. } => own.admit(now, 0),
            OutcomeKind::Busy { .. } => own.reject(RateLimitedKind::Concurrency, now, Some(BUSY_RETRY)),
            OutcomeKind::Rejected { retry_after: None } => own.reject(RateLimitedKind::NeverFits, now, None),
            OutcomeKind::Rejected { retry_after } => own.reject(RateLimitedKind::QuotaExceeded, now, retry_after),
        }
        let (charges, is_allowed) = (slice::from_ref(charge), own.is_allowed());
        if !is_allowed {
            state_status(iter::once(charge.rule), &mut own);
        }
        if !options.peeks() {
            observe::shadow(snapshot.counters, charge, path, &own, now);
            let top = limiter.inner.top.as_deref();
            match is_allowed {
                true => observe::count_units(top, snapshot.counters, charges, &own, now),
                false => observe::count_rejection(top, charges, &own, now),
            }
        }
        decision.add_shadow(own);
        let has_more_to_do = charge.is_in_flight() || charge.rule.is_settled_late();
        (is_allowed && has_more_to_do && !options.peeks()).then(|| {
            let receipt = Receipt::new(snapshot.policy, charges, now, outcome);
            Lease::new(limiter, Grant::new(Decider::Backend, receipt))
        })
    }
}

impl ShadowReplies {
    /// Ready once all replies have arrived. Each is kept, whatever becomes of the
    /// others.
    pub(super) fn poll(
        &mut self,
        limiter: &RateLimiter,
        options: AttemptOptions,
        decision: &mut Decision,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Self { replies, now, leases, path, .. } = self;
        replies.retain_mut(|(kept, reply)| {
            let Poll::Ready(result) = reply.as_mut().poll(cx) else { return true };
            let now = if counts_from_arrival(&result) { limiter.now() } else { *now };
            leases.extend(limiter.inner.current.with(|in_force| {
                let snapshot = PolicySnapshot { policy: kept.policy(), ..in_force };
                let mut attempt = Attempt::new(limiter, snapshot, (&[], &[]), now, options);
                attempt.path = path.as_deref();
                attempt.conclude_shadow(&kept.charge(), &result, decision)
            }));
            false
        });
        if replies.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Whether a wait counts from the reply's arrival instead of from the request.
/// It does for a backend with its own clock, since the limiter does not know
/// when on its own clock that backend decided. It also does after a failure,
/// since the fallback limiter decides after the reply.
pub(super) fn counts_from_arrival(result: &Result<Outcome, BackendError>) -> bool {
    result.as_ref().map_or(true, |outcome| outcome.decided_at.is_some())
}
