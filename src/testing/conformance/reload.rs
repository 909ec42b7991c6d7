//! Checks that a reload of the policy keeps usage.

use std::time::Duration;

use super::bench::{Fixture, rule};
use crate::{
    descriptor::Descriptor,
    policy::{Policy, Rule},
    quota::Quota,
};

const DAY: Duration = Duration::from_secs(86_400);

/// A raised limit applies at once, less what was used. A lowered one rejects
/// until usage is below it. An invalid policy changes nothing.
pub(super) fn keeps_usage(fixture: &Fixture<'_>) {
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
