//! Checks of the cap on keys.

use std::time::Duration;

use super::bench::{Bench, Fixture, rule};
use crate::{descriptor::Descriptor, policy::Policy, quota::Quota};

const MAX_KEYS: usize = 100;
const LIVE: usize = 10;
const LIMIT: usize = 3;

/// A flood of tenants does not grow memory, gain quota or evict live keys. After
/// it, new tenants have counters of their own again.
pub(super) fn holds(fixture: &Fixture<'_>) {
    let Some(make) = &fixture.suite.make_capped else { return };
    let policy = Policy::new().rule(rule("cap").tier(Quota::per_hour(LIMIT as u64)));
    let bench = fixture.bench_on(make(MAX_KEYS), policy);

    for live in 0..LIVE {
        assert_eq!(bench.admitted("/", &format!("live-{live}"), LIMIT - 1), LIMIT - 1);
    }
    let passed: usize = (0..5_000).map(|tenant| flood(&bench, &format!("flood-{tenant}"))).sum();
    let own = MAX_KEYS - LIVE;
    assert!(passed <= own + LIMIT, "{passed} of 5,000 passed: more than {own} keys of their own and one shared");
    assert_eq!(bench.admitted("/", "newcomer", LIMIT), 0, "the shared counter is used up");
    for live in 0..LIVE {
        assert_eq!(bench.admitted("/", &format!("live-{live}"), LIMIT), 1, "live-{live} lost its count");
    }

    if bench.is_exact() {
        bench.pass(Duration::from_secs(2 * 60 * 60));
        for tenant in 0..MAX_KEYS / 2 {
            assert_eq!(bench.admitted("/", &format!("later-{tenant}"), LIMIT + 1), LIMIT, "a key of its own");
            assert_bounded(&bench);
        }
    }
}

/// Sends one request; 1 if it was admitted.
fn flood(bench: &Bench<'_>, tenant: &str) -> usize {
    let passed = bench.ask(&Descriptor::new("/").tenant(tenant)).is_allowed();
    assert_bounded(bench);
    usize::from(passed)
}

fn assert_bounded(bench: &Bench<'_>) {
    let keys = bench.limiter.stats().keys();
    assert!(keys <= MAX_KEYS, "{keys} keys are held, of {MAX_KEYS} at most");
}
