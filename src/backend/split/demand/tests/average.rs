//! How demand is averaged: chance changes little, and a jump shows at once.

use super::super::*;

#[test]
fn noise_of_demand_is_not_published() {
    assert_eq!((rounded(1, 0), rounded(100, 112), rounded(100, 90)), (1, 100, 100));
    assert_eq!((rounded(100, 113), rounded(100, 1_000_000)), (112, 983_040));
    assert_eq!(rounded(1, u64::MAX), MAX_DEMAND);
}

/// How often the demand changes while so many requests a round come by chance, for 600 rounds.
fn changes(mean: u64) -> usize {
    let (mut demand, mut random, mut changes) = (Demand::default(), 1_u64, 0);
    for _ in 0..600 {
        // Each of 64 times as many that could come does so with a 64th of certainty.
        let mut comes = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 58 == 0
        };
        let units = (0..mean * 64).filter(|_| comes()).count() as u64;
        let before = demand.published;
        demand.count(units, 1);
        changes += usize::from(demand.published != before);
    }
    changes
}

#[test]
fn chance_hardly_changes_a_demand() {
    for mean in [1, 10, 100, 300] {
        let changes = changes(mean);
        assert!(changes <= 12, "{changes} changes in 600 rounds of {mean}");
    }
}

#[test]
fn a_jump_of_demand_is_noticed_at_once_and_a_small_one_within_a_minute() {
    let mut demand = Demand::default();
    let mut after = |units, rounds| {
        demand.count(units, rounds);
        demand.published
    };
    assert_eq!(after(10, 1), 10, "the first is taken as it is");
    assert_eq!(after(5_000, 1), 5_120);
    assert_eq!(after(3, 1), 3);
    let slow: Vec<_> = (0..30).map(|_| after(1, 1)).collect();
    assert_eq!((slow[1], slow[29]), (3, 1), "{slow:?}");
    assert_eq!(after(4_000, 4), 1_024, "of several rounds");
    assert_eq!(after(2_000, 1), 2_048);
}

#[test]
fn the_first_demand_of_a_key_is_said_once_chance_makes_little_of_it() {
    let first = |units, all| {
        let mut demand = Demand::default();
        let rounds = (1..).find(|_| {
            demand.count_key(units, 1, all);
            demand.published > 0
        });
        (rounds, demand.published)
    };
    assert_eq!(first(1_000, 0), (Some(1), 1_024));
    assert_eq!(first(0, 1_000), (Some(1), 1), "what others are asked for tells that this is little");
    assert_eq!(first(120, 600), (Some(1), 120));
    assert_eq!(first(3, 0), (Some(24), 3));
    assert_eq!(first(0, 0), (Some(MOST_ROUNDS), 1));
}
