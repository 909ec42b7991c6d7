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
        self.flood_path("/login", name, count, requests);
    }

    fn flood_path(&self, path: &str, name: &str, count: usize, requests: usize) {
        for tenant in 0..count {
            let tenant = format!("{name}-{tenant}");
            for _ in 0..requests {
                self.is_admitted(path, &tenant, 1);
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
        // A few find a shard in which their rule has more states than the flooded one.
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
    const ROUNDS: usize = 320;
    const NEWCOMERS: usize = CAP / 80;
    for path in ["/login", "/other"] {
        for requests in [1, LIMIT as usize] {
            for (algorithm, bench) in benches() {
                bench.flood("before", CAP, requests);
                let mut admitted = 0;
                for round in 0..ROUNDS {
                    admitted += u64::from(bench.is_admitted("/login", "victim", 1));
                    bench.flood_path(path, &format!("flood-{round}"), NEWCOMERS, requests);
                }
                let forgotten = (ROUNDS * NEWCOMERS / (CAP / 8)) as u64;
                let most = capacity(algorithm) * (1 + forgotten);
                assert!(most < ROUNDS as u64, "the test cannot fail");
                let flood = format!("{algorithm}, {requests} requests each on {path}");
                assert!(admitted <= most, "{flood}: {admitted} admitted, at most {most}");
            }
        }
    }
}

/// The oldest of them are idle soonest, so other rules displace them first.
#[test]
fn newcomers_of_another_rule_return_no_quota_to_exhausted_tenants() {
    for (algorithm, bench) in benches() {
        let exhaust = |tenant: &str, now| {
            let request = Descriptor::new("/login").tenant(tenant).cost(capacity(algorithm));
            bench.ask(&request, now, 0).1.is_some()
        };
        for tenant in 0..CAP {
            let now = NOW + if tenant < 100 { 0 } else { 3_600 * SECOND };
            assert!(exhaust(&format!("exhausted-{tenant}"), now), "{algorithm}: {tenant}");
        }
        let now = NOW + 3_600 * SECOND;
        let before = bench.engine.usage().displaced;
        for newcomer in 0..CAP / 20 {
            let tenant = format!("newcomer-{newcomer}");
            assert!(bench.ask(&Descriptor::new("/other").tenant(tenant.as_str()), now, 0).1.is_some(), "{algorithm}");
        }
        assert!(bench.engine.usage().displaced - before >= CAP as u64 / 25, "other rules displace counters");
        let admitted = (0..100).filter(|tenant| exhaust(&format!("exhausted-{tenant}"), now)).count();
        assert_eq!(admitted, 0, "{algorithm}: exhausted tenants regained their quota");
    }
}

/// A store of one counter, so that each key displaces the other.
fn pair(rule: Rule) -> Bench {
    let other = Rule::new("other").path("/other").tier(Quota::per_day(LIMIT));
    Bench::with(Engine::full(1), Policy::new().rule(rule).rule(other))
}

impl Bench {
    fn is_admitted_by_plan(&self, plan: &str, tenant: &str, cost: u64) -> bool {
        self.ask(&Descriptor::new("/login").tenant(tenant).plan(plan).cost(cost), NOW, 0).1.is_some()
    }
}

#[test]
fn a_key_of_a_larger_plan_keeps_what_it_used_when_it_is_displaced() {
    for algorithm in Algorithm::WINDOWED.into_iter().filter(|algorithm| *algorithm != Algorithm::LeakyBucket) {
        let quota = |limit| [Quota::per_day(limit).algorithm(algorithm)];
        let bench = pair(Rule::new("login").path("/login").tier(quota(LIMIT)[0]).plan("pro", quota(50)));
        assert!(bench.is_admitted_by_plan("pro", "acme", 40), "{algorithm}");
        assert!(bench.is_admitted_by_plan("basic", "initech", 1), "{algorithm}");
        assert_eq!(bench.engine.usage().displaced, 1, "{algorithm}");
        assert!(!bench.is_admitted_by_plan("pro", "acme", 11), "{algorithm}: got units back");
        assert!(bench.is_admitted_by_plan("pro", "acme", 10), "{algorithm}: lost units");
    }
}

/// Its queue holds five requests, one a second.
#[test]
fn a_leaky_bucket_keeps_its_queue_when_it_is_displaced() {
    let quota = Quota::per_second(1).burst(LIMIT).algorithm(Algorithm::LeakyBucket);
    let bench = pair(Rule::new("login").path("/login").max_wait(Duration::MAX).tier(quota));
    let wait = |now| match bench.ask(&Descriptor::new("/login").tenant("acme"), now, u64::MAX).0.answer {
        OutcomeKind::Admitted { wait } => Some(wait),
        _ => None,
    };
    let waits: Vec<_> = (0..4).map(|_| wait(NOW)).collect();
    assert_eq!(waits, [0, 1, 2, 3].map(|seconds| Some(seconds * SECOND)));
    assert!(bench.is_admitted("/other", "initech", 1));
    assert_eq!(bench.engine.usage().displaced, 1);
    assert_eq!(wait(NOW + SECOND), Some(3 * SECOND), "its turn comes after those that wait");
}

#[test]
fn a_displaced_key_is_refilled() {
    for path in ["/login", "/other"] {
        let bench = pair(Rule::new("login").path("/login").tier(Quota::per_second(1).burst(LIMIT)));
        assert!(bench.is_admitted("/login", "acme", LIMIT));
        assert!(bench.is_admitted(path, "initech", 1));
        assert_eq!(bench.engine.usage().displaced, 1);
        let ask = |cost, now| bench.ask(&Descriptor::new("/login").tenant("acme").cost(cost), now, 0).1.is_some();
        assert!(!ask(3, NOW + 2 * SECOND), "{path}");
        assert!(ask(2, NOW + 2 * SECOND), "{path}");
    }
}

/// An anchored window ends when it was to end, not a window after the key returns.
#[test]
fn a_displaced_window_ends_at_its_time() {
    for path in ["/login", "/other"] {
        let quota = Quota::per_minute(LIMIT).algorithm(Algorithm::AnchoredWindow);
        let bench = pair(Rule::new("login").path("/login").tier(quota));
        assert!(bench.is_admitted("/login", "acme", LIMIT));
        assert!(bench.is_admitted(path, "initech", 1));
        let ask = |now| bench.ask(&Descriptor::new("/login").tenant("acme"), now, 0).1.is_some();
        assert!(!ask(NOW + 60 * SECOND - 1), "{path}");
        assert!(ask(NOW + 60 * SECOND), "{path}");
    }
}

#[test]
fn a_displaced_key_is_refunded() {
    for (algorithm, path) in Algorithm::WINDOWED.into_iter().flat_map(|each| [(each, "/login"), (each, "/other")]) {
        let bench = pair(rule("login", algorithm));
        let cost = capacity(algorithm);
        let request = Descriptor::new("/login").tenant("acme").cost(cost);
        let receipt = bench.ask(&request, NOW, 0).1.unwrap();
        assert!(bench.is_admitted(path, "initech", 1));
        assert_eq!(bench.engine.usage().displaced, 1);
        assert!(bench.ask(&request, NOW, 0).1.is_none(), "{algorithm}: {path}");
        bench.refund(&receipt, NOW);
        assert!(bench.ask(&request, NOW, 0).1.is_some(), "{algorithm}: {path}");
    }
}

#[test]
fn a_displaced_debt_is_still_owed() {
    for algorithm in Algorithm::WINDOWED {
        let quota = Quota::per_second(10).algorithm(algorithm);
        let bench = pair(Rule::new("login").path("/login").settle(true).tier(quota));
        let ask = |now| bench.ask(&Descriptor::new("/login").tenant("acme"), now, 0).1;
        let receipt = ask(NOW).unwrap();
        bench.add_debt(&receipt, 100, NOW);
        assert!(bench.is_admitted("/other", "initech", 1), "{algorithm}");
        assert_eq!(bench.engine.usage().displaced, 1, "{algorithm}");
        assert!(ask(NOW + 8 * SECOND).is_none(), "{algorithm}: the debt is forgiven");
        // It grows on while it is displaced, and is refunded.
        bench.add_debt(&receipt, 100, NOW + 8 * SECOND);
        assert!(ask(NOW + 18 * SECOND).is_none(), "{algorithm}: the second debt is forgiven");
        assert!(ask(NOW + 23 * SECOND).is_some(), "{algorithm}: more is owed than there was");
    }
}

/// Only a request that is admitted takes an entry.
#[test]
fn a_displaced_key_that_is_rejected_displaces_nothing() {
    for algorithm in Algorithm::WINDOWED {
        let bench = pair(rule("login", algorithm));
        assert!(bench.is_admitted("/login", "acme", capacity(algorithm)));
        assert!(bench.is_admitted("/other", "initech", 1));
        for _ in 0..10 {
            let request = Descriptor::new("/login").tenant("acme");
            let outcome = bench.ask(&request, NOW, 0).0;
            assert!(matches!(outcome.answer, OutcomeKind::Rejected { retry_after: Some(_) }), "{algorithm}");
            assert_eq!(outcome.tiers[0].remaining, 0, "{algorithm}");
        }
        assert_eq!(bench.engine.usage().displaced, 1, "{algorithm}");
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
