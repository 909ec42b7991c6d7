//! Random policies and schedules.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{Algorithm, Dimension, FailureMode, Policy, Quota, Rule};

use super::algorithms::ALGORITHMS;

pub(crate) const PATHS: [&str; 2] = ["/a", "/b"];
pub(crate) const TENANTS: [&str; 3] = ["acme", "initech", "a:{b}"];

/// One step, on both backends.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Time passes, in microseconds.
    Pass(u64),
    /// The clock is set back, by microseconds.
    Back(u64),
    /// Time passes until the latest rejection's `retry_after`.
    Retry,
    Check(Request),
    /// Keeps the permit if it is admitted. May wait for so many microseconds.
    Acquire(Request, u64),
    /// Drops a permit, by its index modulo the number of requests. The next three
    /// steps use the index in the same way.
    Release(usize),
    Refund(usize),
    Add(usize, u64),
    GiveBack(usize, u64),
    /// Drops a request that waits, by the same index.
    Abandon(usize),
    /// Reloads the policy with the other limits.
    Reload,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) path: &'static str,
    pub(crate) tenant: &'static str,
    pub(crate) cost: u64,
}

/// A policy in two versions that differ only in limits.
#[derive(Clone, Debug)]
pub(crate) struct Policies {
    pub(crate) editions: [Policy; 2],
    /// Whether units are held in flight.
    pub(crate) in_flight: bool,
    /// Whether all its times are whole microseconds.
    pub(crate) whole: bool,
}

/// A tier's quota in two versions.
type Quotas = [Quota; 2];

/// Every limit divides these windows into whole microseconds.
const WINDOWS: [u64; 6] = [20_000, 60_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];
const LIMITS: [u64; 9] = [0, 1, 2, 4, 5, 8, 10, 20, 100];

fn quotas(whole: bool) -> BoxedStrategy<Quotas> {
    let (window, limit) = if whole {
        (prop::sample::select(&WINDOWS[..]).boxed(), prop::sample::select(&LIMITS[..]).boxed())
    } else {
        let window = prop_oneof![Just(1_000_000_u64), 1_000..100_000_000_u64, Just(86_400_000_000)];
        (window.boxed(), prop_oneof![1..12_u64, 1..1_000_u64, 1..60_000_000_u64].boxed())
    };
    let burst = prop::option::of(1..12_u64);
    let windowed = (window, limit.clone(), limit, burst, prop::sample::select(&ALGORITHMS[..]), 0..4_u8);
    let windowed = windowed.prop_map(|(window, one, other, burst, algorithm, calendar)| {
        let most = if algorithm == Algorithm::SlidingLog { 200 } else { u64::MAX };
        [one, other].map(|limit| {
            let quota = Quota::new(limit.min(most), Duration::from_micros(window)).algorithm(algorithm);
            match (algorithm, burst) {
                (Algorithm::TokenBucket | Algorithm::LeakyBucket, Some(burst)) => quota.burst(burst),
                (Algorithm::FixedWindow, _) if calendar == 0 => Quota::per_month(limit),
                (Algorithm::FixedWindow, _) if calendar == 1 => quota.offset(Duration::from_micros(window / 3)),
                _ => quota,
            }
        })
    });
    let in_flight = (1..4_u64, 1..4_u64).prop_map(|(one, other)| [Quota::concurrent(one), Quota::concurrent(other)]);
    prop_oneof![6 => windowed, 1 => in_flight].boxed()
}

