#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::{draw, shorten};

#[test]
fn draws_are_spread_over_their_range_and_both_ends_occur() {
    let mut counts = [0; 4];
    for _ in 0..4_000 {
        counts[usize::try_from(draw(3)).unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (800..=1_200).contains(count)), "{counts:?}");
    assert_eq!(draw(0), 0);
}

#[test]
fn no_bound_overflows() {
    assert!((0..100).any(|_| draw(u64::MAX) > u64::MAX / 2));
    assert!(shorten(Duration::MAX) >= Duration::from_nanos(u64::MAX / 2));
}

#[test]
fn a_shortened_delay_is_at_least_half() {
    let delay = Duration::from_nanos(7);
    let delays: Vec<_> = (0..200).map(|_| shorten(delay).as_nanos()).collect();
    assert_eq!((delays.iter().min(), delays.iter().max()), (Some(&4), Some(&7)));
    assert_eq!(shorten(Duration::ZERO), Duration::ZERO);
}

#[cfg(feature = "test-util")]
#[test]
fn a_seed_gives_one_sequence_on_its_thread() {
    use super::seeded::SeededJitter;

    let sequence = || [draw(u64::MAX), draw(u64::MAX), draw(u64::MAX)];
    let outer = SeededJitter::new(1);
    let first = draw(u64::MAX);
    let [_, second, _] = {
        let _inner = SeededJitter::new(1);
        sequence()
    };
    assert_eq!(draw(u64::MAX), second, "the outer sequence goes on");
    assert_ne!(first, second);
    assert_ne!(std::thread::spawn(sequence).join().unwrap(), std::thread::spawn(sequence).join().unwrap());
    drop(outer);
    assert_ne!(sequence(), sequence());
}
