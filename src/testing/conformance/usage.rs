//! Checks of what is counted and remembered: reloads, peeks, resets, the cap on
//! keys.

use std::time::Duration;

use super::bench::{Bench, Fixture, rule};
use crate::{
    descriptor::Descriptor,
    policy::{Policy, Rule},
    quota::{Algorithm, Quota},
};

const DAY: Duration = Duration::from_secs(86_400);

/// A raised limit applies at once, less what was used. A lowered one rejects
/// until usage is below it. An invalid policy changes nothing.
pub(super) fn outlives_a_reload(fixture: &Fixture<'_>) {
    for algorithm in fixture.bursting() {
        let id = format!("reload-{algorithm}");
        let policy = |limit| Policy::new().rule(rule(&id).tier(Quota::new(limit, DAY).algorithm(algorithm)));
        let bench = fixture.bench(policy(60));
        let set = |policy| bench.limiter.set_policy(fixture.suite.at_level(policy));
        assert_eq!(bench.admitted("/", "acme", 40), 40, "{algorithm}: 40 of 60");

        set(policy(600)).expect("a valid policy");
        assert_eq!(bench.admitted("/", "acme", 600), 560, "{algorithm}: raised to 600 after 40 were used");

        set(policy(50)).expect("a valid policy");
        let rejected = bench.ask(&Descriptor::new("/").tenant("acme"));
        assert!(!rejected.is_allowed(), "{algorithm}: lowered to 50 after 600 were used");
        assert_eq!((rejected.limit(), rejected.remaining()), (50, 0), "{algorithm}: limit and remaining at 50");
        assert!(rejected.retry_after().is_some(), "{algorithm}: it passes later");

        let bad = Policy::new().rule(Rule::new("bad").tier(Quota::new(1, Duration::ZERO)));
        assert!(set(bad).is_err(), "a window of zero is no window");
        assert!(!bench.ask(&Descriptor::new("/").tenant("acme")).is_allowed(), "{algorithm}: the old policy stays");

        set(policy(700)).expect("a valid policy");
        assert_eq!(bench.admitted("/", "acme", 200), 100, "{algorithm}: raised to 700 after 600 were used");

        if bench.is_exact() {
            bench.pass(DAY * 2);
            assert_eq!(bench.admitted("/", "acme", 800), 700, "{algorithm}: all units are available again");
        }
    }
}

fn of_two_tiers(id: &str, algorithm: Algorithm) -> Policy {
    let tiers = [Quota::per_day(3).algorithm(algorithm), Quota::new(100, 7 * DAY)];
    Policy::new().rule(rule(id).tier(tiers[0]).tier(tiers[1].algorithm(algorithm)))
}

/// A backend that does not support it passes.
pub(super) fn is_not_changed_by_a_peek(fixture: &Fixture<'_>) {
    for algorithm in fixture.bursting() {
        let bench = fixture.bench(of_two_tiers("peek", algorithm));
        let request = Descriptor::new("/").tenant("acme");
        let (pair, many) = (request.clone().cost(2), request.clone().cost(4));
        for left in (0..=3).rev() {
            for _ in 0..2 {
                let Some(seen) = bench.peek(&request) else { return };
                assert_eq!((seen.is_allowed(), seen.remaining()), (left > 0, left), "{algorithm}: a peek is honest");
                let fits = [&pair, &many].map(|request| bench.peek(request).is_some_and(|seen| seen.is_allowed()));
                assert_eq!(fits, [left >= 2, false], "{algorithm}: a peek compares with the cost");
            }
            let seen = bench.peek(&request).and_then(|seen| seen.retry_after());
            let asked = bench.ask(&request);
            assert_eq!(asked.is_allowed(), left > 0, "{algorithm}: a peek charges nothing");
            assert!(seen >= asked.retry_after().map(|after| after.saturating_sub(bench.tolerance())), "{algorithm}");
        }
    }
}

/// A backend that does not support it passes.
pub(super) fn is_forgotten_by_a_reset(fixture: &Fixture<'_>) {
    for algorithm in fixture.bursting() {
        let bench = fixture.bench(of_two_tiers("reset", algorithm));
        let admitted = |tenant, tries| bench.admitted("/", tenant, tries);
        assert_eq!((admitted("acme", 4), admitted("initech", 2)), (3, 2), "{algorithm}: used up");
        if !bench.reset(&Descriptor::new("/").tenant("acme")) {
            return;
        }
        assert_eq!(admitted("acme", 4), 3, "{algorithm}: a reset forgets what was used");
        assert_eq!(admitted("initech", 2), 1, "{algorithm}: a reset concerns one tenant");
    }
}

const MAX_KEYS: usize = 100;
const LIVE: usize = 10;
const LIMIT: usize = 3;
/// The tenants that come after the flood.
const LATER: usize = 50;

/// A flood of tenants does not grow memory. Keys that have used more than the
/// flood's keys keep their counters. After the flood, new tenants have counters
/// of their own; a backend may mistake a few of them for tenants of the flood.
pub(super) fn is_bounded(fixture: &Fixture<'_>) {
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
