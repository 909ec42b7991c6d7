//! Floods of invented tenants: newcomers are admitted, other tenants and rules
//! are not affected, and no tenant gets its quota back by it.

use super::*;

const CAP: usize = 1_000;
const LIMIT: u64 = 5;

/// A rule whose counters stay in use for as long as a test takes.
fn rule(id: &str, algorithm: Algorithm) -> Rule {
    Rule::new(id).path(format!("/{id}")).tier(Quota::per_day(LIMIT).algorithm(algorithm))
}

/// Every algorithm in turn for the rule that is flooded, beside another rule.
fn benches() -> impl Iterator<Item = (Algorithm, Bench)> {
    Algorithm::WINDOWED.into_iter().map(|algorithm| {
        let policy = Policy::new().rule(rule("login", algorithm)).rule(rule("other", Algorithm::TokenBucket));
        (algorithm, Bench::with(Engine::full(CAP), policy))
    })
}

impl Bench {
    fn is_admitted(&self, path: &str, tenant: &str, cost: u64) -> bool {
        self.ask(&Descriptor::new(path).tenant(tenant).cost(cost), NOW, 0).1.is_some()
    }

    /// `count` new tenants send `requests` each.
    fn flood(&self, name: &str, count: usize, requests: usize) {
        for tenant in 0..count {
            let tenant = format!("{name}-{tenant}");
            for _ in 0..requests {
                self.is_admitted("/login", &tenant, 1);
            }
        }
        assert!(self.engine.usage().keys <= CAP, "{} keys", self.engine.usage().keys);
    }
}

/// The units that a tenant that does not wait can use at once.
fn capacity(algorithm: Algorithm) -> u64 {
    if algorithm == Algorithm::LeakyBucket { 1 } else { LIMIT }
}

#[test]
fn newcomers_are_admitted_during_a_flood() {
    for requests in [1, 2, LIMIT as usize] {
        for (algorithm, bench) in benches() {
            let mut rejected = 0;
            const NEWCOMERS: usize = 500;
            bench.flood("before", CAP, requests);
            for newcomer in 0..NEWCOMERS {
                bench.flood(&format!("flood-{newcomer}"), 9 * CAP / NEWCOMERS, requests);
                rejected += usize::from(!bench.is_admitted("/login", &format!("newcomer-{newcomer}"), 1));
            }
            assert!(
                rejected < NEWCOMERS / 20,
                "{algorithm}, {requests} requests each: {rejected} of {NEWCOMERS} newcomers rejected"
            );
            assert!(bench.engine.usage().displaced > 8 * CAP as u64, "the flood displaces itself");
        }
    }
}

/// Tenants that have sent more than the flood's tenants do.
#[test]
fn established_tenants_keep_their_counters_during_a_flood() {
    for (algorithm, bench) in benches().filter(|(algorithm, _)| *algorithm != Algorithm::LeakyBucket) {
        let established = CAP / 4;
        for tenant in 0..established {
            assert!(bench.is_admitted("/login", &format!("established-{tenant}"), 3));
        }
        bench.flood("flood", 10 * CAP, 1);
        for tenant in 0..established {
            let tenant = format!("established-{tenant}");
            assert!(!bench.is_admitted("/login", &tenant, 3), "{algorithm}: {tenant} got units back");
            assert!(bench.is_admitted("/login", &tenant, 2), "{algorithm}: {tenant} lost units");
        }
    }
}

