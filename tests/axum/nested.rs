//! Nested layers of one limiter: what an outer one has charged comes back when
//! an inner one rejects, exactly once.

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    future::{Future, pending},
    task::{Context, Waker},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    response::{IntoResponse, Response},
    routing::any,
};
use http::{Request, StatusCode};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{
    Descriptor, Headers, MissingTenant, Policy, Quota, RateLimitLayer, RateLimited, RateLimiter, Rule,
    middleware::Rejection, testing::TokioClock,
};

use super::{answer, common::limiter, serve};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const SECOND: Duration = Duration::from_secs(1);

fn rule(id: &str) -> Rule {
    Rule::new(id).per([])
}

/// Ten of everything, of which six of the interface, and two searches.
fn policy() -> Policy {
    let beside_a_route = |id| rule(id).path("/never");
    Policy::new()
        .rule(rule("everything").tier(Quota::per_hour(10)))
        .rule(beside_a_route("api").tier(Quota::per_hour(6)))
        .rule(beside_a_route("search").tier(Quota::per_hour(2)))
}

fn layer(limiter: &RateLimiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter.clone())
}

/// What is left of each of these rules.
async fn left<const N: usize>(limiter: &RateLimiter, rules: [&str; N]) -> [u64; N] {
    let mut left = [0; N];
    for (left, rule) in left.iter_mut().zip(rules) {
        *left = limiter.peek(&Descriptor::new("/").rule(rule)).await.remaining().unwrap();
    }
    left
}

/// Calls `/api/search` ten times, of which two are admitted.
async fn search_ten_times(app: Router) {
    let server = serve(app).await;
    for n in 0..10 {
        let expected = if n < 2 { OK } else { REJECTED };
        assert_eq!(server.get("/api/search").await.status, expected, "{n}");
    }
}

#[tokio::test]
async fn routers_get_back_what_a_route_rejects() {
    let (limiter, _) = limiter(policy());
    let search = Router::new().route("/search", answer()).route_layer(layer(&limiter).rule("search"));
    let api = Router::new().nest("/api", search.layer(layer(&limiter).rule("api")));
    search_ten_times(api.layer(layer(&limiter))).await;
    assert_eq!(left(&limiter, ["everything", "api", "search"]).await, [8, 4, 0]);
    assert_eq!(limiter.stats().permits, 0);
}

#[tokio::test]
async fn a_hook_may_answer_in_any_way() {
    let (limiter, _) = limiter(policy());
    let hook = |_: &Rejection<'_>| Response::new(Body::from("later, please"));
    let app = Router::new()
        .route("/api/search", answer().layer(layer(&limiter).rule("search").on_rejected(hook)))
        .layer(layer(&limiter));
    let server = serve(app).await;
    for _ in 0..5 {
        assert_eq!(server.get("/api/search").await.status, OK);
    }
    assert_eq!(left(&limiter, ["everything", "search"]).await, [8, 0]);
}

#[tokio::test]
async fn an_error_may_become_a_response() {
    let (limiter, _) = limiter(policy());
    let to_response = async |error: BoxError| match error.downcast::<RateLimited>() {
        Ok(rejected) => rejected.into_response(),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    };
    let search = RateLimitLayer::keyed(limiter.clone(), |_: &axum::extract::Request| Descriptor::new("/"));
    let search = ServiceBuilder::new().layer(HandleErrorLayer::new(to_response)).layer(search.rule("search"));
    search_ten_times(Router::new().route("/api/search", answer().layer(search)).layer(layer(&limiter))).await;
    assert_eq!(left(&limiter, ["everything", "search"]).await, [8, 0]);
}

