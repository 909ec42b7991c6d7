//! Checks of admissions without waits: bounds, all-or-nothing charges, limits of
//! the request, `retry_after`; and of what is counted and remembered: reloads, peeks,
//! resets, the cap on keys.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use super::suite::{Bench, Fixture, rule};
use crate::{
    decision::RateLimitedKind,
    descriptor::{Descriptor, Tenant},
    policy::{Dimension, Policy, Rule},
    quota::{Algorithm, Quota},
    time::{Timestamp, nanos},
};

const THREADS: usize = 8;
const LIMIT: usize = 20;
/// The requests of each thread on each key: together more than the limit.
const TRIES: usize = 3;

/// Eight threads ask for each of many keys at the same moment. Each key admits
/// exactly its limit, within what its level of consistency states. Nothing is refilled
/// meanwhile: the windows are days.
pub(super) fn limits_are_never_exceeded(fixture: &Fixture<'_>) {
    const PATHS: [&str; 4] = ["/bucket", "/window", "/tiers", "/rules"];
    let day = Quota::per_day(LIMIT as u64);
    let windowed = fixture.suite.algorithms.contains(&Algorithm::FixedWindow);
    let window = if windowed { day.algorithm(Algorithm::FixedWindow) } else { day };
    let policy = Policy::new()
        .rule(rule("bucket").path("/bucket").tier(day))
        .rule(rule("window").path("/window").tier(window))
        .rule(rule("tiers").path("/tiers").tier(Quota::per_day(100)).tier(Quota::new(LIMIT as u64, 2 * DAY)))
        .rule(rule("wide").path("/rules").tier(Quota::per_day(100)))
        .rule(rule("narrow").path("/rules").tier(day));
    let bench = fixture.bench(policy);
    let admitted: Vec<_> = (0..fixture.suite.keys).map(|_| AtomicUsize::new(0)).collect();
    let barrier = Barrier::new(THREADS);
    let compete = || {
        let mut result = Ok(());
        for (key, admitted) in admitted.iter().enumerate() {
            // Not at every key: the barrier would take longer than the work.
            if key % 8 == 0 {
                barrier.wait();
            }
            // Without this thread, the others would wait at the barrier for good.
            result = result.and_then(|()| {
                catch_unwind(AssertUnwindSafe(|| {
                    let passed = bench.admitted(PATHS[key % PATHS.len()], &format!("tenant-{key}"), TRIES);
                    admitted.fetch_add(passed, Ordering::Relaxed);
                }))
            });
        }
        result
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(compete)).collect();
        threads.into_iter().map(|thread| thread.join().and_then(|result| result)).collect::<Vec<_>>()
    });
    results.into_iter().for_each(|result| result.unwrap_or_else(|panicked| resume_unwind(panicked)));
    let admitted = admitted.into_iter().map(AtomicUsize::into_inner).enumerate();
    let wrong: Vec<_> = admitted.filter(|&(_, count)| count != LIMIT).collect();
    let named: Vec<_> = wrong.iter().map(|&(key, count)| (PATHS[key % PATHS.len()], count)).take(10).collect();
    assert!(wrong.is_empty(), "{} keys with a limit of {LIMIT} admitted more or less, such as {named:?}", wrong.len());
}

const DAY: Duration = Duration::from_secs(86_400);

/// Of a hundred rapid requests, the narrow tier admits one. The wide tier is
/// charged exactly one.
pub(super) fn all_or_nothing_over_tiers(fixture: &Fixture<'_>) {
    let (wide, narrow) = (Quota::per_hour(100), Quota::new(1, Duration::from_secs(30)));
    for (id, tiers) in [("tiers-wide-first", [wide, narrow]), ("tiers-narrow-first", [narrow, wide])] {
        let bench = fixture.bench(Policy::new().rule(rule(id).tier(tiers[0]).tier(tiers[1])));
        assert_eq!(bench.admitted("/", "acme", 100), 1, "the narrow tier");
        let rejected = bench.ask(&Descriptor::new("/").tenant("acme"));
        let left: Vec<_> = rejected.tiers().iter().map(|tier| (tier.limit(), tier.remaining())).collect();
        let expected = tiers.map(|quota| if quota == wide { (100, 99) } else { (1, 0) });
        assert_eq!(left, expected, "(limit, remaining) of the tiers");
    }
}

