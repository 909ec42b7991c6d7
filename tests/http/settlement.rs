//! Costs that are known in advance, and costs that are settled afterwards.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::Barrier;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    ChargeHandle, Policy, Quota, RateLimitLayer, RequestHead, Rule, cost, middleware::ConnectionPermit,
    policy::Statuses, tenant, testing::ManualClock,
};

use super::{
    common::{Caller, limiter, serve},
    hello,
};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

fn by_key(rule: Rule) -> (RateLimitLayer, ManualClock) {
    let (limiter, clock) = limiter(Policy::new().rule(rule));
    (RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")), clock)
}

/// Answers with the status that the path names; `/fail` is an error.
fn named_status()
-> impl Service<Request<Incoming>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send> + Clone + Send {
    service_fn(|request: Request<Incoming>| async move {
        let status = request.uri().path().trim_start_matches('/').parse::<u16>().unwrap();
        Ok(Response::builder().status(status).body(Full::default()).unwrap())
    })
}

async fn statuses(server: &Caller, path: &str, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(server.get(path).await.status.as_u16());
    }
    statuses
}

#[tokio::test]
async fn only_failed_requests_are_charged() {
    let rule = Rule::new("logins").tier(Quota::per_day(5)).charge_on([StatusCode::UNAUTHORIZED]);
    let server = serve(by_key(rule).0.layer(named_status())).await;
    assert_eq!(statuses(&server, "/200", 20).await, [200; 20], "who signs in is not counted");
    assert_eq!(statuses(&server, "/401", 5).await, [401; 5]);
    assert_eq!(statuses(&server, "/401", 2).await, [429; 2], "the sixth guess is not even looked at");
    assert_eq!(statuses(&server, "/200", 1).await, [429], "nor is one that might be right");
}

/// A request that keeps something finds in its extensions what it may use of it.
#[tokio::test]
async fn only_requests_of_rules_that_settle_or_count_connections_can_do_so() {
    let rate = || Rule::new("rate").per([]).tier(Quota::per_day(3)).refund_on(Statuses::SERVER_ERRORS);
    let slots = Rule::new("slots").per([]).tier(Quota::concurrent(3));
    for (rule, expected) in [(rate(), [false; 2]), (rate().settle(true), [true, false]), (slots, [false, true])] {
        let inner = service_fn(move |request: Request<()>| async move {
            let extensions = request.extensions();
            let found = [extensions.get::<ChargeHandle>().is_some(), extensions.get::<ConnectionPermit>().is_some()];
            assert_eq!(found, expected);
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let request =
            Request::get("/").header("connection", "upgrade").header("upgrade", "websocket").body(()).unwrap();
        by_key(rule).0.layer(inner).oneshot(request).await.unwrap();
    }
}

#[tokio::test]
async fn server_errors_are_refunded() {
    let rule = Rule::new("api").tier(Quota::per_day(3)).refund_on(Statuses::SERVER_ERRORS);
    let server = serve(by_key(rule).0.layer(named_status())).await;
    assert_eq!(statuses(&server, "/503", 10).await, [503; 10]);
    assert_eq!(statuses(&server, "/404", 4).await, [404, 404, 404, 429]);
}

#[tokio::test]
async fn a_service_error_counts_as_a_server_error() {
    let rule = Rule::new("api").tier(Quota::per_day(1)).refund_on(Statuses::SERVER_ERRORS);
    let fails = service_fn(|_: Request<()>| async { Err::<Response<Full<Bytes>>, _>("broken") });
    let service = by_key(rule).0.layer(fails);
    for _ in 0..5 {
        assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap_err(), "broken");
    }
}

#[tokio::test]
async fn concurrent_requests_cannot_exceed_the_limit_before_settlement() {
    let rule = Rule::new("logins").tier(Quota::per_day(5)).charge_on([StatusCode::UNAUTHORIZED]);
    // None is answered before five are in flight.
    let five = Arc::new(Barrier::new(5));
    let slow = service_fn(move |_: Request<Incoming>| {
        let five = Arc::clone(&five);
        async move {
            five.wait().await;
            Ok::<_, Infallible>(Response::builder().status(401).body(Full::<Bytes>::default()).unwrap())
        }
    });
    let server = serve(by_key(rule).0.layer(slow)).await;
    let guesses: Vec<_> = (0..20)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move { server.get("/").await.status })
        })
        .collect();
    let mut looked_at = 0;
    for guess in guesses {
        looked_at += usize::from(guess.await.unwrap() == StatusCode::UNAUTHORIZED);
    }
    assert_eq!(looked_at, 5);
}

/// Charges the value of the header `x-used`, beyond the unit charged on
/// admission.
fn meters<B: Send + 'static>()
-> impl Service<Request<B>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send> + Clone + Send {
    service_fn(|request: Request<B>| async move {
        let charge = request.extensions().get::<ChargeHandle>().expect("a handle").clone();
        let used: i64 = request.headers()["x-used"].to_str().unwrap().parse().unwrap();
        match u64::try_from(used) {
            Ok(more) => charge.add(more),
            Err(_) => charge.give_back(used.unsigned_abs()),
        }
        Ok(Response::new(Full::default()))
    })
}

async fn use_up(server: &Caller, units: &str) -> StatusCode {
    server.call(Method::GET, "/", &[("x-used", units.as_bytes())]).await.status
}