#[tokio::test]
async fn any_reason_to_reject_gives_back() {
    let (limiter, _) = limiter(policy().rule(Rule::new("account").path("/never").tier(Quota::per_hour(5))));
    let account = layer(&limiter).rule("account").on_missing_tenant(MissingTenant::Reject);
    let app = Router::new().route("/account", answer().layer(account)).layer(layer(&limiter));
    // Without connect info there is no tenant.
    for _ in 0..3 {
        let response = app.clone().oneshot(Request::get("/account").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    }
    assert_eq!(left(&limiter, ["everything"]).await, [10]);
}

#[tokio::test]
async fn other_rejections_give_nothing_back() {
    let (mine, _) = limiter(policy());
    let (other, _) = limiter(policy());
    let handler = {
        let limiter = mine.clone();
        async move || match limiter.check(&Descriptor::new("/").rule("search").cost(3)).await.into_result() {
            Ok(_) => OK.into_response(),
            Err(rejected) => rejected.into_response(),
        }
    };
    let app = Router::new()
        // A layer of another limiter, and a handler that asks this one.
        .route("/api/search", answer().layer(layer(&other).rule("search")))
        .route("/handler", any(handler))
        .route("/named", answer().layer(layer(&mine).rule("api")))
        .layer(layer(&mine));
    let server = serve(app).await;
    for status in [OK, OK, REJECTED] {
        assert_eq!(server.get("/api/search").await.status, status);
    }
    assert_eq!(server.get("/handler").await.status, REJECTED);
    assert_eq!(left(&mine, ["everything", "search"]).await, [6, 2]);
}

/// An application's own error.
#[derive(Debug)]
struct Wrapped(BoxError);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not sent")
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

#[tokio::test]
async fn clients_get_back_what_an_inner_layer_rejects() {
    let (limiter, _) = limiter(policy());
    let upstream = || service_fn(async |_: Request<Body>| Ok::<_, BoxError>(Response::new(Body::empty())));
    let client = || RateLimitLayer::client(limiter.clone());
    // Errors, wrapped or not, and responses.
    let plain = client().layer(client().rule("search").layer(upstream()));
    let wrapping = client().layer(client().rule("search").layer(upstream()).map_err(Wrapped));
    let responding = client().layer(client().rule("search").reject_with_response().layer(upstream()));
    let request = || Request::get("http://upstream/").body(Body::empty()).unwrap();
    for _ in 0..2 {
        plain.clone().oneshot(request()).await.unwrap();
    }
    for _ in 0..5 {
        plain.clone().oneshot(request()).await.unwrap_err().downcast::<RateLimited>().unwrap();
        wrapping.clone().oneshot(request()).await.unwrap_err();
        let response = responding.clone().oneshot(request()).await.unwrap();
        assert_eq!(response.status(), REJECTED);
    }
    assert_eq!(left(&limiter, ["everything", "search"]).await, [8, 0]);
    // A rejection of its own is no upstream feedback.
    assert!(plain.oneshot(request()).await.is_err());
    assert_eq!(limiter.cooldown(&Descriptor::new("/")), None);
}

#[tokio::test]
async fn units_in_flight_come_back_once() {
    let (limiter, _) = limiter(policy().rule(rule("in-flight").tier(Quota::concurrent(3))));
    let inner = layer(&limiter)
        .rule("search")
        .layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()))));
    let service = layer(&limiter).layer(inner);
    let call = || service.clone().oneshot(Request::new(Body::empty()));
    for _ in 0..2 {
        drop(call().await.unwrap());
    }
    assert_eq!(left(&limiter, ["everything", "search", "in-flight"]).await, [8, 0, 3]);
    let unread: Vec<_> = [call().await.unwrap(), call().await.unwrap()].into();
    assert!(unread.iter().all(|response| response.status() == REJECTED));
    // Given back when the inner layer has rejected, not when the response ends.
    assert_eq!(left(&limiter, ["everything", "search", "in-flight"]).await, [8, 0, 3]);
    drop(unread);
    assert_eq!(left(&limiter, ["everything", "search", "in-flight"]).await, [8, 0, 3]);
    assert_eq!(limiter.stats().permits, 0);
}

fn on_tokios_clock(policy: Policy) -> RateLimiter {
    RateLimiter::builder().policy(policy).clock(TokioClock::default()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_waited_is_given_back() {
    let policy = Policy::new()
        .rule(rule("everything").tier(Quota::per_second(1).burst(1)).max_wait(10 * SECOND))
        .rule(rule("search").path("/never").tier(Quota::per_hour(1)));
    let limiter = on_tokios_clock(policy);
    let app = Router::new()
        .route("/search", answer().layer(layer(&limiter).rule("search")))
        .route("/", answer())
        .layer(layer(&limiter).headers(Headers::NONE));
    let get = async |path: &str| {
        let start = tokio::time::Instant::now();
        let response = app.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        (response.status(), start.elapsed())
    };
    assert_eq!(get("/search").await, (OK, Duration::ZERO));
    assert_eq!(get("/search").await, (REJECTED, SECOND), "it waited outside, and was rejected inside");
    // Its slot is free again.
    assert_eq!(get("/").await, (OK, Duration::ZERO));
    assert_eq!(get("/").await, (OK, SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_between_the_layers_stays_charged() {
    let policy = Policy::new()
        .rule(rule("everything").tier(Quota::per_hour(10)))
        .rule(rule("in-flight").tier(Quota::concurrent(2)))
        .rule(rule("search").path("/never").tier(Quota::per_hour(1)).max_wait(Duration::MAX));
    let limiter = on_tokios_clock(policy);
    let inner = service_fn(async |_: Request<Body>| pending::<Result<Response, Infallible>>().await);
    let mut service = layer(&limiter).layer(layer(&limiter).rule("search").layer(inner));
    let mut call = || {
        let mut call = Box::pin(service.call(Request::new(Body::empty())));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        call
    };
    let (served, waiting) = (call(), call());
    assert_eq!(left(&limiter, ["everything", "in-flight"]).await, [8, 0]);
    drop(waiting);
    assert_eq!(left(&limiter, ["everything", "in-flight"]).await, [8, 1]);
    drop(served);
    assert_eq!(left(&limiter, ["everything", "in-flight"]).await, [8, 2]);
    assert_eq!((limiter.stats().permits, limiter.stats().waiting), (0, 0));
}
