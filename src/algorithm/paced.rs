use super::{Claim, QuotaStatus, StateMachine};

/// A window that lets its units out evenly, over its whole length: of a limit
/// of L, the unit that comes after k others does not go before k·W/L of the
/// window has passed.
///
/// That changes when a request should go, and nothing of what is counted: in
/// every window as many are admitted as without. So no throughput is lost, and
/// those that come late in the window catch up. Whoever may not wait for its
/// pace goes at once; and nobody is put off beyond the window, where there is
/// no room for it.
#[derive(Clone, Debug)]
pub(crate) struct Paced<M>(pub(super) M);

/// What there is of a window to go by.
pub(super) trait Window: StateMachine {
    /// The window that is open at `at`, or opens then: its start, its end, and
    /// the units that it counts.
    fn window(&self, state: &Self::State, at: u64) -> (u64, u64, u64);

    /// What the window that starts then may hold.
    fn limit(&self, start: u64) -> u64;
}

impl<M: Window> StateMachine for Paced<M> {
    type State = M::State;

    fn earliest(&self, state: &M::State, now: u64, cost: u64) -> Option<u64> {
        self.0.earliest(state, now, cost)
    }

    fn commit(&self, state: &mut M::State, now: u64, at: u64, cost: u64) {
        self.0.commit(state, now, at, cost);
    }

    /// Only where it need not wait for its pace.
    fn charge(&self, state: &mut M::State, now: u64, cost: u64) -> Option<QuotaStatus> {
        (self.smooth_departure(state, now, cost) == now).then(|| self.0.charge(state, now, cost))?
    }

    fn smooth_departure(&self, state: &M::State, at: u64, cost: u64) -> u64 {
        let (start, end, count) = self.0.window(state, at);
        if cost == 0 || count == 0 {
            return at;
        }
        let passed = (u128::from(count) * u128::from(end - start)).div_ceil(u128::from(self.0.limit(start).max(1)));
        let due = u64::try_from(passed).ok().and_then(|passed| start.checked_add(passed));
        due.unwrap_or(u64::MAX).max(at)
    }

    fn latest_departure(&self, state: &M::State, at: u64) -> u64 {
        self.0.latest_departure(state, at)
    }

    fn charge_debt(&self, state: &mut M::State, now: u64, units: u64, claim: &mut Claim) {
        self.0.charge_debt(state, now, units, claim);
    }

    fn refund(&self, state: &mut M::State, now: u64, units: u64, claim: &mut Claim) {
        self.0.refund(state, now, units, claim);
    }

    fn status_of(&self, state: &M::State, now: u64) -> QuotaStatus {
        self.0.status_of(state, now)
    }
}
