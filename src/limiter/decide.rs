use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    Backing, RateLimiter, Unfinished,
    conclude::{Answered, rules},
    current::PolicySnapshot,
    failed::Unanswered,
    hold::Decider,
    in_line::NEWCOMER,
    later::{DONE, Decided, pending},
    report,
    room::Seat,
};
use crate::{
    algorithm::QuotaStatus,
    backend::{Acquire, AcquireRequest, Answer, Charge, LONGEST_RACE, Local, Outcome},
    decision::{Decision, RateLimitedKind},
    descriptor::Descriptor,
    observe::Event,
    policy::{CompiledRule, Endpoints, RuleMatch, Tier},
    time::{Timestamp, nanos},
};

/// On what terms a request is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) max_wait: Duration,
    /// Whether the caller says how long it waits where a rule does not, and
    /// holds on to what was charged: it acquires.
    pub(super) claims: bool,
    /// Whether the caller wants what was charged to be held, to tell of it
    /// what the provider says.
    pub(super) heeds: bool,
    /// Nanoseconds for which the request has waited already.
    pub(super) waited: u64,
    /// Whether it has had a turn already, and so was counted as one that goes
    /// after a wait.
    pub(super) counted: bool,
}

/// What the caller of a service wants of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerNeeds {
    /// The decision itself; else it may be left as it is if the request goes.
    pub(crate) decision: bool,
    /// To have what was charged, to tell of it what the provider says.
    pub(crate) hold: bool,
}

impl Terms {
    /// Whether what is charged is held in any case.
    pub(super) fn keeps(self) -> bool {
        self.claims || self.heeds
    }
}

/// How often in a row a thread may be held up between reading the clock and
/// having the lock.
const MOST_RACES: usize = 16;

pub(super) type Charges<'a> = SmallVec<[Charge<'a>; 2]>;

impl RateLimiter {
    /// Decides, into a decision that says that nothing is limited.
    #[inline]
    pub(crate) fn decide(&self, descriptor: &Descriptor<'_>, max_wait: Duration, decision: &mut Decision) -> Decided {
        self.inner.current.with(|view| {
            self.decide_under(
                view.snapshot(),
                descriptor,
                max_wait,
                CallerNeeds { decision: true, hold: false },
                decision,
            )
        })
    }

