//! Counts what a request allocates once its counters, and the records that its thread
//! reuses, exist.
#![allow(clippy::unwrap_used)]

use std::{
    convert::Infallible,
    future::{Future, ready},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocation_counter::measure;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, service_fn};
use tower_ratelimit::{Descriptor, Dimension, Headers, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant};

/// More than the requests at which a layer and a limiter look for mistakes.
const WARM_UP: usize = 3_000;

const PLENTY: u64 = 1_000_000_000;

/// Two for the header map, and one for the rejection in the extensions. A request
/// without extensions brings no map of them, which takes two more.
const MOST_OF_A_REJECTION: u64 = 3;
const MOST_WITHOUT_EXTENSIONS: u64 = 5;

fn poll<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a local decision is ready at the first poll"),
    }
}

/// What a decision allocates after many others.
fn of_decision(policy: impl Into<Policy>, descriptor: &Descriptor<'_>) -> u64 {
    let limiter = RateLimiter::new(policy).unwrap();
    let check = || assert!(poll(limiter.check(descriptor)).is_allowed());
    (0..WARM_UP).for_each(|_| check());
    measure(check).count_total
}

#[test]
fn a_decision_allocates_nothing() {
    let caller = Descriptor::new("/items/7").method("GET").tenant("acme");
    let hourly = Quota::per_hour(PLENTY);
    assert_eq!(of_decision(hourly, &caller), 0, "one tier");
    let two_tiers = Rule::new("items").tier(hourly).tier(Quota::per_day(PLENTY));
    assert_eq!(of_decision(Policy::new().rule(two_tiers.clone()), &caller), 0, "two tiers");
    let other = Rule::new("item").path("/items/{id}").tier(hourly);
    assert_eq!(of_decision(Policy::new().rule(two_tiers).rule(other), &caller), 0, "two rules");
}

#[test]
fn a_permit_that_need_not_wait_allocates_nothing() {
    let caller = Descriptor::new("/items/7").method("GET").tenant("acme");
    let limiter = RateLimiter::new(Quota::per_hour(PLENTY)).unwrap();
    let acquire = || drop(poll(limiter.acquire(&caller, Duration::ZERO)).unwrap());
    (0..WARM_UP).for_each(|_| acquire());
    assert_eq!(measure(acquire).count_total, 0);
}

/// What a request through a layer allocates after many others of its tenant, itself
/// not counted. All but the first few are answered with `status`.
fn of_request(quota: Quota, headers: Headers, status: StatusCode) -> u64 {
    of_request_from(quota, headers, status, |request| request)
}

/// The same of requests that `prepare` changes, as a server does.
fn of_request_from(
    quota: Quota,
    headers: Headers,
    status: StatusCode,
    prepare: impl Fn(Request<()>) -> Request<()>,
) -> u64 {
    let answer = |_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())));
    let limiter = RateLimiter::new(quota).unwrap();
    let layer = RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")).headers(headers);
    let mut service = layer.layer(service_fn(answer));
    let request = || prepare(Request::get("/").header("x-api-key", "acme").body(()).unwrap());
    let mut requests: Vec<_> = (0..=WARM_UP).map(|_| request()).collect();
    let mut send = |request| {
        let Ok(response) = poll(service.call(request));
        response.status()
    };
    let last = requests.pop().unwrap();
    requests.into_iter().for_each(|request| _ = send(request));
    let mut answered = None;
    let allocated = measure(|| answered = Some(send(last))).count_total;
    assert_eq!(answered, Some(status));
    allocated
}

#[test]
fn an_admitted_request_without_headers_allocates_nothing() {
    assert_eq!(of_request(Quota::per_hour(PLENTY), Headers::NONE, StatusCode::OK), 0);
}

/// The header map: the entries and their index.
#[test]
fn the_headers_of_an_admitted_request_allocate_their_map() {
    assert_eq!(of_request(Quota::per_hour(PLENTY), Headers::X_RATELIMIT, StatusCode::OK), 2);
}

