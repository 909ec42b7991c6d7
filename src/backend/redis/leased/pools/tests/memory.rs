//! How much memory a key takes, with and without units.

use super::*;
use crate::backend::redis::tests::request_of;

/// Enough for tables to be as full as they are on average.
const KEYS: u64 = 20_000;

/// The heap of pools whose keys each have asked for units, in bytes a key, as they were
/// asked for. With `units`, the store has leased them some.
fn bytes_of_key(units: u64) -> u64 {
    let policy = policy(Quota::per_second(1_000), Consistency::Leased, Duration::from_nanos(INTERVAL));
    let context = context(false);
    let mut pools = None;
    let taken = allocation_counter::measure(|| {
        let own = Pools::new("rl", true, &Arc::default());
        for index in 0..KEYS {
            request_of(&format!("tenant-{index:09}"), &policy, (1, WINDOW), |request, charge| {
                let pool = PoolKey { key: charge.key, version: 1, interval: INTERVAL };
                assert!(own.take(pool, 1, 1, WINDOW).is_none());
                assert!(own.take(pool, 1, 1, WINDOW).is_none());
                let Begun::Ask((_, lease)) = own.want(pool, (1, 1), WINDOW) else { panic!("it does not ask") };
                let set = ChargeSet::split(&context, request, 1).unwrap().pop().unwrap();
                let set = ChargeSet { lease: Some(lease), ..set };
                let reply =
                    ChargeReply { now: 1, admitted: units, when: 1, delaying: 0, tiers: smallvec![[1_000, 1, 1]] };
                own.add(&set, &reply, 0);
                assert_eq!(own.take(pool, 1, 1, WINDOW).is_some(), units > 0);
            });
        }
        pools = Some(own);
    });
    u64::try_from(taken.bytes_current).unwrap() / KEYS
}

#[test]
fn a_key_takes_little_memory() {
    let (idle, with_units) = (bytes_of_key(0), bytes_of_key(13));
    println!("{idle} bytes without units, {with_units} with");
    assert!(idle <= 80, "{idle} bytes without units");
    assert!(with_units <= 176, "{with_units} bytes with units");
}
