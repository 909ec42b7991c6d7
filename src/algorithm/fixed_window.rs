use super::{Committed, Small, Standing, StateMachine};

/// At most L units in each window; across a border, up to 2L in some W.
///
/// Windows are multiples of W since the Unix epoch, or (anchored) start with
/// the first request after the last one has ended. The words are: the window's
/// end, the units counted in it.
///
/// A reservation opens a later window; the ones before it count as full, so
/// that nobody overtakes.
#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    limit: u64,
    window: u64,
    aligned: bool,
}

impl FixedWindow {
    pub(super) fn aligned(limit: u64, window: u64) -> Self {
        Self { limit, window, aligned: true }
    }

    pub(super) fn anchored(limit: u64, window: u64) -> Self {
        Self { limit, window, aligned: false }
    }

    /// The end of the window that is open at `at`, or opens then.
    fn end(&self, at: u64) -> u64 {
        let start = if self.aligned { at - at % self.window } else { at };
        start.saturating_add(self.window)
    }
}

impl StateMachine for FixedWindow {
    type State = Small;

    #[inline]
    fn earliest(&self, state: &Small, now: u64, cost: u64) -> Option<u64> {
        let [end, count] = *state;
        if cost > self.limit || self.limit == 0 {
            return None;
        }
        if now >= end {
            // A window that opens at the end of time would never end.
            return (now < u64::MAX).then_some(now);
        }
        let fits = count.checked_add(cost).is_some_and(|sum| sum <= self.limit);
        let at = if fits { end.saturating_sub(self.window).max(now) } else { end };
        (at < u64::MAX).then_some(at)
    }

    #[inline]
    fn commit(&self, state: &mut Small, _now: u64, at: u64, cost: u64) {
        let [end, count] = *state;
        // What takes nothing opens no window: a new key would not know of it.
        *state = if at >= end && cost > 0 { [self.end(at), cost] } else { [end, count.saturating_add(cost)] };
    }

    fn refund(&self, state: &mut Small, _now: u64, committed: Committed) {
        let [end, count] = *state;
        if committed.at < end && committed.at >= end.saturating_sub(self.window) {
            *state = [end, count.saturating_sub(committed.cost)];
        }
    }

    #[inline]
    fn standing(&self, state: &Small, now: u64) -> Standing {
        let [end, count] = *state;
        if now >= end {
            let reset = if self.aligned { self.end(now) - now } else { 0 };
            return Standing { remaining: self.limit, reset };
        }
        Standing { remaining: self.limit.saturating_sub(count), reset: end - now }
    }
}
