//! Reserves for priorities beyond what `--test model` compares: in flight, while others
//! wait, by plan and tenant, over reloads, on a share, and in the fallback limiter.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer as _, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, Descriptor, FailureMode, Permit, Policy, Priority, Quota, RateLimitLayer, RateLimited, RateLimitedKind,
    RateLimiter, Rule, Tenant,
    backend::{Local, Share, Split},
    error::BackendErrorKind,
    priority, tenant,
    testing::{Fault, FaultyBackend, ManualClock, TokioClock},
};

const SECOND: Duration = Duration::from_secs(1);

fn of(class: Priority) -> Descriptor<'static> {
    Descriptor::new("/").tenant("acme").priority(class)
}

fn rule(quota: Quota) -> Rule {
    Rule::new("api").tier(quota).reserve(Priority::Critical, 0.2).reserve(Priority::High, 0.1)
}

fn policy(quota: Quota) -> Policy {
    Policy::new().rule(rule(quota))
}

/// How many of so many requests of a class are allowed.
async fn allowed(limiter: &RateLimiter, class: Priority, tries: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..tries {
        allowed += usize::from(limiter.check(&of(class)).await.is_allowed());
    }
    allowed
}

/// What each class gets of a limit, one after the other.
async fn by_class(limiter: &RateLimiter) -> [usize; 4] {
    let mut counts = [0; 4];
    for (class, count) in Priority::ALL.iter().zip(&mut counts) {
        *count = allowed(limiter, *class, 200).await;
    }
    counts
}

type Acquiring = Pin<Box<dyn Future<Output = Result<Permit, RateLimited>> + Send>>;

fn arrive(limiter: &RateLimiter, class: Priority) -> Acquiring {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.acquire(&of(class), 60 * SECOND).await })
}

fn poll(acquiring: &mut Acquiring) -> Option<Permit> {
    match acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(permit) => Some(permit.unwrap()),
        Poll::Pending => None,
    }
}

fn waits(limiter: &RateLimiter, class: Priority) -> Acquiring {
    let mut acquiring = arrive(limiter, class);
    assert!(poll(&mut acquiring).is_none(), "{class} is admitted at once");
    acquiring
}

fn on_tokio(policy: Policy) -> RateLimiter {
    RateLimiter::builder().policy(policy).clock(TokioClock::default()).build().unwrap()
}

/// Lower classes that wait do not hold up a higher one, and a unit that comes back goes to
/// the highest class that waits.
#[tokio::test(start_paused = true)]
async fn units_in_flight_go_to_the_highest_class_first() {
    let limiter = on_tokio(policy(Quota::concurrent(10)));
    let mut lows: Vec<_> = (0..7).map(|_| poll(&mut arrive(&limiter, Priority::Low)).unwrap()).collect();
    let mut low = waits(&limiter, Priority::Low);
    let high = poll(&mut arrive(&limiter, Priority::High)).expect("one of the units that low requests leave");
    let mut other_high = waits(&limiter, Priority::High);
    let critical: Vec<_> = (0..2).map(|_| poll(&mut arrive(&limiter, Priority::Critical)).unwrap()).collect();
    let mut first = waits(&limiter, Priority::Critical);
    let mut second = waits(&limiter, Priority::Critical);

    lows.pop();
    assert!(poll(&mut low).is_none() && poll(&mut other_high).is_none() && poll(&mut second).is_none());
    let first = poll(&mut first).expect("the first critical request");
    lows.pop();
    let second = poll(&mut second).expect("the second one");
    assert!(poll(&mut low).is_none() && poll(&mut other_high).is_none(), "12 would be in flight");

    drop((critical, first, second));
    let other_high = poll(&mut other_high).expect("six are in flight, of the eight that high requests may use");
    assert!(poll(&mut low).is_none(), "seven are in flight, of seven");
    drop((high, other_high));
    assert!(poll(&mut low).is_some());
    drop(low);
    drop(lows);
    assert_eq!(by_class_in_flight(&limiter).await, [7, 0, 1, 2], "no unit is lost");
}

/// How many requests of each class are in flight at once, one class after the other.
async fn by_class_in_flight(limiter: &RateLimiter) -> [usize; 4] {
    let mut permits: Vec<Permit> = Vec::new();
    Priority::ALL.first_chunk::<4>().unwrap().map(|class| {
        let before = permits.len();
        while let Some(permit) = poll_now(limiter, class) {
            permits.push(permit);
        }
        permits.len() - before
    })
}

fn poll_now(limiter: &RateLimiter, class: Priority) -> Option<Permit> {
    let mut acquiring = arrive(limiter, class);
    poll(&mut acquiring)
}