#[test]
fn a_flood_does_not_affect_other_rules() {
    for (algorithm, bench) in benches() {
        for tenant in 0..CAP / 4 {
            assert!(bench.is_admitted("/other", &format!("established-{tenant}"), 1));
        }
        bench.flood("flood", 10 * CAP, 1);
        for tenant in 0..CAP / 4 {
            let established = format!("established-{tenant}");
            assert!(!bench.is_admitted("/other", &established, LIMIT), "{algorithm}: {established} got units back");
            assert!(bench.is_admitted("/other", &established, LIMIT - 1), "{algorithm}: {established} lost units");
        }
        // A few find a shard in which their rule has more states than the flooded
        // one, or are mistaken for a displaced key.
        let (mut rejected, mut less) = (0, 0);
        for tenant in 0..CAP / 4 {
            let newcomer = format!("newcomer-{tenant}");
            rejected += usize::from(!bench.is_admitted("/other", &newcomer, 1));
            less += usize::from(!bench.is_admitted("/other", &newcomer, LIMIT - 1));
        }
        assert!(rejected <= CAP / 4 / 50, "{algorithm}: {rejected} newcomers were rejected");
        assert!(less <= CAP / 4 / 25, "{algorithm}: {less} newcomers have less than their quota");
    }
}

/// Between any two of its requests a flood displaces its counter, if it can.
#[test]
fn a_flood_returns_no_quota_before_the_stated_number_of_newcomers() {
    for requests in [1, LIMIT as usize] {
        for (algorithm, bench) in benches() {
            bench.flood("before", CAP, requests);
            let mut admitted = 0;
            const ROUNDS: usize = 40;
            for round in 0..ROUNDS {
                admitted += u64::from(bench.is_admitted("/login", "victim", 1));
                bench.flood(&format!("flood-{round}"), CAP / 8, requests);
            }
            let forgotten = (ROUNDS * CAP / 8 / (CAP / 8)) as u64;
            let most = capacity(algorithm) * (1 + forgotten);
            assert!(admitted <= most, "{algorithm}, {requests} requests each: {admitted} admitted, at most {most}");
        }
    }
}

/// A counter of a window that is over counts nothing against its key, though it
/// was displaced in it.
#[test]
fn what_was_displaced_in_an_earlier_window_is_forgotten() {
    for (algorithm, bench) in benches() {
        assert!(bench.is_admitted("/login", "early", capacity(algorithm)));
        bench.flood("flood", 3 * CAP, LIMIT as usize);
        let later = NOW + 2 * 86_400 * SECOND;
        let request = Descriptor::new("/login").tenant("early").cost(capacity(algorithm));
        assert!(bench.ask(&request, later, 0).1.is_some(), "{algorithm}");
    }
}

#[test]
fn a_rejected_request_displaces_nothing() {
    let narrow = Rule::new("narrow").per([]).tier(Quota::per_day(CAP as u64));
    let policy = Policy::new().rule(narrow).rule(Rule::new("wide").tier(Quota::per_day(1)));
    let bench = Bench::with(Engine::full(CAP), policy);
    for tenant in 0..3 * CAP {
        bench.take(&format!("tenant-{tenant}"), 1, NOW);
    }
    assert!(bench.engine.usage().displaced <= 1, "{:?}", bench.engine.usage());
    assert!(bench.take("tenant-7", 1, NOW).is_none());
}

/// In-flight units are never displaced: their release needs them.
#[test]
fn a_flood_that_holds_no_units_locks_nobody_out_of_a_concurrency_limit() {
    let bench = Bench::with(Engine::full(CAP), Quota::concurrent(2));
    let held: Vec<_> = (0..CAP / 4).map(|tenant| bench.take(&format!("held-{tenant}"), 2, NOW).unwrap()).collect();
    for tenant in 0..10 * CAP {
        let receipt = bench.take(&format!("flood-{tenant}"), 2, NOW + tenant as u64).expect("a newcomer is admitted");
        bench.release(&receipt, NOW + tenant as u64);
    }
    for (tenant, receipt) in held.iter().enumerate() {
        assert!(bench.take(&format!("held-{tenant}"), 1, NOW).is_none(), "held-{tenant} was displaced");
        bench.release(receipt, NOW);
        assert!(bench.take(&format!("held-{tenant}"), 2, NOW).is_some());
    }
}