    /// The same for a request that is yet to be described: by its tenant
    /// alone, where `describe` is told that the policy asks for no more. Also
    /// says whether whoever handles the request expects to be able to settle
    /// it, though nothing of it is held that could be.
    #[inline]
    pub(crate) fn decide_on<'d>(
        &self,
        describe: impl FnOnce(bool) -> Descriptor<'d>,
        max_wait: Duration,
        wants: CallerNeeds,
        decision: &mut Decision,
    ) -> (Decided, bool) {
        if wants.hold {
            self.subscribe_cooldowns();
        }
        self.inner.current.with(|view| {
            let snapshot = view.snapshot();
            let descriptor = describe(snapshot.policy.is_uniform());
            let decided = self.decide_under(snapshot, &descriptor, max_wait, wants, decision);
            let settled = || matches!(decided.as_deref(), Some(Unfinished::Held(hold)) if hold.is_settled_by_handler());
            let settles = snapshot.policy.settles && !settled() && snapshot.policy.lets_settle(&descriptor);
            (decided, settles)
        })
    }

    #[inline]
    fn decide_under(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        wants: CallerNeeds,
        decision: &mut Decision,
    ) -> Decided {
        if descriptor.exempt {
            return DONE;
        }
        let now = self.inner.clock.now();
        if let Backing::Local(local) = &self.inner.backend
            && !wants.hold
            && !self.inner.cooldowns.any(now)
            && let Some((uniform, key)) = snapshot.policy.apply_uniform(descriptor)
        {
            let cost = uniform.cost.saturating_mul(descriptor.cost);
            let told = wants.decision || report::LOOKS;
            let charged = match &*uniform.several {
                [] => local.charge_held(key, &uniform.tier, now.as_nanos(), cost).map(|status_of| {
                    if told {
                        decision.admit(now, 0);
                        decision.add_tier(uniform.tier.status(status_of.remaining, status_of.reset, false));
                    }
                }),
                tiers => local.charge_all_held(key, tiers, now.as_nanos(), cost).map(|statuses| {
                    if told {
                        admit(tiers, &statuses, now, decision);
                    }
                }),
            };
            if charged.is_some() {
                snapshot.counters.count(Event::Allowed);
                report::decided(snapshot.policy.rules.iter(), Event::Allowed, decision, now);
                return DONE;
            }
        }
        let terms = Terms { max_wait, claims: false, heeds: wants.hold, waited: 0, counted: false };
        self.decide_all(snapshot, descriptor, now, terms, decision)
    }

    /// The same for a caller that acquires.
    pub(super) fn claim(&self, descriptor: &Descriptor<'_>, max_wait: Duration, decision: &mut Decision) -> Decided {
        if descriptor.exempt {
            return DONE;
        }
        self.inner.current.with(|view| {
            let terms = Terms { max_wait, claims: true, heeds: false, waited: 0, counted: false };
            self.decide_all(view.snapshot(), descriptor, self.inner.clock.now(), terms, decision)
        })
    }

    /// Nothing on trial: the way of nearly all others.
    fn charge(
        &self,
        snapshot: PolicySnapshot<'_>,
        charges: &[Charge<'_>],
        now: Timestamp,
        terms: Terms,
        decision: &mut Decision,
    ) -> Decided {
        if !terms.keeps()
            && !snapshot.policy.keeps_receipts
            && !self.inner.cooldowns.any(now)
            && let Backing::Local(local) = &self.inner.backend
            && charge_held(local, charges, now, decision)
        {
            snapshot.counters.count(Event::Allowed);
            report::decided(rules(charges), Event::Allowed, decision, now);
            return DONE;
        }
        self.enforce(snapshot, charges, &[], now, terms, decision)
    }

    fn decide_all(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        terms: Terms,
        decision: &mut Decision,
    ) -> Decided {
        let policy = &**snapshot.policy;
        let max_wait = match terms.claims || policy.lets_wait {
            true => terms.max_wait.min(descriptor.longest_wait()),
            false => Duration::ZERO,
        };
        let terms = Terms { max_wait, ..terms };
        let path = policy.spell(descriptor);
        let mut endpoints = Endpoints::new();
        policy.matching(descriptor, &path, &mut endpoints);
        let (mut enforced, mut shadows) = (Charges::new(), Charges::new());
        for endpoint in endpoints {
            match policy.apply(endpoint, descriptor, &path) {
                RuleMatch::Applies(applied) => {
                    let applied = if policy.adapts { self.at_its_rate(applied, now) } else { applied };
                    let charges = if applied.rule.shadow { &mut shadows } else { &mut enforced };
                    let charge = Charge::new(applied, descriptor.cost);
                    charges.push(if terms.claims { charge.patient() } else { charge });
                }
                RuleMatch::MissesTenant(rule) if !rule.shadow => return missing_tenant(snapshot, rule, now, decision),
                RuleMatch::Passes | RuleMatch::MissesTenant(_) => {}
            }
        }
        match (enforced.as_slice(), shadows.as_slice()) {
            ([], []) => DONE,
            (enforced, []) => self.charge(snapshot, enforced, now, terms, decision),
            (enforced, shadows) => self.enforce(snapshot, enforced, shadows, now, terms, decision),
        }
    }

    /// Decides on these charges, by one call of the backend.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "the way of all requests of more than one tier; who comes anew is cold")]
    pub(super) fn enforce(
        &self,
        snapshot: PolicySnapshot<'_>,
        enforced: &[Charge<'_>],
        shadows: &[Charge<'_>],
        now: Timestamp,
        terms: Terms,
        decision: &mut Decision,
    ) -> Decided {
        let mut now = now;
        if let Some(until) = self.held_off(enforced, now) {
            return self.hold_off(snapshot, (enforced, shadows), (now, until), terms, decision);
        }
        let lines_up = snapshot.policy.has_in_flight || snapshot.policy.adapts;
        let ahead = if snapshot.policy.adapts { self.reserved_ahead(enforced, terms.max_wait) } else { terms.max_wait };
        let blocked = if lines_up { self.blocked(enforced, now, NEWCOMER) } else { None };
        let (answer, mut seat) = match (&self.inner.backend, blocked) {
            _ if enforced.is_empty() => (Acquire::Ready(Ok(Outcome::admitted(Duration::ZERO))), Seat::NotAsked),
            (_, Some(key)) => (Acquire::Ready(Ok(self.behind(enforced, now, terms.max_wait, key))), Seat::NotAsked),
            (Backing::Local(local), None) => {
                let (outcome, seat) = self.ask_locally(local, enforced, &mut now, ahead);
                (Acquire::Ready(Ok(outcome)), seat)
            }
            (Backing::Other(backend), None) => {
                // To ask twice would cost more than to take a seat in vain.
                let waits = longest_wait(enforced, terms.max_wait) > 0;
                let seat = if waits { self.seat(enforced) } else { Seat::NotAsked };
                let max_wait = if let Seat::Full = seat { Duration::ZERO } else { ahead };
                (backend.acquire(&AcquireRequest::new(enforced, now, max_wait)), seat)
            }
        };
        let decided = match answer {
            Acquire::Ready(Ok(mut outcome)) => {
                if snapshot.policy.adapts {
                    self.line_up_by_rate(enforced, now, terms.max_wait, &mut outcome);
                }
                if let Answer::Busy { .. } = outcome.answer
                    && let Some(waits) =
                        self.line_up(snapshot, (enforced, shadows), terms, &mut seat, &outcome, Instant::now())
                {
                    return pending(waits);
                }
                let answered =
                    Answered { now, waited: terms.waited, outcome: &outcome, terms, seat, decider: Decider::Backend };
                self.conclude(snapshot, enforced, answered, decision)
            }
            Acquire::Ready(Err(error)) => self.without_backend(
                snapshot,
                enforced,
                Unanswered { now, waited: terms.waited, error, terms },
                decision,
            ),
            Acquire::Pending(answer) => {
                return self.decide_later(snapshot, enforced, shadows, (now, terms, seat), answer);
            }
        };
        if shadows.is_empty() { decided } else { self.decide_shadows(snapshot, shadows, now, decided, decision) }
    }

    /// Asks first whether the request goes at once. Only where it has to wait
    /// is there to be a seat for it, before anything is charged: a
    /// reservation that is taken back may have been built upon.
    #[inline]
    fn ask_locally(
        &self,
        local: &Local,
        charges: &[Charge<'_>],
        now: &mut Timestamp,
        max_wait: Duration,
    ) -> (Outcome, Seat) {
        if charges.iter().any(Charge::is_smooth) && longest_wait(charges, max_wait) > 0 {
            // What could go at once may wait for its pace.
            return match self.seat(charges) {
                Seat::Taken(waiter) => (self.decide_locally(local, charges, now, max_wait), Seat::Taken(waiter)),
                seat => (self.decide_locally(local, charges, now, Duration::ZERO), seat),
            };
        }
        let outcome = self.decide_locally(local, charges, now, Duration::ZERO);
        let Answer::Rejected { retry_after: Some(retry_after) } = outcome.answer else {
            return (outcome, Seat::NotAsked);
        };
        let longest = match local.is_shared() || self.inner.cooldowns.any(*now) {
            // How long a share's queue is, only the backend knows; and what is
            // held back waits whatever its queue is.
            true => charges.iter().map(|charge| charge.max_wait).max().unwrap_or(0).min(nanos(max_wait)),
            false => longest_wait(charges, max_wait),
        };
        if retry_after > longest {
            return (outcome, Seat::NotAsked);
        }
        match self.seat(charges) {
            Seat::Taken(waiter) => (self.decide_locally(local, charges, now, max_wait), Seat::Taken(waiter)),
            seat => (outcome, seat),
        }
    }

    /// Decides here. Another thread may have read the clock later and yet have
    /// been first: to the state, this request then comes from the past, and
    /// has to wait until a time that is over. So it is asked again at a later
    /// time, if by then it would have passed.
    pub(super) fn decide_locally(
        &self,
        local: &Local,
        charges: &[Charge<'_>],
        now: &mut Timestamp,
        max_wait: Duration,
    ) -> Outcome {
        let mut outcome = local.decide(&self.request(charges, *now, max_wait));
        for _ in 0..MOST_RACES {
            let Answer::Rejected { retry_after: Some(retry_after @ ..=LONGEST_RACE) } = outcome.answer else { break };
            let later = self.inner.clock.now();
            if later.as_nanos().saturating_sub(now.as_nanos()) < retry_after {
                break;
            }
            *now = later;
            outcome = local.decide(&self.request(charges, later, max_wait));
        }
        outcome
    }

    /// What a backend in this process is asked.
    #[inline]
    pub(super) fn request<'a>(
        &self,
        charges: &'a [Charge<'a>],
        now: Timestamp,
        max_wait: Duration,
    ) -> AcquireRequest<'a> {
        let request = AcquireRequest::new(charges, now, max_wait);
        match self.inner.cooldowns.until(charges, now) {
            None => request,
            Some(until) => request.not_before(until),
        }
    }
}

/// Charges all tiers, if their states are there and let it pass at once.
#[inline]
fn charge_held(local: &Local, charges: &[Charge<'_>], now: Timestamp, decision: &mut Decision) -> bool {
    let time = now.as_nanos();
    if let [charge] = charges
        && let [tier] = charge.tiers()
    {
        let Some(status_of) = local.charge_held(charge.applied.key, tier, time, charge.cost) else { return false };
        decision.admit(now, 0);
        decision.add_tier(tier.status(status_of.remaining, status_of.reset, false));
        return true;
    }
    let statuses = match charges {
        [charge] => local.charge_all_held(charge.applied.key, charge.tiers(), time, charge.cost),
        charges => local.charge_each_held(charges, time),
    };
    let tiers = charges.iter().flat_map(Charge::tiers);
    statuses.map(|statuses| admit(tiers, &statuses, now, decision)).is_some()
}

/// Apart, as all that is for several: who has one tier is not to be slower for
/// it.
#[inline(never)]
fn admit<'t>(
    tiers: impl IntoIterator<Item = &'t Tier>,
    statuses: &[QuotaStatus],
    now: Timestamp,
    decision: &mut Decision,
) {
    decision.admit(now, 0);
    for (tier, status_of) in tiers.into_iter().zip(statuses) {
        decision.add_tier(tier.status(status_of.remaining, status_of.reset, false));
    }
}

/// The longest wait, in nanoseconds, that any of the charges could be let
/// have: where it is not enough, the backend need not be asked for it.
pub(super) fn longest_wait(charges: &[Charge<'_>], max_wait: Duration) -> u64 {
    let of_charge = |charge: &Charge<'_>| {
        let queue = charge.tiers().iter().map(|tier| tier.machine.longest_wait()).max();
        charge.max_wait.min(queue.unwrap_or(0))
    };
    charges.iter().map(of_charge).max().unwrap_or(0).min(nanos(max_wait))
}

#[cold]
fn missing_tenant(
    snapshot: PolicySnapshot<'_>,
    rule: &CompiledRule,
    now: Timestamp,
    decision: &mut Decision,
) -> Decided {
    decision.reject(RateLimitedKind::MissingTenant, now, None);
    snapshot.counters.count(Event::Rejected);
    report::decided(Some(rule), Event::Rejected, decision, now);
    DONE
}
