//! What claims refund of a bucket that is settled late: the invariant is that no unit
//! comes back twice.

use proptest::prelude::*;

use super::{claims::*, *};

const TENTH: u64 = SECOND / 10;

/// Ten a second: all times are whole.
fn ten_a_second() -> WideBucket {
    wide_token_bucket(10, SECOND, 20)
}

fn charged(machine: &WideBucket, state: &mut WideState, now: u64, units: u64) -> Claim {
    let mut claim = NO_CLAIM;
    machine.charge_debt(state, now, units, &mut claim);
    claim
}

/// In parts of a nanosecond, its arrival time takes more than 64 bits.
#[test]
fn a_wide_bucket_that_is_moved_back_keeps_what_is_used() {
    let machine = wide_token_bucket(999_999_937, SECOND, 2_000_000_000);
    let mut state = WideState::default();
    let ahead = NOW + 3_600 * SECOND;
    machine.commit(&mut state, ahead, ahead, 1_000);
    machine.move_back(&mut state, NOW + SECOND);
    assert_eq!(state.idle_at(), NOW + SECOND);
    let left = machine.status_of(&state, NOW).remaining;
    assert!(left.abs_diff(1_000_000_063) <= 1, "a second takes all but so many: {left}");
}

/// Its first unit ends after four tenths, its others follow those of others.
#[test]
fn a_debt_among_the_units_of_others_refunds_what_has_not_come_back() {
    let machine = ten_a_second();
    let mut state = WideState::default();
    charged(&machine, &mut state, NOW, 3);
    let mut claim = charged(&machine, &mut state, NOW, 1);
    charged(&machine, &mut state, NOW, 1);
    machine.charge_debt(&mut state, NOW, 4, &mut claim);
    let later = NOW + 5 * TENTH;
    charged(&machine, &mut state, later, 1);
    assert_eq!(machine.status_of(&state, later).remaining, 15);
    refund(&machine, &mut state, later, 5, &mut claim);
    // As if the five had come back one after the other: three are left.
    assert_eq!(machine.status_of(&state, later).remaining, 18);
}

/// A claim that was refunded whole starts again with the next debt.
#[test]
fn a_debt_after_a_whole_refund_is_a_charge_of_its_own() {
    let machine = ten_a_second();
    let mut state = WideState::default();
    charged(&machine, &mut state, NOW, 3);
    let mut claim = charged(&machine, &mut state, NOW, 1);
    charged(&machine, &mut state, NOW, 1);
    refund(&machine, &mut state, NOW, 1, &mut claim);
    machine.charge_debt(&mut state, NOW, 2, &mut claim);
    let later = NOW + 4 * TENTH + TENTH / 2;
    charged(&machine, &mut state, later, 1);
    refund(&machine, &mut state, later, 2, &mut claim);
    assert_eq!(machine.status_of(&state, later).reset, TENTH, "half a unit of the debt had come back");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pass(u64),
    /// For the earliest time that is free.
    Take {
        owner: usize,
        units: u64,
    },
    Debt {
        owner: usize,
        units: u64,
    },
    Refund {
        owner: usize,
        units: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..9_u64).prop_map(Step::Pass),
        2 => (0..4_usize, 1..4_u64).prop_map(|(owner, units)| Step::Take { owner, units }),
        3 => (0..4_usize, 1..4_u64).prop_map(|(owner, units)| Step::Debt { owner, units }),
        3 => (0..4_usize, 1..6_u64).prop_map(|(owner, units)| Step::Refund { owner, units }),
    ];
    prop::collection::vec(step, 1..40)
}

/// The nanoseconds until all has come back, of what was charged and not refunded:
/// owner, time, units.
fn full_in(charges: &[(usize, u64, u64)], (limit, window): (u64, u64), now: u64) -> u64 {
    let arrival = charges
        .iter()
        .filter(|(_, _, units)| *units > 0)
        .fold(0, |arrival, (_, at, units)| u128::from(at * limit).max(arrival) + u128::from(units * window));
    u64::try_from(arrival.saturating_sub(u128::from(now * limit)).div_ceil(limit.into())).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    /// At rates of which a nanosecond holds several units, one or a part.
    #[test]
    fn no_unit_comes_back_twice(
        (limit, window, burst) in (1..8_u64, 1..30_u64, 1..12_u64),
        is_leaky in any::<bool>(),
        steps in steps(),
    ) {
        let machine: WideBucket = bucket(limit, window, burst, is_leaky);
        let (mut state, mut now, mut net) = (WideState::default(), 1_000, Vec::new());
        let mut claims = [NO_CLAIM; 4];
        for step in steps {
            match step {
                Step::Pass(nanos) => now += nanos,
                Step::Take { owner, units } => {
                    let Some(at) = machine.earliest(&state, now, units) else { continue };
                    machine.commit(&mut state, now, at, units);
                    // It stands for another request of the same owner.
                    net.iter_mut().filter(|(of, _, _)| *of == owner).for_each(|(of, _, _)| *of = usize::MAX);
                    let until = now + machine.status_of(&state, now).reset;
                    claims[owner] = Claim { units, at, until, detail: machine.version(&state), before: 0 };
                    net.push((owner, at, units));
                }
                Step::Debt { owner, units } => {
                    machine.charge_debt(&mut state, now, units, &mut claims[owner]);
                    net.push((owner, now, units));
                }
                Step::Refund { owner, units } => {
                    let units = units.min(claims[owner].units);
                    if units == 0 {
                        continue;
                    }
                    refund(&machine, &mut state, now, units, &mut claims[owner]);
                    let mut rest = units;
                    for (_, _, own) in net.iter_mut().rev().filter(|(of, _, _)| *of == owner) {
                        let given = rest.min(*own);
                        *own -= given;
                        rest -= given;
                    }
                }
            }
            let (ours, least) = (machine.status_of(&state, now).reset, full_in(&net, (limit, window), now));
            prop_assert!(ours >= least, "{} instead of {} at {}, after {:?}: {:?}", ours, least, now, step, net);
        }
    }
}

/// Units of the old limit have come back by the time of the change, and a unit of the
/// new one takes another time.
#[test]
fn what_came_back_under_another_limit_is_not_refunded() {
    for limit in [1, 5, 100, 1_000] {
        let new = wide_token_bucket(limit, SECOND, 2_000);
        let mut state = WideState::default();
        let mut claim = charged(&ten_a_second(), &mut state, NOW, 5);
        let later = NOW + 4 * TENTH;
        charged(&new, &mut state, later, 4);
        refund(&new, &mut state, later, 5, &mut claim);
        let left = new.status_of(&state, later).remaining;
        assert!(left <= 1_996, "others have four units of {limit} a second, but {left} are left");
    }
}

/// What was charged at a time that the clock has not reached again.
#[test]
fn what_was_moved_back_is_not_refunded_twice() {
    let machine = ten_a_second();
    let mut state = WideState::default();
    let ahead = NOW + 3_600 * SECOND;
    let mut claim = charged(&machine, &mut state, ahead, 5);
    machine.move_back(&mut state, NOW + 2 * TENTH);
    let later = NOW + TENTH;
    let mut other = charged(&machine, &mut state, later, 4);
    refund(&machine, &mut state, later, 5, &mut claim);
    let left = machine.status_of(&state, later).remaining;
    assert!(left <= 16, "another has four, but {left} are left");
    refund(&machine, &mut state, later, 4, &mut other);
    assert_eq!(machine.status_of(&state, later).remaining, left + 4, "what was charged since is refunded");
}
