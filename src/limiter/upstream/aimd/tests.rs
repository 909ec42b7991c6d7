mod simulation;

use proptest::prelude::*;

use super::AimdState;
use crate::policy::RateBounds;

const SECOND: u64 = 1_000_000_000;
const BOUNDS: RateBounds = RateBounds { floor: 2.0, ceiling: 500.0, start: 10.0, increase: 0.001, decrease: 0.9 };

proptest! {
    /// Whatever answers arrive, in whatever order.
    #[test]
    fn it_stays_within_its_bounds(
        answers in prop::collection::vec((0..20 * SECOND, 0..20 * SECOND, 0.0..50.0_f64, any::<bool>()), 1..400),
        (floor, widest, start) in (0.000_01..100.0_f64, 1.0..10_000.0_f64, 0.0..1.0_f64),
        (increase, decrease) in (0.000_1..1.0_f64, 0.1..0.999_f64),
    ) {
        let ceiling = floor * widest;
        let bounds = RateBounds { floor, ceiling, start: floor + (ceiling - floor) * start, increase, decrease };
        let mut law = AimdState::new(&bounds);
        for (decided, now, units, rejected) in answers {
            let before = law.rate();
            if rejected {
                let changed = law.rejected(&bounds, decided, now);
                prop_assert!(law.rate() <= before && (changed || law.rate() == before));
            } else {
                law.succeeded(&bounds, (decided, now), units);
                prop_assert!(law.rate() >= before);
                // Never more than a second's worth at once.
                prop_assert!(law.rate() <= before * 2.72);
            }
            prop_assert!((bounds.floor..=bounds.ceiling).contains(&law.rate()), "{}", law.rate());
        }
    }
}

/// Sends at a share of its rate for so long.
fn send(law: &mut AimdState, from: u64, seconds: u64, share: f64) -> u64 {
    let mut at = from;
    while at < from + seconds * SECOND {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let gap = (1e9 / (law.rate() * share)) as u64;
        at += gap.max(1);
        law.succeeded(&BOUNDS, (at, at), 1.0);
    }
    at
}

#[test]
fn a_rate_starts_at_its_start_and_reaches_the_ceiling_in_seconds() {
    let mut law = AimdState::new(&BOUNDS);
    assert_eq!(law.rate(), 10.0);
    send(&mut law, 0, 5, 1.0);
    assert_eq!(law.rate(), 500.0);
}

#[test]
fn a_client_that_uses_half_of_its_rate_does_not_grow() {
    let mut law = AimdState::new(&BOUNDS);
    let at = send(&mut law, 0, 60, 0.5);
    assert_eq!(law.rate(), 10.0);
    // Nor does one that is alone now and then.
    law.succeeded(&BOUNDS, (at + 9 * SECOND, at + 9 * SECOND), 1.0);
    assert_eq!(law.rate(), 10.0);
    send(&mut law, at + 20 * SECOND, 2, 1.0);
    assert!(law.rate() > 30.0);
}

#[test]
fn requests_in_flight_at_a_decrease_change_nothing() {
    let mut law = AimdState::new(&BOUNDS);
    let now = send(&mut law, 0, 6, 1.0);
    assert!(law.rejected(&BOUNDS, now - 1, now));
    let lowered = law.rate();
    assert_eq!(lowered, 350.0);
    for decided in [0, now - 1, now, now + SECOND / 5] {
        assert!(!law.rejected(&BOUNDS, decided, now + SECOND));
        law.succeeded(&BOUNDS, (decided, decided), 1.0);
        law.succeeded(&BOUNDS, (decided, decided), 1.0);
    }
    assert_eq!((law.rate(), law.rejections()), (lowered, 5));
    assert!(law.rejected(&BOUNDS, now + SECOND, now + SECOND));
    assert_eq!(law.rate(), 315.0);
}

#[test]
fn a_rate_recovers_fast_and_then_grows_slowly() {
    let mut law = AimdState::new(&BOUNDS);
    send(&mut law, 0, 3, 1.0);
    law.rejected(&BOUNDS, 4 * SECOND, 4 * SECOND);
    // Where it was rejected for the first time it had overshot.
    let near = law.rate() / 0.7 * 0.95 * 0.97;
    let at = send(&mut law, 5 * SECOND, 4, 1.0);
    assert!(law.rate() >= near && law.rate() < near * 1.002, "{} {near}", law.rate());
    send(&mut law, at, 20, 1.0);
    let grown = law.rate() / near;
    assert!((1.018..1.024).contains(&grown), "{grown}");
}

/// As after a restart, where the client before it has used the upstream up.
#[test]
fn a_rejection_before_any_success_does_not_end_the_fast_growth() {
    let mut law = AimdState::new(&BOUNDS);
    assert!(law.rejected(&BOUNDS, SECOND, SECOND));
    assert!(law.rejected(&BOUNDS, 2 * SECOND, 2 * SECOND));
    assert_eq!(law.rate(), 10.0 * 0.7 * 0.7);
    let at = send(&mut law, 3 * SECOND, 6, 1.0);
    assert_eq!(law.rate(), 500.0);
    // The first that follows a success lowers it like any first one.
    assert!(law.rejected(&BOUNDS, at, at));
    assert_eq!(law.rate(), 350.0);
    send(&mut law, at + SECOND, 6, 1.0);
    assert!(law.rate() < 500.0 * 0.95, "{}", law.rate());
}

#[test]
fn a_rate_below_one_a_second_grows_by_successes_only() {
    let bounds = RateBounds { floor: 1.0 / 3_600.0, ceiling: 1.0, start: 1.0 / 60.0, ..BOUNDS };
    let mut law = AimdState::new(&bounds);
    law.succeeded(&bounds, (0, 0), 1.0);
    law.succeeded(&bounds, (60 * SECOND, 60 * SECOND), 1.0);
    assert!((law.rate() * 60.0 - 1_f64.exp()).abs() < 0.001, "{}", law.rate());
}
