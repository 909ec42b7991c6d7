//! Who decides: [`Backend`], and those that come with the crate.

#[cfg(feature = "governor")]
mod governor;
mod local;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use smallvec::SmallVec;

#[cfg(feature = "governor")]
pub use self::governor::{Governor, Passed};
pub use self::local::{Local, LocalBuilder};
use crate::{
    algorithm::Committed,
    descriptor::{Tenant, TenantId},
    error::BackendError,
    fingerprint::Fingerprint,
    policy::{Applied, Compiled, Place, Tier},
    time::Timestamp,
};

/// Decides charges: all of a request's, all or nothing.
///
/// [`Backend::acquire`] charges every tier of every charge, at one time, and
/// only if all conform; a refusal charges nothing. Whoever can answer at once
/// does, with [`Acquire::Ready`].
///
/// `examples/custom_backend.rs` is a whole one in under 100 lines; the
/// conformance suite in `testing` says whether it keeps the contract.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Decides the charges of one request. Must not block.
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire;

    /// Gives back what was charged, where that cannot admit more than the
    /// limits; else forfeits it. Best effort.
    fn refund(&self, receipt: &Receipt, now: Timestamp);

    /// What is held at present.
    fn usage(&self) -> Usage {
        Usage::default()
    }
}

impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire {
        (**self).acquire(request)
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        (**self).refund(receipt, now);
    }

    fn usage(&self) -> Usage {
        (**self).usage()
    }
}

/// The charges of one request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AcquireRequest<'a> {
    /// One for each rule that applies; their keys differ.
    pub charges: &'a [Charge<'a>],
    /// The time of the request. Backends with a clock of their own may use
    /// theirs.
    pub now: Timestamp,
    /// The longest wait that the caller accepts; each charge has its own
    /// bound as well.
    pub max_wait: Duration,
}

impl<'a> AcquireRequest<'a> {
    pub(crate) fn new(charges: &'a [Charge<'a>], now: Timestamp, max_wait: Duration) -> Self {
        Self { charges, now, max_wait }
    }
}

/// What one rule takes of one key.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    pub(crate) applied: Applied<'a>,
    pub(crate) cost: u64,
}

impl<'a> Charge<'a> {
    #[inline]
    pub(crate) fn new(applied: Applied<'a>, cost: u64) -> Self {
        Self { cost: applied.rule.cost.saturating_mul(cost), applied }
    }

    /// The rule's id.
    #[must_use]
    pub fn rule(&self) -> &'a str {
        self.applied.rule.id
    }

    /// Who pays; `None` for the anonymous tenant, or where the rule does not
    /// count per tenant.
    #[must_use]
    pub fn tenant(&self) -> Option<TenantId<'a>> {
        self.applied.tenant
    }

    /// The path pattern; empty where the rule does not count per endpoint.
    #[must_use]
    pub fn endpoint(&self) -> &'a str {
        self.applied.rule.endpoint(self.applied.place)
    }

    /// The method; empty where the rule does not count per method.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.applied.rule.method(self.applied.place)
    }

    /// 128 bits that stand for rule, tenant, endpoint and method. Keyed at
    /// random for each process: of no use to any other.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.applied.key.to_u128()
    }

    /// The tiers, all of which must pass.
    #[must_use]
    pub fn tiers(&self) -> &'a [Tier] {
        self.applied.tiers
    }

    /// Units to take.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// A copy that outlives the request; `policy` is the one that the charge
    /// was made under.
    pub(crate) fn keep(&self, policy: &Arc<Compiled>) -> KeptCharge {
        KeptCharge {
            policy: Arc::clone(policy),
            rule: self.applied.rule.index,
            tenant: self.applied.tenant.map(Tenant::from),
            key: self.applied.key,
            place: self.applied.place,
            cost: self.cost,
        }
    }

    /// The longest wait that the rule allows.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.applied.rule.max_wait)
    }
}

/// An answer, or the promise of one.
pub enum Acquire {
    /// Decided.
    Ready(Result<Outcome, BackendError>),
    /// To be decided by a store. Dropping the future may leave the charge
    /// counted.
    Pending(Answering),
}

/// A store's answer, on its way.
pub type Answering = Pin<Box<dyn Future<Output = Result<Outcome, BackendError>> + Send>>;

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