/// One rule counts by tenant, one by another key, one by both together. A
/// rejection by any of them charges none.
pub(super) fn all_or_nothing_over_keys(fixture: &Fixture<'_>) {
    let policy = Policy::new()
        .rule(rule("keys-tenant").per([Dimension::Tenant]).tier(Quota::per_day(2)))
        .rule(rule("keys-ip").per([Dimension::key("ip")]).tier(Quota::per_day(5)))
        .rule(rule("keys-both").per([Dimension::Tenant, Dimension::key("ip")]).tier(Quota::per_day(2)));
    let bench = fixture.bench(policy);
    let admitted = |tenant: &str, ip: &str, tries: usize| {
        let request = Descriptor::new("/").tenant(tenant).key("ip", ip);
        let admitted = bench.admits(&request, tries);
        // A cluster asks the slots of different keys one by one, and refunds.
        fixture.settle();
        admitted
    };
    assert_eq!(admitted("a", "x", 20), 2, "by the tenant's limit");
    assert_eq!(admitted("a", "y", 20), 0, "the tenant's limit, whatever the other key is");
    assert_eq!(admitted("b", "x", 20), 2, "another tenant");
    assert_eq!(admitted("c", "x", 20), 1, "what the rejected requests left of the other key's limit");
    assert_eq!(admitted("c", "y", 20), 1, "what the rejected requests left of the tenant's limit");
    // Of names that read alike when they are written one after the other.
    assert_eq!(admitted("c&ip=", "z", 1) + admitted("c", "&ip=z", 1), 1);
}

/// Limits that come with the request: they replace the rule's own, and a tenant
/// keeps what it has used when they change.
pub(super) fn limits_of_the_request(fixture: &Fixture<'_>) {
    let own = rule("own").per([Dimension::Tenant]).tier(Quota::per_day(1)).tenant("acme", [Quota::per_day(2)]);
    let bench = fixture.bench(Policy::new().rule(own));
    let admitted = |tenant: Tenant| bench.admits(&Descriptor::new("/").tenant(tenant), 20);
    let with = |limit| Tenant::new("acme").tiers([Quota::per_day(limit)]);
    assert_eq!(admitted(with(3)), 3, "the tenant's own limit");
    assert_eq!(admitted(with(5)), 2, "what a higher limit adds");
    assert_eq!(admitted(with(4)), 0, "a lower limit");
    assert_eq!(admitted(Tenant::new("acme")), 0, "the policy's limit for the tenant");
    assert_eq!(admitted(Tenant::new("b").tiers_for("conformance-own", [Quota::per_day(2)])), 2, "of one rule");
    assert_eq!(admitted(Tenant::new("c").tiers_for("other", [Quota::per_day(2)])), 1, "of another rule");
    let request = Descriptor::new("/").tenant(Tenant::new("d").tiers([]));
    assert_eq!(bench.ask(&request).rejection(), Some(RateLimitedKind::InvalidTiers), "no quota at all");
}

/// Rejected requests leave the remainder intact.
pub(super) fn a_rejection_charges_nothing(fixture: &Fixture<'_>) {
    for algorithm in fixture.bursting() {
        let rule = rule(&format!("rejection-{algorithm}")).tier(Quota::per_day(10).algorithm(algorithm));
        let bench = fixture.bench(Policy::new().rule(rule));
        let of_cost = |cost| bench.ask(&Descriptor::new("/").tenant("acme").cost(cost));
        let never = of_cost(11);
        assert_eq!(never.rejection(), Some(RateLimitedKind::NeverFits), "{algorithm}: cost 11 of 10");
        assert_eq!(never.retry_after(), None, "{algorithm}: cost 11 of 10");
        assert!(of_cost(6).is_allowed(), "{algorithm}: 6 of 10");
        for _ in 0..20 {
            let rejected = of_cost(5);
            assert!(!rejected.is_allowed(), "{algorithm}: 5 of the 4 that are left");
            assert_eq!(rejected.remaining(), Some(4), "{algorithm}: remaining");
        }
        assert!(of_cost(4).is_allowed(), "{algorithm}: the 4 that are left");
        assert!(!of_cost(1).is_allowed(), "{algorithm}: one more than there are");
        assert!(of_cost(0).is_allowed() || algorithm == Algorithm::LeakyBucket, "{algorithm}: nothing at all");
    }
}

