//! Pools among others, which may displace them once they are not used.

use super::*;

const NOW: u64 = 5 * WINDOW;

fn pools() -> Arc<Pools> {
    Pools::new("rl", true, &Arc::default(), &Arc::new(Instances::new()))
}

fn pool(number: u128) -> PoolKey {
    // Spread over all shards.
    let key = Fingerprint::from_u128((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    PoolKey { key, version: 1, interval: INTERVAL }
}

/// The numbers of its asks go on: the store still records what the last ones leased.
#[test]
fn a_pool_that_was_used_lately_is_not_displaced() {
    let pools = pools();
    let ask = |at: u64| {
        assert!(pools.take(pool(0), 1, at).outcome.is_none());
        pools.ask(pool(0), at, (0, true)).0.own
    };
    assert_eq!(ask(NOW), 1);
    let others = |range: std::ops::Range<u128>, at| range.for_each(|other| drop(pools.take(pool(other), 1, at)));
    others(1..5_000, NOW + 5 * WINDOW);
    assert_eq!(ask(NOW + 5 * WINDOW), 2);
    others(5_000..20_000, NOW + 60 * WINDOW);
    assert_eq!(ask(NOW + 60 * WINDOW), 1, "it was displaced");
}

/// It was not counted, so the end of another ask would be taken for its end: what that one
/// brings would be leased again.
#[test]
fn an_ask_without_a_pool_ends_no_other() {
    let pools = pools();
    let (_, without) = pools.ask(pool(0), NOW, (0, true));
    assert!(pools.take(pool(0), 1, NOW).outcome.is_none());
    let (first, _under_way) = pools.ask(pool(0), NOW, (0, true));
    drop(without);
    let (second, _) = pools.ask(pool(0), NOW, (0, true));
    assert_eq!((first.own, second.own), (1, 2));
    assert_eq!(second.lost, second.known, "the first is under way");
}