#[tokio::test]
async fn a_handler_settles_the_cost_and_a_debt_is_paid_back_first() {
    let rule = Rule::new("tokens").tier(Quota::per_second(10)).settle(true);
    let (layer, clock) = by_key(rule);
    let server = serve(layer.layer(meters())).await;
    assert_eq!(use_up(&server, "29").await, OK, "30 in all, and the burst is 10");
    assert_eq!(use_up(&server, "0").await, REJECTED, "a debt of 20 units");
    clock.advance(std::time::Duration::from_millis(2_050));
    assert_eq!(use_up(&server, "0").await, REJECTED, "the debt is paid back, and no unit is left");
    clock.advance(std::time::Duration::from_millis(50));
    assert_eq!(use_up(&server, "0").await, OK);
    assert_eq!(use_up(&server, "0").await, REJECTED);
}

#[tokio::test]
async fn a_refund_by_a_handler_is_available_again_and_never_more() {
    let rule = Rule::new("units").tier(Quota::per_day(2)).settle(true);
    let server = serve(by_key(rule).0.layer(meters())).await;
    for _ in 0..10 {
        assert_eq!(use_up(&server, "-1000000").await, OK, "one was charged, one is given back");
    }
    assert_eq!(use_up(&server, "0").await, OK);
    assert_eq!(use_up(&server, "0").await, OK);
    assert_eq!(use_up(&server, "0").await, REJECTED);
}

#[tokio::test]
async fn a_huge_settlement_saturates() {
    let rule = Rule::new("units").tier(Quota::per_day(2)).tier(Quota::per_second(9)).cost(u64::MAX / 2).settle(true);
    let rule = rule.cost(1);
    let (limiter, clock) = limiter(Policy::new().rule(rule));
    let service = RateLimitLayer::new(limiter).layer(service_fn(|request: Request<()>| async move {
        let charge = request.extensions().get::<ChargeHandle>().unwrap();
        for _ in 0..3 {
            charge.add(u64::MAX);
        }
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), OK);
    for _ in 0..3 {
        clock.advance(std::time::Duration::from_secs(365 * 86_400));
        assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), REJECTED);
    }
}

#[tokio::test]
async fn a_handle_works_after_the_response() {
    let (limiter, _) = limiter(Policy::new().rule(Rule::new("units").tier(Quota::per_day(5)).settle(true)));
    let (handles, mut handed) = tokio::sync::mpsc::unbounded_channel();
    let service = RateLimitLayer::new(limiter).layer(service_fn(move |request: Request<()>| {
        handles.send(request.extensions().get::<ChargeHandle>().unwrap().clone()).unwrap();
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }
    }));
    drop(service.clone().oneshot(Request::new(())).await.unwrap());
    handed.recv().await.unwrap().add(4);
    assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), REJECTED);
}

#[tokio::test]
async fn rules_without_settlement_give_no_handle() {
    let (limiter, _) = limiter(Quota::per_day(5));
    let service = RateLimitLayer::new(limiter).layer(service_fn(|request: Request<()>| async move {
        assert!(request.extensions().get::<ChargeHandle>().is_none());
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    assert_eq!(service.oneshot(Request::new(())).await.unwrap().status(), OK);
}

/// An empty handle, of a layer for which the tenant is unlimited, does not
/// replace that of the outer layer.
#[tokio::test]
async fn an_empty_handle_does_not_replace_another_layers() {
    let rule = || Rule::new("tokens").per([]).tier(Quota::per_day(5)).settle(true);
    let (outer, _) = limiter(Policy::new().rule(rule()));
    let (inner, _) = limiter(Policy::new().rule(rule().tenant_unlimited("acme")));
    let answers = service_fn(|request: Request<()>| async move {
        request.extensions().get::<ChargeHandle>().expect("a handle").add(4);
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let acme = || tenant::header("x-api-key");
    let inner = RateLimitLayer::new(inner).tenant(acme()).layer(answers);
    let service = RateLimitLayer::new(outer).tenant(acme()).layer(inner);
    let request = || Request::builder().header("x-api-key", "acme").body(()).unwrap();
    assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), OK);
    assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), REJECTED);
}

#[tokio::test]
async fn only_rules_with_settle_are_settled() {
    let policy = Policy::new()
        .rule(Rule::new("tokens").tier(Quota::per_day(100)).settle(true))
        .rule(Rule::new("requests").tier(Quota::per_day(3)));
    let server = serve(RateLimitLayer::new(limiter(policy).0).layer(meters())).await;
    for left in [2, 1, 0] {
        let reply = server.call(Method::GET, "/", &[("x-used", b"9")]).await;
        assert_eq!((reply.status, reply.integer("x-ratelimit-remaining")), (OK, left));
    }
    assert_eq!(use_up(&server, "9").await, REJECTED);
}

#[tokio::test]
async fn a_cost_is_fixed_or_a_header_or_computed() {
    let path_length = |head: &RequestHead<'_>| head.uri().path().len() as u64;
    for (layer, path, left) in [
        (RateLimitLayer::new(limiter(Quota::per_day(100)).0).cost(7), "/", 93),
        (RateLimitLayer::new(limiter(Quota::per_day(100)).0).cost(cost::header("x-weight")), "/", 88),
        (RateLimitLayer::new(limiter(Quota::per_day(100)).0).cost(cost::from_fn(path_length)), "/four", 95),
        (
            RateLimitLayer::new(limiter(Policy::new().rule(Rule::new("r").tier(Quota::per_day(100)).cost(3))).0)
                .cost(4),
            "/",
            88,
        ),
    ] {
        let server = serve(layer.layer(hello())).await;
        let reply = server.call(Method::GET, path, &[("x-weight", b"12")]).await;
        assert_eq!((reply.status, reply.trio()[1]), (OK, left));
    }
}
