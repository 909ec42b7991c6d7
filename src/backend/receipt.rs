//! Receipts, by which charges are refunded and released, and settlements, which
//! adjust their cost. Backends apply them; this file only holds them.
//!
//! Invariant: a receipt never refunds more than was charged.

use std::sync::Arc;
#[cfg(feature = "redis")]
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::request::{Outcome, OutcomeKind, tiers};
use crate::{
    algorithm::Claim,
    policy::{CompiledPolicy, CompiledRule, OwnedCharge, Tier, charge::Charge},
    store::Lock,
    time::Timestamp,
};

/// An adjustment of a request's cost after its admission, in units of the
/// request's own cost. Each rule multiplies them by the rule's cost.
///
/// Concurrency limits are not settled: their units stay in use until they are
/// released.
///
/// ```
/// use tower_ratelimit::backend::Settlement;
///
/// fn settle(estimated: u64, used: u64) -> Settlement {
///     match used.checked_sub(estimated) {
///         Some(more) => Settlement::Add(more),
///         None => Settlement::GiveBack(estimated - used),
///     }
/// }
/// assert_eq!(settle(100, 130), Settlement::Add(30));
/// assert_eq!(settle(100, 70), Settlement::GiveBack(30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Settlement {
    /// Charges this many more units, whatever the limits say: they are already
    /// spent. The counter may go into debt, which is paid off before any other
    /// request is admitted. A debt too large for the clock is never paid off.
    Add(u64),
    /// Refunds this many units: at most what is left of the charge, and only
    /// where that cannot admit more than the limits. The rest is forfeited.
    GiveBack(u64),
}

/// A record of what was charged, to refund, release or settle it.
///
/// It counts down the units that are left to refund. So all refunds together
/// return at most what was charged, however often a refund is requested. Clones
/// share that count. Several threads may use a receipt at once.
#[derive(Clone, Debug)]
pub struct Receipt {
    charged: SmallVec<[Charged; 1]>,
    decided: u64,
    at: u64,
}

/// What one rule has charged.
#[derive(Clone, Debug)]
struct Charged {
    charge: OwnedCharge,
    claims: Arc<Claims>,
}

/// What one rule's tiers have charged, and whether a change is in progress.
#[derive(Debug)]
struct Claims {
    tiers: TierClaims,
    /// A change was sent to a store, and its reply has not arrived.
    #[cfg(feature = "redis")]
    moving: AtomicBool,
}

impl Claims {
    fn new(tiers: SmallVec<[TierClaim; 1]>) -> Arc<Self> {
        Arc::new(Self {
            tiers: Lock::new(tiers),
            #[cfg(feature = "redis")]
            moving: AtomicBool::new(false),
        })
    }
}

/// Claims that a store is changing. Dropping it ends the change.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct ClaimUpdateGuard(SmallVec<[Arc<Claims>; 1]>);

#[cfg(feature = "redis")]
impl Drop for ClaimUpdateGuard {
    fn drop(&mut self) {
        self.0.iter().for_each(|claims| claims.moving.store(false, Ordering::Release));
    }
}

/// One claim for each tier; none where a custom backend reports no tier states.
/// Locked before a shard: a thread that holds a shard must not wait for it.
type TierClaims = Lock<SmallVec<[TierClaim; 1]>>;

/// What one tier has charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierClaim {
    pub(crate) claim: Claim,
    /// Charged to the rule's overflow counter.
    pub(crate) shared: bool,
}