/// The header map, and the rejection in the response's extensions.
#[test]
fn a_rejection_allocates_little() {
    let connected = |mut request: Request<()>| {
        request.extensions_mut().insert("from the server");
        request
    };
    for headers in [Headers::NONE, Headers::ALL] {
        let (quota, status) = (Quota::per_day(1), StatusCode::TOO_MANY_REQUESTS);
        assert!(of_request_from(quota, headers, status, connected) <= MOST_OF_A_REJECTION);
        assert!(of_request(quota, headers, status) <= MOST_WITHOUT_EXTENSIONS);
    }
}

/// Rules of a kind that are compared with others: by path, as fallbacks, as exempt.
fn policy_of(rules: usize, of: impl Fn(usize, Rule) -> Rule) -> Policy {
    let rule = |index: usize| of(index, Rule::new(format!("r{index}")).path(format!("/items/{index}/*")));
    (0..rules).fold(Policy::new(), |policy, index| policy.rule(rule(index)))
}

type Kind = fn(usize, Rule) -> Rule;

/// What takes the square of the time allocates the square as well, where it compares two
/// rules by their patterns.
#[test]
fn a_policy_of_twice_the_rules_takes_twice_the_work() {
    let hourly = Quota::per_hour(PLENTY);
    let kinds: [(&str, Kind); 3] = [
        ("paths", |_, rule| rule.tier(Quota::per_hour(PLENTY))),
        ("fallbacks", |index, rule| rule.tier(Quota::per_hour(PLENTY)).fallback(index % 2 == 0)),
        ("exempt", |index, rule| if index % 2 == 0 { rule.exempt(true) } else { rule.tier(Quota::per_hour(PLENTY)) }),
    ];
    for (kind, of) in kinds {
        let work = |rules| measure(|| drop(RateLimiter::new(policy_of(rules, of)).unwrap())).count_total;
        let (once, twice) = (work(400), work(800));
        assert!(twice < once * 5 / 2, "{kind}: {once} allocations for 400 rules, {twice} for 800");
    }
    // Rules of many patterns.
    let of_paths = |id: &str, paths| (0..paths).fold(Rule::new(id), |rule, path| rule.path(format!("/{path}")));
    let policy = |paths| {
        let fallback = of_paths("rest", paths).tier(hourly).fallback(true);
        Policy::new().rule(of_paths("most", paths).tier(hourly)).rule(fallback)
    };
    let work = |paths| measure(|| drop(RateLimiter::new(policy(paths)).unwrap())).count_total;
    let (once, twice) = (work(400), work(800));
    assert!(twice < once * 5 / 2, "paths of a rule: {once} allocations for 400, {twice} for 800");
}

/// Where each of these is compared with each other, the test takes minutes instead of
/// seconds.
#[test]
fn a_large_policy_comes_into_force_and_its_first_requests_are_decided() {
    const RULES: usize = 20_000;
    let quota = Quota::per_hour(PLENTY);
    let policy = policy_of(RULES, |index, rule| {
        let rule = rule.tier(quota).plan("pro", [quota]).fallback(index % 2 == 0);
        rule.tenant_unlimited(format!("unlimited-{index}")).tenant_unlimited(format!(
            "10.{}.{}.0/24",
            index / 256,
            index % 256
        ))
    });
    let tiers = (1..=RULES as u64).map(|limit| Quota::new(limit, Duration::from_secs(limit)));
    let policy = policy.rule(tiers.fold(Rule::new("tiers").path("/none"), Rule::tier));
    let keys = (0..RULES).map(|index| Dimension::key(format!("key-number-{index}")));
    let policy = policy.rule(Rule::new("keys").path("/none").per(keys).tier(quota));
    assert_eq!(policy.warnings(), []);
    let limiter = RateLimiter::new(policy).unwrap();
    for index in 0..10_000 {
        let (path, tenant) = (format!("/items/{index}/x"), format!("tenant-{index}"));
        let request = Descriptor::new(&path).tenant(tenant.as_str()).plan("pro");
        assert_eq!(poll(limiter.check(&request)).limit(), PLENTY);
    }
}
