use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{Backing, RateLimiter, current::Scene, report};
use crate::{
    backend::{Acquire, AcquireRequest, Answer, Answering, Charge, KeptCharge, Local, Outcome, Receipt},
    decision::{Decision, RateLimitedKind},
    descriptor::Descriptor,
    error::BackendError,
    observe::Event,
    policy::{Application, CompiledRule, Endpoints, FailureMode},
    time::Timestamp,
};

/// What is left to do before a decision holds; nearly always nothing.
///
/// The decision itself is written in place: it is large, and moving it would
/// cost as much as making it.
pub(crate) type Decided = Option<Box<Unfinished>>;

const DONE: Decided = None;

pub(crate) enum Unfinished {
    /// The request goes after its wait.
    Reserved(Reservation),
    /// A backend has to be waited for.
    Pending(Deciding),
}

pub(crate) type Deciding = Pin<Box<dyn Future<Output = (Decision, Option<Reservation>)> + Send>>;

/// A place in the future. Dropped before it is kept, it is given back.
pub(crate) struct Reservation {
    limiter: RateLimiter,
    receipt: Option<Box<Receipt>>,
}

impl Reservation {
    /// How long the request still has to wait.
    pub(crate) fn remaining(&self, decision: &Decision) -> Duration {
        decision.wait().saturating_sub(self.limiter.now().saturating_since(decision.decided_at()))
    }

    /// The request goes: nothing is given back.
    pub(crate) fn keep(mut self) {
        self.receipt = None;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.limiter.inner.backend.get().refund(&receipt, self.limiter.now());
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("receipt", &self.receipt).finish_non_exhaustive()
    }
}

/// For how long, in nanoseconds, a thread may be held up between reading the
/// clock and having the lock, and how often in a row.
const LONGEST_RACE: u64 = 1_000_000_000;
const MOST_RACES: usize = 16;

type Charges<'a> = SmallVec<[Charge<'a>; 2]>;

impl RateLimiter {
    /// Decides, into a decision that says that nothing is limited.
    #[inline]
    pub(crate) fn decide(&self, descriptor: &Descriptor<'_>, max_wait: Duration, decision: &mut Decision) -> Decided {
        self.inner.current.with(|view| self.decide_under(view.scene(), descriptor, max_wait, true, decision))
    }