/// Requests are rejected until just before `retry_after`, and admitted then,
/// for one tier and for two.
pub(super) fn retry_after_is_exact(fixture: &Fixture<'_>) {
    let second = Duration::from_secs(1);
    for &algorithm in &fixture.suite.algorithms {
        let tiers = [Quota::new(7, second), Quota::new(9, 2 * second)].map(|quota| quota.algorithm(algorithm));
        for count in [1, 2] {
            let id = format!("retry-{count}-{algorithm}");
            let policy = Policy::new().rule(tiers[..count].iter().copied().fold(rule(&id), Rule::tier));
            let bench = fixture.bench(policy);
            if bench.is_exact() {
                // Away from the start of any window.
                bench.pass(Duration::from_millis(123));
            }
            let rounds = if bench.is_exact() { 40 } else { 1 };
            for round in 0..rounds {
                wait_out(&bench, &id, 1 + round % 4);
            }
        }
    }
}

/// Spends the quota, and waits until more is available.
fn wait_out(bench: &Bench<'_>, id: &str, cost: u64) {
    let request = Descriptor::new("/").tenant("acme").cost(cost);
    let rejected = (0..100).map(|_| bench.ask(&request)).find(|decision| !decision.is_allowed());
    let rejected = rejected.unwrap_or_else(|| panic!("{id}: never rejected"));
    let retry_after = rejected.retry_after().unwrap_or_else(|| panic!("{id}: no retry_after"));
    assert!(!retry_after.is_zero(), "{id}: rejected, to be retried at once");
    let tick = Duration::from_nanos(1);
    if bench.is_exact() {
        bench.pass(retry_after - tick);
        assert!(!bench.ask(&request).is_allowed(), "{id}: admitted before retry_after, {retry_after:?}");
        bench.pass(tick);
    } else {
        bench.pass(retry_after);
    }
    assert!(bench.ask(&request).is_allowed(), "{id}: rejected at retry_after, {retry_after:?}");
}

/// A calendar month admits its limit until its real end, and the next one begins there.
/// The months are January, and February of a leap year and of another one.
pub(super) fn months_end_where_they_end(fixture: &Fixture<'_>) {
    if !fixture.suite.algorithms.contains(&Algorithm::FixedWindow) || fixture.suite.real_time.is_some() {
        return;
    }
    const HOUR: Duration = Duration::from_secs(3_600);
    // When the months end, in seconds since the Unix epoch.
    let ends = [1_706_745_600, 1_709_251_200, 1_740_787_200].map(Timestamp::from_secs);
    let bench = fixture.bench(Policy::new().rule(rule("month").tier(Quota::per_month(3))));
    for (end, tenant) in ends.into_iter().zip(["january", "leap", "february"]) {
        let request = Descriptor::new("/").tenant(tenant);
        bench.set(Timestamp::from_nanos(end.as_nanos() - nanos(HOUR)));
        assert_eq!(bench.admits(&request, 5), 3, "an hour before {end}");
        let rejected = bench.ask(&request);
        assert_eq!(rejected.retry_after(), Some(HOUR), "retry_after an hour before {end}");
        assert_eq!(rejected.reset(), HOUR, "reset an hour before {end}");
        bench.pass(HOUR - Duration::from_micros(1));
        assert_eq!(bench.admits(&request, 5), 0, "just before {end}");
        bench.pass(Duration::from_micros(1));
        assert_eq!(bench.admits(&request, 2), 2, "at {end}");
        bench.pass(27 * DAY);
        assert_eq!(bench.admits(&request, 5), 1, "what is left 27 days after {end}");
    }
}

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
        assert_eq!(
            (rejected.limit(), rejected.remaining()),
            (Some(50), Some(0)),
            "{algorithm}: limit and remaining at 50"
        );
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
                assert_eq!(
                    (seen.is_allowed(), seen.remaining()),
                    (left > 0, Some(left)),
                    "{algorithm}: a peek is honest"
                );
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
        let reset = |tenant| bench.reset(&Descriptor::new("/").tenant(tenant));
        let Some(forgotten) = reset("acme") else { return };
        assert_eq!((forgotten, reset("stranger")), (2, Some(0)), "{algorithm}: how many counters it forgets");
        assert_eq!(admitted("acme", 4), 3, "{algorithm}: a reset forgets what was used");
        assert_eq!(admitted("initech", 2), 1, "{algorithm}: a reset concerns one tenant");
    }
}

const MAX_KEYS: usize = 100;

/// A flood of tenants does not grow memory. Keys that have used more than the
/// flood's keys keep their counters. After the flood, new tenants have counters
/// of their own; a backend may mistake a few of them for tenants of the flood.
pub(super) fn is_bounded(fixture: &Fixture<'_>) {
    const LIVE: usize = 10;
    const LIMIT: usize = 3;
    /// The tenants that come after the flood.
    const LATER: usize = 50;
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