impl Receipt {
    /// A receipt for charges that a backend admitted at `now` with `outcome`.
    pub(crate) fn new(policy: &Arc<CompiledPolicy>, charges: &[Charge<'_>], now: Timestamp, outcome: &Outcome) -> Self {
        let wait = if let OutcomeKind::Admitted { wait } = outcome.answer { wait } else { 0 };
        let departs = now.as_nanos().saturating_add(wait);
        let counted_at = outcome.decided_at.unwrap_or(now.as_nanos());
        let claims = tiers(charges).zip(&outcome.tiers).map(|((charge, tier), state)| {
            let charged_at = |at: u64| at.saturating_add_signed(state.ahead).saturating_sub(state.age);
            let (at, full_at) = (charged_at(counted_at.saturating_add(wait)), charged_at(counted_at));
            let claim = tier.machine.claim(at, charge.cost, full_at.saturating_add(state.reset), state.mark);
            TierClaim { claim, shared: state.shared }
        });
        Self { at: departs, ..Self::counted(policy, charges, now, claims) }
    }

    /// A receipt for charges that were counted at `now`, with one claim for each
    /// tier.
    pub(crate) fn counted(
        policy: &Arc<CompiledPolicy>,
        charges: &[Charge<'_>],
        now: Timestamp,
        claims: impl IntoIterator<Item = TierClaim>,
    ) -> Self {
        let mut claims = claims.into_iter();
        let charged = |charge: &Charge<'_>| {
            let own = claims.by_ref().take(charge.tiers().len()).collect();
            Charged { charge: OwnedCharge::new(charge, policy), claims: Claims::new(own) }
        };
        let charged = charges.iter().map(charged).collect();
        Self { charged, decided: now.as_nanos(), at: now.as_nanos() }
    }

    /// A receipt for charges that their own counters admitted at `now`. `charged` has the
    /// nanoseconds until the reset of each tier, and the version that it then had.
    pub(crate) fn immediate(
        policy: &Arc<CompiledPolicy>,
        charges: &[Charge<'_>],
        now: Timestamp,
        charged: impl IntoIterator<Item = (u64, u64)>,
    ) -> Self {
        let at = now.as_nanos();
        let claims = tiers(charges).zip(charged).map(|((charge, tier), (reset, version))| TierClaim {
            claim: tier.machine.claim(at, charge.cost, at.saturating_add(reset), version),
            shared: false,
        });
        Self::counted(policy, charges, now, claims)
    }

    /// A receipt for nothing.
    pub(crate) fn nothing(now: Timestamp) -> Self {
        Self { charged: SmallVec::new(), decided: now.as_nanos(), at: now.as_nanos() }
    }

    /// Adds the charges of another receipt.
    pub(crate) fn append(&mut self, other: Self) {
        self.charged.extend(other.charged);
    }

    /// When the request was decided.
    pub(crate) fn decided(&self) -> Timestamp {
        Timestamp::from_nanos(self.decided)
    }

    /// The time for which the request was admitted.
    pub fn at(&self) -> Timestamp {
        Timestamp::from_nanos(self.at)
    }

    /// The charges, to be decided again.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &OwnedCharge> {
        self.charged.iter().map(|charged| &charged.charge)
    }

    /// The charges, to be assigned to another request.
    pub(crate) fn kept_mut(&mut self) -> impl Iterator<Item = &mut OwnedCharge> {
        self.charged.iter_mut().map(|charged| &mut charged.charge)
    }

    /// The charges.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.charged.iter().map(|charged| charged.charge.charge())
    }

    /// The rules that were charged.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &CompiledRule> {
        self.kept().map(OwnedCharge::rule)
    }

    /// Whether a concurrency limit counts the request.
    pub(crate) fn holds_in_flight(&self) -> bool {
        self.charges().any(|charge| charge.is_in_flight())
    }

    /// Marks its claims as being changed until the result is dropped. `None` if
    /// one of them is being changed already.
    #[cfg(feature = "redis")]
    pub(crate) fn start_moving(&self) -> Option<ClaimUpdateGuard> {
        let mut moving = ClaimUpdateGuard(SmallVec::new());
        for charged in &self.charged {
            if charged.claims.moving.swap(true, Ordering::AcqRel) {
                return None;
            }
            moving.0.push(Arc::clone(&charged.claims));
        }
        Some(moving)
    }

    /// Keeps only some of the charges, to settle some rules and not others.
    /// `None` where no charge is left. Clones of the whole receipt share the
    /// units that are left to refund.
    pub(crate) fn only(mut self, mut keep: impl FnMut(&Charge<'_>) -> bool) -> Option<Self> {
        self.charged.retain(|charged| keep(&charged.charge.charge()));
        (!self.charged.is_empty()).then_some(self)
    }

    /// Calls `with` for each tier, with its charge and its claim: the units that
    /// are left to refund. Tiers are those of the whole limits: what is given back
    /// leaves no more than they allow.
    pub(crate) fn for_each(&self, mut with: impl FnMut(&Charge<'_>, &Tier, &mut TierClaim)) {
        for Charged { charge, claims } in &self.charged {
            let charge = charge.charge().unreserved();
            for (tier, claim) in charge.tiers().iter().zip(claims.tiers.lock().iter_mut()) {
                with(&charge, tier, claim);
            }
        }
    }
}