    /// The same for a request that is yet to be described: by its tenant
    /// alone, where `describe` is told that the policy asks for no more. Where
    /// the decision is not `wanted`, it may be left as it is if the request
    /// goes.
    #[inline]
    pub(crate) fn decide_on<'d>(
        &self,
        describe: impl FnOnce(bool) -> Descriptor<'d>,
        max_wait: Duration,
        wanted: bool,
        decision: &mut Decision,
    ) -> Decided {
        self.inner.current.with(|view| {
            let scene = view.scene();
            let descriptor = describe(scene.policy.is_uniform());
            self.decide_under(scene, &descriptor, max_wait, wanted, decision)
        })
    }

    #[inline]
    fn decide_under(
        &self,
        scene: Scene<'_>,
        descriptor: &Descriptor<'_>,
        max_wait: Duration,
        wanted: bool,
        decision: &mut Decision,
    ) -> Decided {
        if descriptor.exempt {
            return DONE;
        }
        let now = self.inner.clock.now();
        if let Backing::Local(local) = &self.inner.backend
            && let Some((uniform, key)) = scene.policy.apply_uniform(descriptor)
        {
            let cost = uniform.cost.saturating_mul(descriptor.cost);
            if let Some(standing) = local.charge_held(key, &uniform.tier, now.as_nanos(), cost) {
                if wanted || report::LOOKS {
                    decision.admit(now, 0);
                    decision.add_tier(uniform.tier.status(standing.remaining, standing.reset, false));
                }
                scene.counters.count(Event::Allowed);
                report::decided(scene.policy.rules.iter(), Event::Allowed, decision, now);
                return DONE;
            }
        }
        self.decide_all(scene, descriptor, now, max_wait, decision)
    }

    /// One rule, enforced: the way of nearly all others.
    fn charge(
        &self,
        scene: Scene<'_>,
        charge: &Charge<'_>,
        now: Timestamp,
        max_wait: Duration,
        decision: &mut Decision,
    ) -> Decided {
        if let Backing::Local(local) = &self.inner.backend
            && let [tier] = charge.tiers()
            && let Some(standing) = local.charge_held(charge.applied.key, tier, now.as_nanos(), charge.cost)
        {
            decision.admit(now, 0);
            decision.add_tier(tier.status(standing.remaining, standing.reset, false));
            scene.counters.count(Event::Allowed);
            report::decided(Some(charge.applied.rule), Event::Allowed, decision, now);
            return DONE;
        }
        self.enforce(scene, std::slice::from_ref(charge), &[], now, max_wait, decision)
    }

    fn decide_all(
        &self,
        scene: Scene<'_>,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        max_wait: Duration,
        decision: &mut Decision,
    ) -> Decided {
        let policy = &**scene.policy;
        let path = policy.spell(descriptor);
        let mut endpoints = Endpoints::new();
        policy.matching(descriptor, &path, &mut endpoints);
        let (mut enforced, mut shadows) = (Charges::new(), Charges::new());
        for endpoint in endpoints {
            match policy.apply(endpoint, descriptor, &path) {
                Application::Applies(applied) => {
                    let charges = if applied.rule.shadow { &mut shadows } else { &mut enforced };
                    charges.push(Charge::new(applied, descriptor.cost));
                }
                Application::MissesTenant(rule) if !rule.shadow => return missing_tenant(scene, rule, now, decision),
                Application::Passes | Application::MissesTenant(_) => {}
            }
        }
        match (enforced.as_slice(), shadows.as_slice()) {
            ([], []) => DONE,
            ([charge], []) => self.charge(scene, charge, now, max_wait, decision),
            (enforced, shadows) => self.enforce(scene, enforced, shadows, now, max_wait, decision),
        }
    }

    fn enforce(
        &self,
        scene: Scene<'_>,
        enforced: &[Charge<'_>],
        shadows: &[Charge<'_>],
        now: Timestamp,
        max_wait: Duration,
        decision: &mut Decision,
    ) -> Decided {
        let mut now = now;
        let answer = match &self.inner.backend {
            _ if enforced.is_empty() => Acquire::Ready(Ok(Outcome::admitted(Duration::ZERO))),
            Backing::Local(local) => Acquire::Ready(Ok(self.decide_locally(local, enforced, &mut now, max_wait))),
            Backing::Other(backend) => backend.acquire(&AcquireRequest::new(enforced, now, max_wait)),
        };
        let decided = match answer {
            Acquire::Ready(Ok(outcome)) => self.conclude(scene, enforced, now, &outcome, decision),
            Acquire::Ready(Err(error)) => self.without_backend(scene, enforced, now, error, decision),
            Acquire::Pending(answer) => return self.decide_later(scene, enforced, shadows, now, answer),
        };
        if shadows.is_empty() { decided } else { self.decide_shadows(scene, shadows, now, decided, decision) }
    }

    /// Decides here. Another thread may have read the clock later and yet have
    /// been first: to the state, this request then comes from the past, and
    /// has to wait until a time that is over. So it is asked again at a later
    /// time, if by then it would have passed.
    fn decide_locally(
        &self,
        local: &Local,
        charges: &[Charge<'_>],
        now: &mut Timestamp,
        max_wait: Duration,
    ) -> Outcome {
        let mut outcome = local.decide(&AcquireRequest::new(charges, *now, max_wait));
        for _ in 0..MOST_RACES {
            let Answer::Refused { retry_after: Some(retry_after @ ..=LONGEST_RACE) } = outcome.answer else { break };
            let later = self.inner.clock.now();
            if later.as_nanos().saturating_sub(now.as_nanos()) < retry_after {
                break;
            }
            *now = later;
            outcome = local.decide(&AcquireRequest::new(charges, later, max_wait));
        }
        outcome
    }

    /// Turns a backend's answer into a decision, and counts it.
    fn conclude(
        &self,
        scene: Scene<'_>,
        charges: &[Charge<'_>],
        now: Timestamp,
        outcome: &Outcome,
        decision: &mut Decision,
    ) -> Decided {
        let mut states = outcome.tiers.iter();
        for charge in charges {
            for (tier, state) in charge.tiers().iter().zip(&mut states) {
                decision.add_tier(tier.status(state.remaining, state.reset, state.violated));
            }
        }
        let (event, decided) = match outcome.answer {
            Answer::Admitted { wait: 0 } => {
                decision.admit(now, 0);
                (Event::Allowed, DONE)
            }
            Answer::Admitted { wait } => {
                decision.admit(now, wait);
                let receipt = Box::new(Receipt::new(scene.policy, charges, now, outcome));
                let reservation = Reservation { limiter: self.clone(), receipt: Some(receipt) };
                (Event::Delayed, Some(Box::new(Unfinished::Reserved(reservation))))
            }
            Answer::Refused { retry_after } => {
                let kind = match retry_after {
                    Some(_) => RateLimitedKind::QuotaExceeded,
                    None => RateLimitedKind::NeverFits,
                };
                decision.refuse(kind, now, retry_after);
                (Event::Rejected, DONE)
            }
        };
        if !charges.is_empty() {
            scene.counters.count(event);
            report::decided(rules(charges), event, decision, now);
        }
        decided
    }

    /// Each rule's failure mode decides: one that fails closed refuses; else
    /// the ones that fail to a local limiter have their say; else it goes.
    #[cold]
    fn without_backend(
        &self,
        scene: Scene<'_>,
        charges: &[Charge<'_>],
        now: Timestamp,
        error: BackendError,
        decision: &mut Decision,
    ) -> Decided {
        report::backend_failed(rules(charges), &error, now);
        let fails = |charge: &&Charge<'_>, mode| charge.applied.rule.on_backend_failure == mode;
        if charges.iter().any(|charge| fails(&charge, FailureMode::Closed)) {
            decision.refuse(RateLimitedKind::BackendUnavailable, now, None);
            decision.set_error(error);
            scene.counters.count(Event::FailedClosed);
            report::decided(rules(charges), Event::FailedClosed, decision, now);
            return DONE;
        }
        let local: Charges<'_> = charges.iter().filter(|charge| fails(charge, FailureMode::Local)).copied().collect();
        if local.is_empty() {
            scene.counters.count(Event::FailedOpen);
            report::decided(rules(charges), Event::FailedOpen, decision, now);
            return DONE;
        }
        // Nothing waits on a limiter that stands in for another.
        let request = AcquireRequest::new(&local, now, Duration::ZERO);
        let outcome = self.inner.fallback.get_or_init(Default::default).decide(&request);
        self.conclude(scene, &local, now, &outcome, decision)
    }

    /// Charges the shadow rules of a request that goes, each by itself.
    #[cold]
    fn decide_shadows(
        &self,
        scene: Scene<'_>,
        shadows: &[Charge<'_>],
        now: Timestamp,
        decided: Decided,
        decision: &mut Decision,
    ) -> Decided {
        if !decision.is_allowed() {
            return decided;
        }
        let mut answers = Vec::new();
        for charge in shadows {
            let request = AcquireRequest::new(std::slice::from_ref(charge), now, Duration::ZERO);
            match self.inner.backend.get().acquire(&request) {
                Acquire::Ready(result) => count_shadow(scene, charge, now, result.ok().as_ref()),
                Acquire::Pending(answer) => answers.push((charge.keep(scene.policy), answer)),
            }
        }
        if answers.is_empty() {
            return decided;
        }
        let (limiter, decision) = (self.clone(), decision.clone());
        let reservation = match decided.map(|unfinished| *unfinished) {
            Some(Unfinished::Reserved(reservation)) => Some(reservation),
            _ => None,
        };
        pending(async move {
            for (charge, answer) in answers {
                let outcome = answer.await.ok();
                limiter.inner.current.with(|view| count_shadow(view.scene(), &charge.charge(), now, outcome.as_ref()));
            }
            (decision, reservation)
        })
    }

    /// The same, for a backend that has to be waited for.
    #[cold]
    fn decide_later(
        &self,
        scene: Scene<'_>,
        enforced: &[Charge<'_>],
        shadows: &[Charge<'_>],
        now: Timestamp,
        answer: Answering,
    ) -> Decided {
        let keep =
            |charges: &[Charge<'_>]| -> Vec<_> { charges.iter().map(|charge| charge.keep(scene.policy)).collect() };
        let (limiter, policy) = (self.clone(), Arc::clone(scene.policy));
        let (enforced, shadows) = (keep(enforced), keep(shadows));
        pending(async move {
            let result = answer.await;
            let mut decision = Decision::unlimited();
            let decided = limiter.inner.current.with(|view| {
                // The policy that the charges were made under; another may be
                // in force by now.
                let scene = Scene { policy: &policy, counters: &view.counters };
                let enforced: Charges<'_> = enforced.iter().map(KeptCharge::charge).collect();
                let shadows: Charges<'_> = shadows.iter().map(KeptCharge::charge).collect();
                let decided = match result {
                    Ok(outcome) => limiter.conclude(scene, &enforced, now, &outcome, &mut decision),
                    Err(error) => limiter.without_backend(scene, &enforced, now, error, &mut decision),
                };
                limiter.decide_shadows(scene, &shadows, now, decided, &mut decision)
            });
            match decided.map(|unfinished| *unfinished) {
                None => (decision, None),
                Some(Unfinished::Reserved(reservation)) => (decision, Some(reservation)),
                Some(Unfinished::Pending(future)) => future.await,
            }
        })
    }
}

fn pending(deciding: impl Future<Output = (Decision, Option<Reservation>)> + Send + 'static) -> Decided {
    Some(Box::new(Unfinished::Pending(Box::pin(deciding))))
}

fn rules<'a>(charges: &[Charge<'a>]) -> impl Iterator<Item = &'a CompiledRule> + Clone {
    charges.iter().map(|charge| charge.applied.rule)
}

#[cold]
fn missing_tenant(scene: Scene<'_>, rule: &CompiledRule, now: Timestamp, decision: &mut Decision) -> Decided {
    decision.refuse(RateLimitedKind::MissingTenant, now, None);
    scene.counters.count(Event::Rejected);
    report::decided(Some(rule), Event::Rejected, decision, now);
    DONE
}

/// What a backend that fails says of a shadow rule is nobody's concern.
fn count_shadow(scene: Scene<'_>, charge: &Charge<'_>, now: Timestamp, outcome: Option<&Outcome>) {
    if let Some(Outcome { answer: Answer::Refused { .. }, .. }) = outcome {
        scene.counters.count(Event::ShadowRejected);
        report::shadow_rejected(charge.applied.rule, now);
    }
}
