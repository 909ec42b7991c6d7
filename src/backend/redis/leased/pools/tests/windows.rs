//! Units that end with several windows.

use super::*;
use crate::policy::{CompiledPolicy, Policy, Rule};

const LONGER: u64 = 60 * WINDOW;
const UNITS: u64 = 3;

/// One request of a rule with two windows.
fn charge_set_of_both() -> ChargeSet {
    let window = |length| Quota::new(LIMIT, Duration::from_nanos(length)).algorithm(Algorithm::FixedWindow);
    let rule = Rule::new("both").tier(window(WINDOW)).tier(window(LONGER)).consistency(Consistency::Leased);
    let policy = CompiledPolicy::new(Policy::new().rule(rule)).unwrap();
    request(&policy, (1, 0), |request, _| ChargeSet::split(&context(true), request, 1).unwrap().pop().unwrap())
}

/// Asks for units at `now`, when both windows begin.
fn asked(pool: &mut Pool, now: u64) -> Leased {
    assert!(pool.take(1, 1, now).0.is_none());
    let (ask, _) = begin(pool, now, (1, 0, UNITS));
    let tiers = smallvec![[WINDOW / 1_000, LIMIT - UNITS, 0], [LONGER / 1_000, LIMIT - UNITS, 0]];
    leased(
        &charge_set_of_both(),
        &ask,
        &ChargeReply { now: now / 1_000, admitted: UNITS, when: 1, delaying: 0, tiers },
        now,
    )
}

#[test]
fn units_are_refunded_until_the_longest_of_their_windows_ends() {
    let start = LONGER;
    for (after, is_void) in [(WINDOW, false), (LONGER - 1, false), (LONGER, true)] {
        let mut pool = Pool::default();
        let leased = asked(&mut pool, start);
        assert!(pool.add(leased, start).is_none());
        let (take, unused) = pool.take(1, 1, start + after);
        assert!(take.is_none(), "they expire with the shortest one");
        let mut pool = Pool::default();
        let leased = asked(&mut pool, start);
        let late = pool.add(leased, start + after);
        for surplus in [unused.unwrap(), late.unwrap()] {
            assert_eq!((surplus.units, surplus.is_void), (UNITS, is_void), "after {after} ns");
            assert_eq!(surplus.changes(None).len(), if is_void { 0 } else { 2 });
        }
    }
}
