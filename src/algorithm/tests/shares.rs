//! What an instance's share of a quota keeps when the share changes.

use proptest::prelude::*;

use super::*;
/// A token bucket by definition, in parts of a token: `period` to one, and `units` of
/// them come back in a nanosecond.
struct Tokens {
    units: u128,
    period: u128,
    capacity: u128,
    parts: u128,
    at: u64,
}

impl Tokens {
    fn full(quota: (u64, u64, u64), share: &Share, at: u64) -> Self {
        let mut tokens = Self { units: 0, period: 1, capacity: 0, parts: 0, at };
        tokens.change(quota, share, at);
        tokens.parts = tokens.capacity * tokens.period;
        tokens
    }

    fn parts(&self, now: u64) -> u128 {
        (self.parts + self.units * u128::from(now - self.at)).min(self.capacity * self.period)
    }

    /// Keeps the whole tokens that are left and fit.
    fn change(&mut self, (limit, window, burst): (u64, u64, u64), share: &Share, now: u64) {
        let left = self.parts(now) / self.period;
        let (units, period) = share.rate(limit, window);
        let capacity = if units == 0 { 0 } else { share.units(burst).max(1) };
        (self.units, self.period, self.capacity) = (units.into(), period.into(), capacity.into());
        (self.parts, self.at) = (left.min(self.capacity) * self.period, now);
    }

    /// When `cost` conforms, and whether it is charged now.
    fn earliest(&self, now: u64, cost: u64) -> Option<u64> {
        let missing = (u128::from(cost) * self.period).saturating_sub(self.parts(now));
        let fits = u128::from(cost) <= self.capacity && self.capacity > 0;
        fits.then(|| now + u64::try_from(missing.div_ceil(self.units)).unwrap())
    }

    fn charge(&mut self, now: u64, cost: u64) -> Option<u64> {
        self.earliest(now, cost).filter(|at| *at == now)?;
        (self.parts, self.at) = (self.parts(now) - u128::from(cost) * self.period, now);
        Some(self.left(now))
    }

    fn left(&self, now: u64) -> u64 {
        u64::try_from(self.parts(now) / self.period).unwrap()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Charge(u64),
    Change(Share),
}

/// Times are in hundredths of a window, some off by a nanosecond.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let share = (0..6_u64, 0..6_u64).prop_map(|(index, count)| match count {
        0 => Share::none(),
        _ => Share::equal(index % count, count),
    });
    let step = prop_oneof![
        4 => (0..60_u64).prop_map(Step::Pass),
        4 => (0..5_u64).prop_map(Step::Charge),
        2 => share.prop_map(Step::Change),
    ];
    prop::collection::vec(step, 1..60)
}