fn rule(nth: usize, whole: bool) -> impl Strategy<Value = ([Rule; 2], Vec<Quotas>)> {
    let paths = prop_oneof![3 => Just(&PATHS[..0]), 1 => Just(&PATHS[..1]), 1 => Just(&PATHS[1..])];
    let per = prop_oneof![
        3 => Just(None),
        1 => Just(Some(vec![])),
        1 => Just(Some(vec![Dimension::Tenant])),
        1 => Just(Some(vec![Dimension::Tenant, Dimension::Endpoint])),
    ];
    let max_wait = prop::option::of(prop_oneof![Just(0), 1..60_000_u64]);
    let tiers = prop::collection::vec(quotas(whole), 1..=3);
    (paths, per, max_wait, prop_oneof![3 => Just(1), 1 => 2..4_u64], any::<bool>(), tiers).prop_map(
        move |(paths, per, max_wait, cost, settle, tiers)| {
            let rule = Rule::new(format!("rule-{nth}")).on_backend_failure(FailureMode::Closed).cost(cost);
            let rule = paths.iter().fold(rule.settle(settle), |rule, path| rule.path(*path));
            let rule = per.into_iter().fold(rule, Rule::per);
            let rule = max_wait.into_iter().fold(rule, |rule, wait| rule.max_wait(Duration::from_micros(wait)));
            let edition = |edition: usize| tiers.iter().fold(rule.clone(), |rule, tier| rule.tier(tier[edition]));
            ([edition(0), edition(1)], tiers.clone())
        },
    )
}

pub(crate) fn policies(whole: bool) -> impl Strategy<Value = Policies> {
    let rules = prop_oneof![
        2 => rule(0, whole).prop_map(|rule| vec![rule]),
        2 => (rule(0, whole), rule(1, whole)).prop_map(|(one, two)| vec![one, two]),
        1 => (rule(0, whole), rule(1, whole), rule(2, whole)).prop_map(|(one, two, three)| vec![one, two, three]),
    ];
    rules.prop_map(move |rules| {
        let edition =
            |edition: usize| rules.iter().fold(Policy::new(), |policy, (rules, _)| policy.rule(rules[edition].clone()));
        let quotas = || rules.iter().flat_map(|(_, tiers)| tiers).flatten();
        Policies {
            editions: [edition(0), edition(1)],
            in_flight: quotas().any(|quota| quota.window().is_zero()),
            // A weighted count reaches a limit at any fraction of a window.
            whole: whole && !quotas().any(|quota| quota.counted_by() == Algorithm::SlidingWindow),
        }
    })
}

fn request() -> impl Strategy<Value = Request> {
    let cost = prop_oneof![8 => Just(1), 1 => Just(0), 2 => 2..6_u64, 1 => 6..40_u64, 1 => Just(u64::MAX)];
    let tenant = prop_oneof![4 => Just(TENANTS[0]), 1 => Just(TENANTS[1]), 1 => Just(TENANTS[2])];
    (prop::sample::select(&PATHS[..]), tenant, cost).prop_map(|(path, tenant, cost)| Request { path, tenant, cost })
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![
        2 => 1..500_u64,
        4 => 500..30_000_u64,
        3 => 30_000..2_000_000_u64,
        1 => 2_000_000..90_000_000_u64,
        1 => Just(3_600_000_000_u64),
    ];
    let wait = prop_oneof![1 => Just(0), 3 => 1..60_000_u64];
    let units = || prop_oneof![3 => 0..5_u64, 1 => 5..60_u64];
    let step = prop_oneof![
        8 => gap.prop_map(Step::Pass),
        1 => (1..2_000_000_u64).prop_map(Step::Back),
        4 => Just(Step::Retry),
        16 => request().prop_map(Step::Check),
        6 => (request(), wait).prop_map(|(request, wait)| Step::Acquire(request, wait)),
        3 => any::<usize>().prop_map(Step::Release),
        2 => any::<usize>().prop_map(Step::Refund),
        2 => (any::<usize>(), units()).prop_map(|(index, units)| Step::Add(index, units)),
        2 => (any::<usize>(), units()).prop_map(|(index, units)| Step::GiveBack(index, units)),
        1 => any::<usize>().prop_map(Step::Abandon),
        1 => Just(Step::Reload),
    ];
    // A cost of zero still touches an idle counter, if it exists. Only a clock that
    // goes back makes that visible, and then it depends on when idle counters are
    // dropped.
    let touches_idle =
        |step: &Step| matches!(step, Step::Check(request) | Step::Acquire(request, _) if request.cost == 0);
    prop::collection::vec(step, 1..60).prop_map(move |mut steps| {
        if steps.iter().any(touches_idle) {
            steps.retain(|step| !matches!(step, Step::Back(_)));
        }
        steps
    })
}
