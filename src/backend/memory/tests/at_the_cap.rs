//! Keys that are dropped and made anew, and those that have to share.

use super::*;

fn log_of_one() -> Policy {
    tier(Quota::per_second(1).algorithm(Algorithm::SlidingLog), true)
}

#[test]
fn an_old_claim_gives_back_nothing_of_a_new_log() {
    let desk = Desk::with(Engine::full(1), log_of_one());
    let old = desk.take("acme", 1, NOW).unwrap();
    // Takes the only place there is.
    desk.take("initech", 1, NOW + 2 * SECOND).unwrap();
    let now = NOW + 4 * SECOND;
    let new = desk.take("acme", 1, now).unwrap();
    desk.refund(&old, now);
    assert!(desk.take("acme", 1, now).is_none(), "two in a window of one");
    desk.refund(&new, now);
    assert!(desk.take("acme", 1, now).is_some(), "the latest is given back");
}

#[test]
fn nor_adds_to_it_what_could_then_be_given_back() {
    let desk = Desk::with(Engine::full(1), log_of_one());
    let old = desk.take("acme", 1, NOW).unwrap();
    desk.take("initech", 1, NOW + 2 * SECOND).unwrap();
    let now = NOW + 4 * SECOND;
    let _new = desk.take("acme", 1, now).unwrap();
    desk.add(&old, 1, now);
    desk.give_back(&old, 2, now);
    assert_eq!(desk.earliest("acme", 1, now), Some(now + SECOND), "only what it added has gone");
}

#[test]
fn a_large_store_drops_idle_logs_as_well() {
    let desk = Desk::new(log_of_one());
    let old = desk.take("acme", 1, NOW).unwrap();
    let now = NOW + 20 * SECOND;
    for other in 0..20_000 {
        desk.take(&format!("other-{other}"), 1, now).unwrap();
    }
    let _new = desk.take("acme", 1, now).unwrap();
    desk.refund(&old, now);
    assert!(desk.take("acme", 1, now).is_none(), "two in a window of one");
}

#[test]
fn one_debt_does_not_shut_out_all_that_share_with_it() {
    use Algorithm::*;
    for algorithm in [TokenBucket, LeakyBucket, FixedWindow, AnchoredWindow, SlidingWindow, SlidingLog] {
        let desk = Desk::with(Engine::full(0), tier(Quota::per_second(10).algorithm(algorithm), true));
        let receipt = desk.take("acme", 1, NOW).unwrap();
        desk.add(&receipt, u64::MAX, NOW);
        assert!(desk.take("initech", 1, NOW).is_none(), "{algorithm:?}: some of it is owed");
        // Eleven of ten are used, and paid back at ten a second.
        let free = desk.earliest("initech", 1, NOW).unwrap();
        assert!(free <= NOW + 2 * SECOND, "{algorithm:?}: {}", free - NOW);
        desk.add(&receipt, 3, free);
        desk.give_back(&receipt, u64::MAX, free);
        assert!(desk.earliest("initech", 10, free).unwrap() <= free + 2 * SECOND, "{algorithm:?}");
    }
}
