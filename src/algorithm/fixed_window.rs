use super::{
    Claim, CompactState, QuotaStatus, StateMachine,
    limits::{Limits, Whole},
    paced::Window,
};

/// At most L units in each window; across a border, up to 2L in some W.
///
/// Windows are multiples of W since the Unix epoch, or (anchored) start with
/// the first request after the last one has ended. The words are: the window's
/// end, the units counted in it.
///
/// A reservation opens a later window; the ones before it count as full, so
/// that nobody overtakes. So does a debt: what does not fit is carried into
/// the windows that follow.
#[derive(Clone, Debug)]
pub(crate) struct FixedWindow<L = Whole> {
    limits: L,
    window: u64,
    aligned: bool,
}

impl FixedWindow {
    pub(super) fn aligned(limit: u64, window: u64) -> Self {
        Self { limits: Whole(limit), window, aligned: true }
    }

    pub(super) fn anchored(limit: u64, window: u64) -> Self {
        Self { limits: Whole(limit), window, aligned: false }
    }
}

impl<L> FixedWindow<L> {
    pub(super) fn is_aligned(&self) -> bool {
        self.aligned
    }
}

impl<L: Limits> FixedWindow<L> {
    /// Aligned windows that hold what `limits` says.
    pub(super) fn varying(limits: L, window: u64) -> Self {
        Self { limits, window, aligned: true }
    }

    /// What the window that ends then may hold.
    #[inline]
    fn limit(&self, end: u64) -> u64 {
        self.limits.at(end.saturating_sub(self.window), self.window)
    }

    /// When a window opens, `from` or later, that may hold `cost`.
    #[inline]
    fn opens(&self, from: u64, cost: u64) -> Option<u64> {
        if !L::VARIES {
            return Some(from);
        }
        let start = from - from % self.window;
        Some(self.limits.first_with(start, self.window, cost)?.max(from))
    }

    /// The end of the window that is open at `at`, or opens then.
    fn end(&self, at: u64) -> u64 {
        let start = if self.aligned { at - at % self.window } else { at };
        start.saturating_add(self.window)
    }
}

impl<L: Limits> StateMachine for FixedWindow<L> {
    type State = CompactState;

    #[inline]
    fn earliest(&self, state: &CompactState, now: u64, cost: u64) -> Option<u64> {
        let [end, count] = *state;
        if cost > self.limits.most() || self.limits.most() == 0 {
            return None;
        }
        let at = if now >= end {
            self.opens(now, cost)?
        } else if count.checked_add(cost).is_some_and(|sum| sum <= self.limit(end)) {
            end.saturating_sub(self.window).max(now)
        } else {
            self.opens(end, cost)?
        };
        // A window that opens at the end of time would never end.
        (at < u64::MAX).then_some(at)
    }

    #[inline]
    fn commit(&self, state: &mut CompactState, _now: u64, at: u64, cost: u64) {
        let [end, count] = *state;
        // What takes nothing opens no window: a new key would not know of it.
        *state = if at >= end && cost > 0 { [self.end(at), cost] } else { [end, count.saturating_add(cost)] };
    }

    /// Until the window's end; but an anchored one opens when it is charged.
    fn latest_departure(&self, state: &CompactState, at: u64) -> u64 {
        if at >= state[0] && !self.aligned { at } else { self.window(state, at).1 - 1 }
    }

    fn charge_debt(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        let [end, count] = if now >= state[0] { [self.end(now), 0] } else { *state };
        let room = self.limit(end).saturating_sub(count);
        let carried = carry(&self.limits, end.saturating_sub(self.window), self.window, units, room);
        let detail = claim.hold_on(end, count, units, carried.is_some());
        match carried {
            None => {
                *state = [end, count.saturating_add(units)];
                claim.detail = detail.saturating_add(units);
            }
            Some((windows, last)) => {
                let end = windows.checked_mul(self.window).and_then(|length| end.checked_add(length));
                // At the end of time the window is full, and no other follows.
                *state = end.map_or([u64::MAX, self.limits.most()], |end| [end, last]);
                claim.detail = last;
            }
        }
        claim.until = state[0];
    }

