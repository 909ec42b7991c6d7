//! Peeks and resets. A backend that supports neither passes.

use super::bench::{Fixture, rule};
use crate::{
    descriptor::Descriptor,
    policy::Policy,
    quota::{Algorithm, Quota},
};

fn policy(id: &str, algorithm: Algorithm) -> Policy {
    let tiers = [Quota::per_day(3).algorithm(algorithm), Quota::new(100, 7 * Quota::per_day(1).window())];
    Policy::new().rule(rule(id).tier(tiers[0]).tier(tiers[1].algorithm(algorithm)))
}

pub(super) fn charges_nothing(fixture: &Fixture<'_>) {
    for algorithm in fixture.bursting() {
        let bench = fixture.bench(policy("peek", algorithm));
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

pub(super) fn reset_forgets(fixture: &Fixture<'_>) {
    for algorithm in fixture.bursting() {
        let bench = fixture.bench(policy("reset", algorithm));
        let admitted = |tenant, tries| bench.admitted("/", tenant, tries);
        assert_eq!((admitted("acme", 4), admitted("initech", 2)), (3, 2), "{algorithm}: used up");
        if !bench.reset(&Descriptor::new("/").tenant("acme")) {
            return;
        }
        assert_eq!(admitted("acme", 4), 3, "{algorithm}: a reset forgets what was used");
        assert_eq!(admitted("initech", 2), 1, "{algorithm}: a reset concerns one tenant");
    }
}
