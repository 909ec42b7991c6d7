//! The engine as a copy of counters that a store holds.

use super::*;
use crate::{algorithm::CopiedState, policy::charge::Charge};

impl Bench {
    fn with_charge(&self, tenant: &str, run: impl FnOnce(&Charge<'_>)) {
        let request = Descriptor::new("/").tenant(tenant);
        let prepared = self.policy.prepare(&request);
        let mut resolved = Resolved::default();
        self.policy.resolve(&request, &prepared, &mut resolved);
        run(&resolved.enforced[0]);
    }

    fn restore(&self, tenant: &str, copied: CopiedState, units: u64, now: u64) {
        self.with_charge(tenant, |charge| self.engine.restore(charge.key, &charge.tiers()[0], copied, units, now));
    }

    fn add(&self, tenant: &str, units: u64, now: u64) {
        self.with_charge(tenant, |charge| self.engine.add(charge.key, &charge.tiers()[0], units, now));
    }
}

/// Four units of ten are used.
const COPIED: CopiedState = CopiedState { ends: NOW + SECOND, current: 4, previous: 0 };

fn bench(engine: Engine<FullQuota>) -> Bench {
    Bench::with(engine, tier(Quota::per_second(10).algorithm(Algorithm::FixedWindow), false))
}

#[test]
fn what_is_not_in_the_copy_yet_is_charged_on_top() {
    let bench = bench(Engine::full(MAX_KEYS));
    bench.restore("new", COPIED, 0, NOW);
    assert_eq!(bench.remaining("new", NOW), 6);
    bench.take("known", 9, NOW).unwrap();
    bench.restore("known", COPIED, 2, NOW);
    assert_eq!(bench.remaining("known", NOW), 4);
    // More than the limit is a debt of the next window.
    bench.restore("known", COPIED, 9, NOW);
    assert_eq!(bench.remaining("known", NOW + SECOND), 7);
}

#[test]
fn units_are_added_only_to_a_key_with_a_state() {
    let bench = bench(Engine::full(MAX_KEYS));
    bench.add("unknown", 5, NOW);
    assert_eq!(bench.remaining("unknown", NOW), 10);
    bench.take("known", 1, NOW).unwrap();
    bench.add("known", 5, NOW);
    assert_eq!(bench.remaining("known", NOW), 4);
}

/// Each copy takes one entry, and a key without an entry leaves the overflow counter
/// as it is.
#[test]
fn copies_keep_to_the_cap() {
    let bench = bench(Engine::full(1_000));
    for number in 0..3_000 {
        // No state may make way: each is reserved beyond the window.
        bench.restore(&format!("tenant {number}"), CopiedState { ends: NOW + 9 * SECOND, ..COPIED }, 0, NOW);
        bench.restore("tenant 0", CopiedState { ends: NOW + 9 * SECOND, ..COPIED }, 0, NOW);
    }
    assert_eq!(bench.engine.usage().keys, 1_000);
    assert_eq!(bench.remaining("a newcomer", NOW), 10);
}