/// A slot for a low class is one at which the reserve is still free.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_window_leaves_the_reserve_of_that_window() {
    let limiter = on_tokio(policy(Quota::new(10, SECOND).algorithm(Algorithm::FixedWindow)));
    let tasks: Vec<_> = (0..21).map(|_| tokio::spawn(arrive(&limiter, Priority::Normal))).collect();
    let start = tokio::time::Instant::now();
    let mut admitted = [0; 3];
    for task in tasks {
        drop(task.await.unwrap().unwrap());
        admitted[start.elapsed().as_secs() as usize] += 1;
    }
    assert_eq!(admitted, [7, 7, 7], "by second");
    assert_eq!(allowed(&limiter, Priority::Normal, 5).await, 0);
    assert_eq!(allowed(&limiter, Priority::Critical, 5).await, 3, "what is left of the third window");
}

#[tokio::test]
async fn plans_and_tenants_have_reserves_of_their_own_limits() {
    let day = Quota::per_day;
    let rule = rule(day(10)).plan("pro", [day(100)]).tenant("acme", [day(50)]);
    let limiter = RateLimiter::new(Policy::new().rule(rule)).unwrap();
    let normal = async |request: Descriptor<'_>| {
        let mut count = 0;
        while limiter.check(&request).await.is_allowed() {
            count += 1;
        }
        count
    };
    assert_eq!(normal(Descriptor::new("/").tenant("other")).await, 7);
    assert_eq!(normal(Descriptor::new("/").tenant("paying").plan("pro")).await, 70);
    assert_eq!(normal(Descriptor::new("/").tenant("acme")).await, 35);
    assert_eq!(normal(of(Priority::Critical)).await, 15, "the rest of the tenant's limit");
    let own = Tenant::new("own").tiers([day(20)]);
    assert_eq!(normal(Descriptor::new("/").tenant(own.clone())).await, 14);
    assert_eq!(normal(Descriptor::new("/").tenant(own).priority(Priority::Critical)).await, 6);
}

#[tokio::test]
async fn a_reload_keeps_what_was_used() {
    let limiter = RateLimiter::new(Quota::per_day(10)).unwrap();
    assert_eq!(allowed(&limiter, Priority::Normal, 5).await, 5);
    let day = Quota::per_day(10);
    let with = |part| {
        Policy::new().rule(
            Rule::new("default").per([tower_ratelimit::Dimension::Tenant]).tier(day).reserve(Priority::High, part),
        )
    };
    limiter.set_policy(with(0.3)).unwrap();
    assert_eq!(allowed(&limiter, Priority::Normal, 5).await, 2, "seven of ten");
    limiter.set_policy(with(0.1)).unwrap();
    assert_eq!(allowed(&limiter, Priority::Normal, 5).await, 2, "nine of ten");
    limiter.set_policy(with(0.6)).unwrap();
    assert_eq!(allowed(&limiter, Priority::Normal, 5).await, 0);
    assert_eq!(allowed(&limiter, Priority::High, 5).await, 1, "ten of ten");
}

/// Those who wait meanwhile go on, by the new reserve.
#[tokio::test(start_paused = true)]
async fn a_reload_reaches_those_who_wait() {
    let limiter = on_tokio(policy(Quota::concurrent(10)));
    let _held: Vec<_> = (0..7).map(|_| poll(&mut arrive(&limiter, Priority::Normal)).unwrap()).collect();
    let mut waiting = waits(&limiter, Priority::Normal);
    limiter.set_policy(Policy::new().rule(Rule::new("api").tier(Quota::concurrent(10)))).unwrap();
    assert!(poll(&mut waiting).is_some(), "nothing is reserved any more");
}