fn keeps_what_is_left<S: BucketState>(quota: (u64, u64, u64), steps: &[Step]) -> Result<(), TestCaseError> {
    let (limit, window, burst) = quota;
    let whole = BucketQuota { limit, window, burst, is_spaced: false };
    let mut history = ShareHistory::new(Share::equal(0, 1));
    let mut tokens = Tokens::full(quota, &history.current().share, NOW);
    let (mut state, mut now) = (S::default(), NOW);
    for step in steps {
        match step {
            Step::Pass(hundredths) => now += quota.1 * hundredths / 100 + hundredths % 2,
            Step::Change(share) => {
                // Only so many changes are remembered.
                if history.past().len() < 20 && history.change(share.clone(), now) {
                    tokens.change(quota, share, now);
                }
            }
            Step::Charge(cost) => {
                // The state is converted as late as this, perhaps over several changes.
                let bucket = Gcra::<S>::new(whole, &history);
                prop_assert_eq!(bucket.status_of(&state, now).remaining, tokens.left(now));
                prop_assert_eq!(bucket.earliest(&state, now, *cost), tokens.earliest(now, *cost));
                let is_admitted = bucket.earliest(&state, now, *cost) == Some(now);
                if is_admitted {
                    bucket.commit(&mut state, now, now, *cost);
                }
                let left = is_admitted.then(|| bucket.status_of(&state, now).remaining);
                prop_assert_eq!(left, tokens.charge(now, *cost));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_bucket_keeps_what_is_left_when_its_share_changes(
        (limit, burst, window) in (1..40_u64, 1..40_u64, prop_oneof![Just(SECOND), Just(7_777_777)]),
        steps in steps(),
    ) {
        let quota = (limit, window, burst);
        keeps_what_is_left::<CompactState>(quota, &steps)?;
        keeps_what_is_left::<WideState>(quota, &steps)?;
    }

    /// The first window that fits, of those that are open or begin after the change.
    #[test]
    fn the_first_window_that_fits_is_found_across_a_change(
        (limit, before, after) in (0..30_u64, 1..8_u64, 1..8_u64),
        (index, changed, cost) in (0..8_u64, 0..1_000_u64, 0..8_u64),
    ) {
        let mut history = ShareHistory::new(Share::equal(index % before, before));
        let since = NOW + SECOND * changed / 100;
        history.change(Share::equal(index % after, after), since);
        let limits = WindowLimit::aligned(limit, Calendar::even(SECOND), &history);
        for start in (0..20).map(|number| NOW + number * SECOND) {
            let later = (1..40).map(|number| start + number * SECOND).filter(|later| *later > history.current().since);
            let naive = std::iter::once(start).chain(later).find(|start| limits.until(*start + SECOND) >= cost);
            prop_assert_eq!(limits.first_with(start, cost), naive, "from {}", start - NOW);
        }
    }

    /// Each window takes the least of the share. If that is nothing, only windows with
    /// an extra unit take any.
    #[test]
    fn a_debt_fills_the_windows_that_follow(
        (limit, count, index) in (1..30_u64, 1..8_u64, 0..8_u64),
        (nth, excess) in (0..20_u64, 1..60_u64),
    ) {
        let share = Share::equal(index % count, count);
        let limits = WindowLimit::aligned(limit, Calendar::even(SECOND), &ShareHistory::new(share.clone()));
        let (least, start) = (share.range(limit).0, NOW + nth * SECOND);
        let (mut window, mut rest) = (0, excess);
        loop {
            window += 1;
            let free = if least > 0 { least } else { share.in_window(limit, start / SECOND + window) };
            if rest <= free {
                break;
            }
            rest -= free;
        }
        prop_assert_eq!(limits.carry(start, excess, 0), Some((window, rest)));
    }

    /// A window that is open at the change has the smaller share, and what all
    /// instances admit in it stays within the limit.
    #[test]
    fn a_window_that_is_open_at_a_change_has_the_smaller_share(
        (limit, before, after, changed) in (0..60_u64, 1..8_u64, 1..8_u64, 0..1_000_u64),
    ) {
        let since = NOW + SECOND * changed / 100;
        let fleet: Vec<_> = (0..before.max(after)).map(|index| {
            let share = |count| if index < count { Share::equal(index, count) } else { Share::none() };
            let mut history = ShareHistory::new(share(before));
            history.change(share(after), since);
            (WindowLimit::aligned(limit, Calendar::even(SECOND), &history), share(before), share(after))
        }).collect();
        for start in (0..12).map(|number| NOW + number * SECOND) {
            let is_open = before != after && start <= since;
            let mut sum = 0;
            for (limits, old, new) in &fleet {
                let (at, number) = (limits.until(start + SECOND), start / SECOND);
                let open = if is_open { old.in_window(limit, number) } else { u64::MAX };
                prop_assert_eq!(at, new.in_window(limit, number).min(open), "{} after the change", start as i64 - since as i64);
                sum += at;
            }
            let is_within = if is_open { sum <= limit } else { sum == limit };
            prop_assert!(is_within, "{} of {}", sum, limit);
        }
    }
}

/// A window after the year 2116 is not mistaken for an earlier one.
#[test]
fn a_share_is_known_in_windows_of_any_time() {
    let share = Share::equal(0, 3);
    let limits = WindowLimit::aligned(4, Calendar::even(SECOND), &ShareHistory::new(share.clone()));
    for start in (0..6).map(|number| NOW + number * SECOND) {
        for start in [start + (1 << 62), start] {
            assert_eq!(limits.until(start + SECOND), share.in_window(4, start / SECOND));
        }
    }
}

/// The limit is raised first, and the state is converted only afterwards.
#[test]
fn used_units_are_kept_when_the_limit_and_then_the_share_change() {
    let mut history = ShareHistory::new(Share::equal(0, 2));
    let bucket = |limit, history: &ShareHistory| {
        let quota = BucketQuota { limit, window: SECOND, burst: limit, is_spaced: false };
        (Bucket::new(quota, history), WideBucket::new(quota, history))
    };
    let (narrow, wide) = bucket(10, &history);
    let (mut state, mut wide_state) = (CompactState::default(), WideState::default());
    narrow.commit(&mut state, NOW, NOW, 4);
    wide.commit(&mut wide_state, NOW, NOW, 4);
    history.change(Share::equal(0, 1), NOW);
    // Of the 10 that are half of the new limit. The other half comes empty.
    let (narrow, wide) = bucket(20, &history);
    assert_eq!(narrow.status_of(&state, NOW).remaining, 6);
    assert_eq!(wide.status_of(&wide_state, NOW).remaining, 6);
}

/// What is reserved is not used yet.
#[test]
fn reserved_slots_keep_the_share_that_they_were_given_under() {
    fn departs<S: BucketState>() {
        let quota = BucketQuota { limit: 100, window: SECOND, burst: 100, is_spaced: false };
        let bucket = |history: &ShareHistory| Gcra::<S>::new(quota, history);
        let mut history = ShareHistory::new(Share::whole());
        let mut state = S::default();
        (0..700).for_each(|_| _ = reserve(&bucket(&history), &mut state, NOW));
        let last = NOW + 6 * SECOND;
        history.change(Share::equal(0, 10), NOW);
        assert_eq!(bucket(&history).earliest(&state, NOW, 1), Some(last + SECOND / 10));
        history.change(Share::whole(), NOW);
        assert_eq!(bucket(&history).earliest(&state, NOW, 1), Some(last + SECOND / 100));
    }
    departs::<CompactState>();
    departs::<WideState>();
}