    /// Units leave the window that they are in; earlier ones count as full.
    /// But where nobody else is in the last one, those before that are full
    /// of the same claim's units are opened again.
    fn refund(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        let [end, count] = *state;
        if end != claim.until || end == u64::MAX {
            return;
        }
        let own = units.min(claim.detail).min(count);
        *state = [end, count - own];
        claim.detail -= own;
        let open = (end - 1).saturating_sub(now) / self.window;
        if count == own
            && let Some(back) = Back::find(&self.limits, units - own, claim.units - own, open, true)
        {
            let end = end - back.windows * self.window;
            *state = [end, back.count(self.limit(end))];
            claim.detail = back.own;
        }
        // Whoever is the first to stay opens an anchored window.
        if !self.aligned && state[1] == 0 && state[0].saturating_sub(self.window) <= now {
            state[0] = state[0].min(now);
        }
        claim.until = state[0];
    }

    #[inline]
    fn status_of(&self, state: &CompactState, now: u64) -> QuotaStatus {
        let [end, count] = *state;
        if now >= end {
            let reset = if self.aligned { self.end(now) - now } else { 0 };
            return QuotaStatus { remaining: self.limit(self.end(now)), reset };
        }
        // Before a later window that is reserved there is nothing left.
        let open = now >= end.saturating_sub(self.window);
        QuotaStatus { remaining: if open { self.limit(end).saturating_sub(count) } else { 0 }, reset: end - now }
    }
}

impl<L: Limits> Window for FixedWindow<L> {
    fn window(&self, state: &CompactState, at: u64) -> (u64, u64, u64) {
        let [end, count] = if at >= state[0] { [self.end(at), 0] } else { *state };
        (end.saturating_sub(self.window), end, count)
    }

    fn limit(&self, start: u64) -> u64 {
        self.limits.at(start, self.window)
    }
}

impl Claim {
    /// Takes on `units` more, in the window that ends at `end` and holds
    /// `count`, and perhaps beyond; says how many the claim had there. What it
    /// had before that is forfeited, unless it fills all between.
    pub(super) fn hold_on(&mut self, end: u64, count: u64, units: u64, beyond: bool) -> u64 {
        let detail = if end == self.until { self.detail } else { 0 };
        if end == self.until && beyond && count != detail {
            self.units = detail;
        }
        self.extend(end == self.until, units);
        detail
    }
}

/// How many windows a debt that finds only `room` in the one that starts then
/// goes on for, and how much of it is in the last one; `None` where it fits.
pub(super) fn carry(limits: &impl Limits, start: u64, window: u64, units: u64, room: u64) -> Option<(u64, u64)> {
    let excess = units.checked_sub(room).filter(|excess| *excess > 0)?;
    Some(limits.carry(start, window, excess))
}

/// Where a debt that is given back ends, once its last window is empty.
pub(super) struct Back {
    /// How many windows earlier.
    pub(super) windows: u64,
    /// What is given back of the window there.
    in_last: u64,
    /// How much of what stays there belongs to the claim.
    pub(super) own: u64,
    /// Whether the claim has nothing before that.
    pub(super) is_first: bool,
    /// How much is given back.
    pub(super) units: u64,
}

impl Back {
    /// For `units` of the `left` that fill the windows before, of which not
    /// more than `open` are not over yet. It ends in a window that holds
    /// something, though it be `others`, where there is one. `None` where there
    /// is nothing to open, or nobody knows which.
    pub(super) fn find<L: Limits>(limits: &L, units: u64, left: u64, open: u64, others: bool) -> Option<Self> {
        let limit = limits.each();
        if L::VARIES && limit == 0 {
            return None;
        }
        let limit = limit.max(1);
        let windows = if others || units < left { (units / limit).saturating_add(1) } else { units.div_ceil(limit) };
        let windows = windows.min(open);
        let before = windows.checked_sub(1)? * limit;
        let in_last = (units - before).min(limit);
        let own = (left - before).min(limit);
        Some(Self { windows, in_last, own: own - in_last, is_first: left - before <= limit, units: before + in_last })
    }

    /// What is left in the window there, which was full.
    pub(super) fn count(&self, limit: u64) -> u64 {
        limit.max(1) - self.in_last.min(limit.max(1))
    }
}