#[tokio::test]
async fn a_share_has_its_part_of_the_reserve() {
    let clock = ManualClock::new();
    let instance = |index| {
        let backend = Split::new(Share::new(index, 4).unwrap());
        let quota = Quota::per_day(100).algorithm(Algorithm::FixedWindow);
        RateLimiter::builder().policy(policy(quota)).backend(backend).clock(clock.clone()).build().unwrap()
    };
    let mut all = [0; 4];
    for index in 0..4 {
        let counts = by_class(&instance(index)).await;
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    assert_eq!(all, [70, 0, 10, 20]);
}

#[tokio::test]
async fn the_fallback_limiter_keeps_the_reserve() {
    let backend = FaultyBackend::new(Local::new());
    let rule = rule(Quota::per_day(100)).on_backend_failure(FailureMode::Local).local_share(0.5);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(backend.clone()).build().unwrap();
    backend.set(Fault::Error(BackendErrorKind::Unavailable));
    assert_eq!(by_class(&limiter).await, [35, 0, 5, 10]);
}

/// A caller sees what its own class can still do.
#[tokio::test]
async fn headers_are_those_of_the_class() {
    let limiter = RateLimiter::new(policy(Quota::per_minute(10))).unwrap();
    let layer =
        RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")).priority(priority::header("x-priority"));
    let handler = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let service = layer.layer(handler);
    let ask = async |class: &str| {
        let request = Request::get("/").header("x-api-key", "acme").header("x-priority", class).body(()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        let number = |name: &str| response.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
        let shown = [number("x-ratelimit-limit"), number("x-ratelimit-remaining")];
        (response.status().as_u16(), shown)
    };
    assert_eq!(ask("normal").await, (200, [7, 6]));
    assert_eq!(ask("critical").await, (200, [10, 8]));
    assert_eq!(ask("high").await, (200, [8, 5]));
    for _ in 0..4 {
        assert_eq!(ask("low").await.0, 200);
    }
    assert_eq!(ask("low").await, (429, [7, 0]));
    assert_eq!(ask("high").await, (200, [8, 0]));
    assert_eq!(ask("high").await.0, 429);
    assert_eq!(ask("critical").await, (200, [10, 1]));
}

/// What is more than the class may ever use, and not more than the limit.
#[tokio::test]
async fn a_request_that_its_class_never_fits_is_told_so() {
    let limiter = RateLimiter::new(policy(Quota::per_day(10))).unwrap();
    let asked = async |class| limiter.check(&of(class).cost(8)).await.rejection();
    assert_eq!(asked(Priority::Normal).await, Some(RateLimitedKind::NeverFits));
    assert_eq!(asked(Priority::High).await, None);
}

/// A window that was full by the higher class is not opened for more by what a lower one
/// gives back.
#[tokio::test]
async fn what_is_given_back_leaves_no_more_than_the_limit() {
    for algorithm in
        [Algorithm::FixedWindow, Algorithm::AnchoredWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket]
    {
        let rule = Rule::new("a").tier(Quota::per_day(10).algorithm(algorithm)).settle(true);
        let limiter = RateLimiter::new(Policy::new().rule(rule.reserve(Priority::Critical, 0.3))).unwrap();
        let normal = poll_now(&limiter, Priority::Normal).unwrap();
        assert_eq!(allowed(&limiter, Priority::Critical, 20).await, 9, "{algorithm}");
        normal.add(5);
        normal.give_back(5);
        assert_eq!(allowed(&limiter, Priority::Critical, 20).await, 0, "{algorithm}: more than 10 a day");
    }
}

/// Also where the fallback limiter has a share, by which it was admitted.
#[tokio::test]
async fn more_is_charged_for_a_request_of_the_fallback_limiter() {
    let backend = FaultyBackend::new(Local::new());
    let rule = rule(Quota::per_day(20)).settle(true).on_backend_failure(FailureMode::Local).local_share(0.5);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(backend.clone()).build().unwrap();
    backend.set(Fault::Error(BackendErrorKind::Unavailable));
    let permit = limiter.acquire(&of(Priority::Normal), Duration::ZERO).await.unwrap();
    permit.try_add(6).await.unwrap();
    permit.try_add(1).await.expect_err("seven of the ten");
    backend.set(Fault::None);
    permit.try_add(14).await.expect("by the whole limit, of which normal requests have 14");
    permit.try_add(1).await.expect_err("14 of 14");
}

/// A request may matter more to one rule than to another.
#[tokio::test(start_paused = true)]
async fn a_request_waits_by_its_priority_under_the_rule_whose_queue_it_is() {
    let a = Rule::new("a").per([]).tier(Quota::per_day(1_000)).plan_priority("pro", Priority::Critical);
    let b = Rule::new("b").per([]).tier(Quota::concurrent(10)).reserve(Priority::High, 0.3);
    let limiter = on_tokio(Policy::new().rule(a).rule(b));
    let _held: Vec<_> = (0..7).map(|_| poll(&mut arrive(&limiter, Priority::Normal)).unwrap()).collect();
    let pro = limiter.clone();
    let mut waiting: Acquiring =
        Box::pin(async move { pro.acquire(&Descriptor::new("/").tenant("acme").plan("pro"), 60 * SECOND).await });
    assert!(poll(&mut waiting).is_none(), "normal to the concurrency limit");
    for _ in 0..3 {
        let high = poll(&mut arrive(&limiter, Priority::High));
        std::mem::forget(high.expect("of the units that are reserved"));
    }
}