/// A backend's answer.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(crate) answer: Answer,
    pub(crate) tiers: SmallVec<[TierState; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Charged, to go after so many nanoseconds.
    Admitted { wait: u64 },
    /// Not charged; would pass after so many nanoseconds.
    Refused { retry_after: Option<u64> },
}

/// Where a tier stands after the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TierState {
    pub(crate) remaining: u64,
    /// Nanoseconds.
    pub(crate) reset: u64,
    pub(crate) violated: bool,
    /// Charged to a counter that others share, from which nothing can be
    /// given back.
    pub(crate) shared: bool,
}

impl Outcome {
    /// All was charged; the request goes after `wait`, nearly always zero.
    #[must_use]
    pub fn admitted(wait: Duration) -> Self {
        let wait = crate::time::nanos(wait);
        Self { answer: Answer::Admitted { wait }, tiers: SmallVec::new() }
    }

    /// Nothing was charged; the same request could pass after `retry_after`,
    /// or never.
    #[must_use]
    pub fn refused(retry_after: Option<Duration>) -> Self {
        let retry_after = retry_after.map(crate::time::nanos);
        Self { answer: Answer::Refused { retry_after }, tiers: SmallVec::new() }
    }

    /// Says where the next tier stands, in the order of the charges and their
    /// tiers: units left, time until it is full again (or its window ends),
    /// and whether it is why the request was refused or has to wait.
    #[must_use]
    pub fn tier(mut self, remaining: u64, reset: Duration, violated: bool) -> Self {
        self.tiers.push(TierState { remaining, reset: crate::time::nanos(reset), violated, shared: false });
        self
    }
}

/// What was charged, to be given back.
#[derive(Clone, Debug)]
pub struct Receipt {
    charges: SmallVec<[KeptCharge; 1]>,
    at: u64,
    /// For each tier, when it was to be full again; `None` where nothing can
    /// be given back.
    full_at: SmallVec<[Option<u64>; 2]>,
}

impl Receipt {
    /// A receipt for charges that were admitted at `now`, with this outcome.
    pub(crate) fn new(policy: &Arc<Compiled>, charges: &[Charge<'_>], now: Timestamp, outcome: &Outcome) -> Self {
        let now = now.as_nanos();
        let wait = if let Answer::Admitted { wait } = outcome.answer { wait } else { 0 };
        Self {
            charges: charges.iter().map(|charge| charge.keep(policy)).collect(),
            at: now.saturating_add(wait),
            full_at: outcome.tiers.iter().map(|tier| (!tier.shared).then(|| now.saturating_add(tier.reset))).collect(),
        }
    }

    /// When the request was to go.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        Timestamp::from_nanos(self.at)
    }

    /// What was charged.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.charges.iter().map(KeptCharge::charge)
    }

    /// Each tier with its charge and commit.
    pub(crate) fn commits(&self) -> impl Iterator<Item = (Charge<'_>, &Tier, Committed)> {
        let tiers = self.charges().flat_map(|charge| charge.tiers().iter().map(move |tier| (charge, tier)));
        tiers.zip(&self.full_at).filter_map(|((charge, tier), full_at)| {
            Some((charge, tier, Committed { at: self.at, cost: charge.cost, full_at: (*full_at)? }))
        })
    }
}

/// A [`Charge`] that outlives its request.
#[derive(Clone, Debug)]
pub(crate) struct KeptCharge {
    policy: Arc<Compiled>,
    rule: usize,
    tenant: Option<Tenant>,
    key: Fingerprint,
    place: Place,
    cost: u64,
}

impl KeptCharge {
    pub(crate) fn charge(&self) -> Charge<'_> {
        let rule = &self.policy.rules[self.rule];
        let tenant = self.tenant.as_ref().map(Tenant::id);
        let applied = Applied { rule, tiers: rule.tiers(self.place), tenant, key: self.key, place: self.place };
        Charge { applied, cost: self.cost }
    }
}

/// What a backend holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Counters held in this process: one for each tier of a key.
    pub keys: usize,
    /// Decisions that had to share an overflow counter, because the cap on
    /// keys was reached.
    pub overflowed: u64,
}
