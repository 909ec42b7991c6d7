//! What a charge leaves behind: receipts, to refund and release it, and
//! settlements, to adjust its cost.
//!
//! A receipt takes effect at most once.

use std::sync::Arc;
#[cfg(feature = "redis")]
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use spin::{mutex::SpinMutex, relax::Yield};

use super::outcome::{Outcome, OutcomeKind};
use crate::{
    algorithm::Claim,
    policy::{CompiledPolicy, OwnedCharge, Tier, charge::Charge},
    time::Timestamp,
};

/// What a request costs after all, as it is known late: a change to what its
/// rules have charged, in units of the request's own cost. Each rule
/// multiplies them by its own.
///
/// Limits on what is in flight do not take part: what is held is held until it
/// is released.
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
    /// So many units more, whatever the limits say: they have been spent. The
    /// counter may go into debt, which is paid back before anybody else is
    /// admitted; a debt beyond all time is never paid back.
    Add(u64),
    /// So many units less: of what is left to give back, and where that cannot
    /// admit more than the limits. The rest is forfeited.
    GiveBack(u64),
}

/// What was charged, to be given back.
///
/// It remembers what is left to give back, so that in all it gives back no
/// more than was charged, however often it is asked; clones share that memory.
/// It may be used by several threads.
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

/// What one rule's tiers have charged, and whether somebody changes it.
#[derive(Debug)]
struct Claims {
    tiers: TierClaims,
    /// A store has been told to change them, and has not said where they stand
    /// since.
    #[cfg(feature = "redis")]
    moving: AtomicBool,
}

impl Claims {
    fn new(tiers: SmallVec<[TierClaim; 1]>) -> Arc<Self> {
        Arc::new(Self {
            tiers: SpinMutex::new(tiers),
            #[cfg(feature = "redis")]
            moving: AtomicBool::new(false),
        })
    }
}

/// Claims that a store has been told to change.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct Moving(SmallVec<[Arc<Claims>; 1]>);

#[cfg(feature = "redis")]
impl Drop for Moving {
    fn drop(&mut self) {
        self.0.iter().for_each(|claims| claims.moving.store(false, Ordering::Release));
    }
}

/// One for each tier; none where a backend of another make does not say where
/// its tiers stand. Locked before a shard is: nobody who holds a shard may wait
/// for it.
type TierClaims = SpinMutex<SmallVec<[TierClaim; 1]>, Yield>;

/// What one tier has charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierClaim {
    pub(crate) claim: Claim,
    /// Charged to the counter that the rule's keys share.
    pub(crate) shared: bool,
}

impl Receipt {
    /// A receipt for charges that were admitted at `now`, with this outcome.
    pub(crate) fn new(policy: &Arc<CompiledPolicy>, charges: &[Charge<'_>], now: Timestamp, outcome: &Outcome) -> Self {
        let wait = if let OutcomeKind::Admitted { wait } = outcome.answer { wait } else { 0 };
        let (decided, goes) = (now.as_nanos(), now.as_nanos().saturating_add(wait));
        let now = outcome.decided_at.unwrap_or(now.as_nanos());
        let at = now.saturating_add(wait);
        let mut states = outcome.tiers.iter();
        let charged = |charge: &Charge<'_>| {
            let claims = charge.tiers().iter().zip(&mut states).map(|(tier, state)| TierClaim {
                claim: tier.machine.claim(
                    at.saturating_add_signed(state.ahead),
                    charge.cost,
                    now.saturating_add_signed(state.ahead).saturating_add(state.reset),
                    state.mark,
                ),
                shared: state.shared,
            });
            Charged { charge: OwnedCharge::new(charge, policy), claims: Claims::new(claims.collect()) }
        };
        Self { charged: charges.iter().map(charged).collect(), decided, at: goes }
    }

    /// A receipt for what was counted at `now`, one claim for each tier.
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
        Self { charged: charges.iter().map(charged).collect(), decided: now.as_nanos(), at: now.as_nanos() }
    }

    /// A receipt for nothing.
    pub(crate) fn nothing(now: Timestamp) -> Self {
        Self { charged: SmallVec::new(), decided: now.as_nanos(), at: now.as_nanos() }
    }

    /// It is about what another one is about as well.
    pub(crate) fn append(&mut self, other: Self) {
        self.charged.extend(other.charged);
    }

    /// When it was decided that the request goes.
    pub(crate) fn decided(&self) -> Timestamp {
        Timestamp::from_nanos(self.decided)
    }

    /// When the request was to go.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        Timestamp::from_nanos(self.at)
    }

    /// What was charged, to be charged again.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &OwnedCharge> {
        self.charged.iter().map(|charged| &charged.charge)
    }

    /// The same, to be passed to another request.
    pub(crate) fn kept_mut(&mut self) -> impl Iterator<Item = &mut OwnedCharge> {
        self.charged.iter_mut().map(|charged| &mut charged.charge)
    }

    /// What was charged.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.charged.iter().map(|charged| charged.charge.charge())
    }

    /// Whether units are held for as long as the request is in flight.
    pub(crate) fn holds_in_flight(&self) -> bool {
        self.charges().any(|charge| charge.cost > 0 && charge.tiers().iter().any(Tier::is_in_flight))
    }

    /// Marks its claims as being changed, until this is dropped; `None` where
    /// some are already.
    #[cfg(feature = "redis")]
    pub(crate) fn start_moving(&self) -> Option<Moving> {
        let mut moving = Moving(SmallVec::new());
        for charged in &self.charged {
            if charged.claims.moving.swap(true, Ordering::AcqRel) {
                return None;
            }
            moving.0.push(Arc::clone(&charged.claims));
        }
        Some(moving)
    }

    /// The part of it that is about charges to keep: to settle some rules and
    /// not others. `None` where it is about none of them. What is left to give
    /// back is shared with the whole, if there is a clone of it.
    pub(crate) fn only(mut self, mut keep: impl FnMut(&Charge<'_>) -> bool) -> Option<Self> {
        self.charged.retain(|charged| keep(&charged.charge.charge()));
        (!self.charged.is_empty()).then_some(self)
    }

    /// Each tier with its charge, and what is left to give back.
    pub(crate) fn for_each(&self, mut with: impl FnMut(&Charge<'_>, &Tier, &mut TierClaim)) {
        for Charged { charge, claims } in &self.charged {
            let charge = charge.charge();
            for (tier, claim) in charge.tiers().iter().zip(claims.tiers.lock().iter_mut()) {
                with(&charge, tier, claim);
            }
        }
    }
}
