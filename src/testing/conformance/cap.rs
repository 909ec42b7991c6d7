//! Checks of the cap on keys.

use std::time::Duration;

use super::bench::{Bench, Fixture, rule};
use crate::{policy::Policy, quota::Quota};

const MAX_KEYS: usize = 100;
const LIVE: usize = 10;
const LIMIT: usize = 3;
/// The tenants that come after the flood.
const LATER: usize = 50;

/// A flood of tenants does not grow memory. Keys that have used more than the
/// flood's keys keep their counters. After the flood, new tenants have counters
/// of their own; a backend may mistake a few of them for tenants of the flood.
pub(super) fn holds(fixture: &Fixture<'_>) {
    let Some(make) = &fixture.suite.make_capped else { return };
    let policy = Policy::new().rule(rule("cap").tier(Quota::per_hour(LIMIT as u64)));
    let bench = fixture.bench_on(make(MAX_KEYS), policy);

    for live in 0..LIVE {
        assert_eq!(bench.admitted("/", &format!("live-{live}"), LIMIT - 1), LIMIT - 1);
    }
    for tenant in 0..5_000 {
        bench.admitted("/", &format!("flood-{tenant}"), 1);
        assert_bounded(&bench);
    }
    for live in 0..LIVE {
        assert_eq!(bench.admitted("/", &format!("live-{live}"), LIMIT), 1, "live-{live} lost its count");
    }

    if bench.is_exact() {
        bench.pass(Duration::from_secs(2 * 60 * 60));
        let mut less = 0;
        for tenant in 0..LATER {
            let admitted = bench.admitted("/", &format!("later-{tenant}"), LIMIT + 1);
            assert!(admitted <= LIMIT, "later-{tenant} was admitted {admitted} times");
            less += usize::from(admitted < LIMIT);
            assert_bounded(&bench);
        }
        assert!(less <= LATER / 10, "{less} of {LATER} later tenants had no counter of their own");
    }
}

fn assert_bounded(bench: &Bench<'_>) {
    let keys = bench.limiter.stats().keys();
    assert!(keys <= MAX_KEYS, "{keys} keys are held, of {MAX_KEYS} at most");
}
