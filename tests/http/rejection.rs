//! Rejections as callers and outer layers see them.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::json;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::{
    Descriptor, FailureMode, Headers, Policy, Quota, RateLimitLayer, RateLimited, RateLimitedKind, RateLimiter, Rule,
    backend::Local,
    error::BackendErrorKind,
    middleware::{Describe, HttpAnswer, HttpRequest, Rejection},
    tenant,
    testing::{Fault, FaultyBackend},
};

use super::{
    common::{limiter, serve},
    hello, limited,
};

#[tokio::test]
async fn a_rejection_is_problem_details() {
    let rule = Rule::new("get-product").tier(Quota::per_second(50)).tier(Quota::new(2, Duration::from_secs(10)));
    let (limiter, _) = limiter(Policy::new().rule(rule));
    let server = limited(RateLimitLayer::new(limiter)).await;
    server.get("/").await;
    server.get("/").await;

    let rejected = server.get("/").await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.field("content-type"), "application/problem+json");
    assert_eq!(rejected.field("cache-control"), "no-store");
    assert_eq!(rejected.field("retry-after"), "5");
    assert_eq!(rejected.trio(), [2, 0, 10]);
    let problem = rejected.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], json!(["get-product-10s"]));
    assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
}

#[tokio::test]
async fn mistake_3_retry_after_is_never_0() {
    let (limiter, clock) = limiter(Quota::per_second(1_000).burst(1));
    let server = limited(RateLimitLayer::new(limiter).headers(Headers::ALL)).await;
    server.get("/").await;
    let rejected = server.get("/").await;
    assert_eq!((rejected.status, rejected.integer("retry-after")), (StatusCode::TOO_MANY_REQUESTS, 1));
    assert_eq!(rejected.trio()[2], 1);
    assert!(rejected.statuses().iter().all(|(_, status_of)| status_of["t"] >= 1), "{rejected:?}");
    clock.advance(Duration::from_millis(1));
    assert_eq!(server.get("/").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_caller_that_obeys_retry_after_is_admitted() {
    let (limiter, clock) = limiter(Quota::new(1, Duration::from_millis(2_500)));
    let server = limited(RateLimitLayer::new(limiter)).await;
    server.get("/").await;
    let after = server.get("/").await.integer("retry-after");
    assert_eq!(after, 3);
    clock.advance(Duration::from_millis(2_499));
    assert_eq!(server.get("/").await.status, StatusCode::TOO_MANY_REQUESTS);
    clock.advance(Duration::from_secs(after) - Duration::from_millis(2_499));
    assert_eq!(server.get("/").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_request_that_never_passes_has_no_retry_after() {
    for rule in [Rule::new("closed").tier(Quota::per_second(0)), Rule::new("dear").cost(6).tier(Quota::per_second(5))] {
        let (limiter, _) = limiter(Policy::new().rule(rule));
        let rejected = limited(RateLimitLayer::new(limiter)).await.get("/").await;
        assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(rejected.field("retry-after"), "");
        assert_eq!(rejected.json()["violated-policies"].as_array().map(Vec::len), Some(1));
    }
}

#[tokio::test]
async fn outer_layers_find_the_rejection_in_the_extensions() {
    let (limiter, _) = limiter(Quota::per_minute(1));
    let layers = ServiceBuilder::new()
        .map_response(|mut response: Response<_>| {
            let seen = match response
                .extensions()
                .get::<RateLimited>()
                .map(|rejection| (rejection.kind(), rejection.retry_after()))
            {
                Some((RateLimitedKind::QuotaExceeded, Some(after))) => after.as_secs(),
                other => other.map_or(0, |_| 999),
            };
            response.headers_mut().insert("x-seen", HeaderValue::from(seen));
            response
        })
        .layer(RateLimitLayer::new(limiter).on_rejected(|_| Response::new(String::from("replaced"))));
    let server = serve(layers.service(hello())).await;
    assert_eq!(server.get("/").await.integer("x-seen"), 0);
    let rejected = server.get("/").await;
    assert_eq!(rejected.integer("x-seen"), 60);
    assert_eq!((rejected.status, &*rejected.body), (StatusCode::OK, &b"replaced"[..]));
}

#[tokio::test]
async fn a_hook_replaces_the_whole_response() {
    let (limiter, _) = limiter(Policy::new().rule(Rule::new("teapots").tier(Quota::per_minute(1))));
    let layer = RateLimitLayer::new(limiter).on_rejected(|rejection: &Rejection<'_>| {
        let names: Vec<_> =
            rejection.error().decision().unwrap().tiers().iter().map(|tier| tier.name().into_owned()).collect();
        Response::builder()
            .status(StatusCode::IM_A_TEAPOT)
            .header("x-why", rejection.head().uri().path())
            .body(names.join("+"))
            .unwrap()
    });
    let server = limited(layer).await;
    server.get("/kettle").await;
    let rejected = server.get("/kettle").await;
    assert_eq!((rejected.status, &*rejected.body), (StatusCode::IM_A_TEAPOT, &b"teapots"[..]));
    assert_eq!(rejected.field("x-why"), "/kettle");
    assert_eq!((&*rejected.field("retry-after"), rejected.trio()), ("60", [1, 0, 60]));
    assert_eq!((&*rejected.field("cache-control"), &*rejected.field("content-type")), ("no-store", ""));
}

#[tokio::test]
async fn a_hook_sees_the_extensions_of_the_request() {
    let (limiter, _) = limiter(Quota::per_minute(1));
    let layers = ServiceBuilder::new()
        .map_request(|mut request: Request<_>| {
            request.extensions_mut().insert("from outside");
            request
        })
        .layer(RateLimitLayer::new(limiter).on_rejected(|rejection: &Rejection<'_>| {
            Response::new(rejection.head().extensions().get::<&str>().copied().unwrap_or_default().to_owned())
        }));
    let server = serve(layers.service(hello())).await;
    server.get("/").await;
    assert_eq!(*server.get("/").await.body, *b"from outside");
}

/// Describes nothing of a request but its head.
#[derive(Clone)]
struct HeadOnly;

impl<B> Describe<Request<B>> for HeadOnly {
    fn describe<'r>(&'r self, _: &'r Request<B>, descriptor: &mut Descriptor<'r>) {
        *descriptor = Descriptor::new("/");
    }

    fn http(request: &mut Request<B>) -> Option<&mut dyn HttpRequest> {
        Some(request)
    }
}

#[tokio::test]
async fn a_hook_sees_the_extensions_that_a_description_does_not_take() {
    let (limiter, _) = limiter(Quota::per_minute(0));
    let layer =
        RateLimitLayer::with(limiter, HeadOnly, HttpAnswer::default()).on_rejected(|rejection: &Rejection<'_>| {
            Response::new(rejection.head().extensions().get::<&str>().copied().unwrap_or_default().to_owned())
        });
    let request = Request::builder().extension("from outside").body(Full::<Bytes>::default()).unwrap();
    let response = layer.layer(hello()).oneshot(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "from outside");
}

#[tokio::test]
async fn headers_that_a_hook_sets_stay() {
    let (limiter, _) = limiter(Quota::per_minute(1));
    let layer = RateLimitLayer::new(limiter).headers(Headers::NONE).on_rejected(|rejection| {
        let mut response = rejection.to_response();
        response.headers_mut().insert("retry-after", HeaderValue::from(7));
        response.headers_mut().insert("cache-control", HeaderValue::from_static("private"));
        response
    });
    let server = limited(layer).await;
    server.get("/").await;
    let rejected = server.get("/").await;
    assert_eq!((rejected.status, rejected.json()["status"].as_u64()), (StatusCode::TOO_MANY_REQUESTS, Some(429)));
    assert_eq!((&*rejected.field("retry-after"), &*rejected.field("cache-control")), ("7", "private"));
    assert!(!rejected.headers.contains_key("x-ratelimit-limit"));
}

/// A body that is sent in two frames, and one that fails after its first.
#[tokio::test]
async fn a_hook_streams_its_body() {
    type Frames = Vec<Result<Frame<Bytes>, std::io::Error>>;
    let hook = |rejection: &Rejection<'_>| {
        let mut frames: Frames = vec![Ok(Frame::data(Bytes::from("too "))), Ok(Frame::data(Bytes::from("many")))];
        if rejection.head().uri().path() == "/broken" {
            frames[1] = Err(std::io::Error::other("broken"));
        }
        Response::new(StreamBody::new(tokio_stream::iter(frames)))
    };
    let (limiter, _) = limiter(Quota::per_minute(1));
    let mut service = RateLimitLayer::new(limiter).on_rejected(hook).layer(hello::<()>());
    let mut call = async |path| {
        let response = service.ready().await.unwrap().call(Request::get(path).body(()).unwrap()).await.unwrap();
        response.into_body().collect().await.map(http_body_util::Collected::to_bytes).map_err(|error| error.to_string())
    };
    assert_eq!(call("/").await, Ok(Bytes::from("hello")));
    assert_eq!(call("/").await, Ok(Bytes::from("too many")));
    assert_eq!(call("/broken").await, Err(String::from("broken")));
}

/// A handler that asks the limiter answers as the layer does.
#[tokio::test]
async fn a_rejection_outside_of_the_layer_is_the_same_response() {
    let rule = Rule::new("export").path("/export").tier(Quota::per_minute(1));
    let (limiter, _) = limiter(Policy::new().rule(rule));
    let own = limiter.clone();
    let handler = tower::service_fn(move |_: Request<hyper::body::Incoming>| {
        let limiter = own.clone();
        async move {
            let asked = Descriptor::new("/export").tenant("acme");
            Ok::<_, Infallible>(match limiter.check(&asked).await.into_result() {
                Ok(_) => Response::new(Full::from("exported")),
                Err(rejected) => rejected.to_response(),
            })
        }
    });
    let server = serve(handler).await;
    assert_eq!(server.get("/").await.body, "exported");
    let by_hand = server.get("/").await;

    let server = limited(RateLimitLayer::new(limiter).tenant(tenant::from_fn(|_| Some("acme")))).await;
    let by_layer = server.get("/export").await;
    assert_eq!((by_hand.status, &by_hand.body), (by_layer.status, &by_layer.body));
    for name in ["retry-after", "content-type", "cache-control", "x-ratelimit-limit", "x-ratelimit-reset"] {
        assert_eq!(by_hand.field(name), by_layer.field(name), "{name}");
        assert!(!by_hand.field(name).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_decision_outside_of_the_layer_is_stamped() {
    let (limiter, _) = limiter(Policy::new().rule(Rule::new("export").tier(Quota::per_minute(1))));
    for expected in [None, Some("60")] {
        let mut map = HeaderMap::new();
        Headers::ALL.stamp(&mut map, &limiter.check(&Descriptor::new("/")).await);
        assert_eq!(map.get("retry-after").map(|value| value.to_str().unwrap()), expected);
        assert_eq!(map["x-ratelimit-remaining"], "0");
        assert_eq!(map["ratelimit-policy"], "\"export\";q=1;w=60");
    }
    let mut map = HeaderMap::new();
    Headers::ALL.stamp(&mut map, &RateLimiter::new(Policy::new()).unwrap().check(&Descriptor::new("/")).await);
    assert!(map.is_empty(), "{map:?}");
}

#[tokio::test]
async fn the_inner_services_error_type_stays() {
    #[derive(Clone, Debug, PartialEq)]
    struct Own(u8);
    let (limiter, _) = limiter(Quota::per_minute(1));
    let inner = tower::service_fn(|_: Request<()>| async { Err::<Response<Full<Bytes>>, _>(Own(7)) });
    let mut service = RateLimitLayer::new(limiter).layer(inner);
    let first: Result<_, Own> = service.ready().await.unwrap().call(Request::new(())).await;
    assert_eq!(first.map(|_| ()), Err(Own(7)));
    let rejected = service.ready().await.unwrap().call(Request::new(())).await;
    assert_eq!(rejected.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn without_a_backend_each_rule_applies_its_failure_mode() {
    for (mode, statuses) in
        [(FailureMode::Open, [200, 200]), (FailureMode::Closed, [503, 503]), (FailureMode::Local, [200, 429])]
    {
        let rule = Rule::new("r").tier(Quota::per_minute(1)).on_backend_failure(mode);
        let down = FaultyBackend::new(Local::new());
        down.set(Fault::Error(BackendErrorKind::Unavailable));
        let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(down).build().unwrap();
        let server = limited(RateLimitLayer::new(limiter)).await;
        for status in statuses {
            let reply = server.get("/").await;
            assert_eq!(reply.status, status, "{mode:?}");
            if status == 503 {
                let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
                assert_eq!(reply.json()["type"], kind);
                assert_eq!(reply.field("cache-control"), "no-store");
                assert!(reply.integer("retry-after") >= 1);
                assert!(reply.headers.get("ratelimit").is_none());
            }
        }
    }
}

#[tokio::test]
async fn a_rejected_request_does_not_reach_the_service() {
    let (limiter, _) = limiter(Quota::per_minute(2));
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&calls);
    let inner = tower::service_fn(move |_: Request<hyper::body::Incoming>| {
        counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))) }
    });
    let server = serve(RateLimitLayer::new(limiter).layer(inner)).await;
    for _ in 0..5 {
        server.get("/").await;
    }
    assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 2);
}

/// A body of a known length is sent with it, and another one in chunks.
#[tokio::test]
async fn the_response_of_a_hook_keeps_its_length() {
    let (limiter, _) = limiter(Quota::per_minute(1));
    let layer = RateLimitLayer::new(limiter).on_rejected(|rejection| {
        let length = if rejection.head().uri().path() == "/long" { 20_000 } else { 9 };
        Response::builder().status(429).body(Full::<Bytes>::from("x".repeat(length))).unwrap()
    });
    let server = limited(layer).await;
    server.get("/").await;
    for (path, length) in [("/", "9"), ("/long", "20000")] {
        let rejected = server.get(path).await;
        assert_eq!((rejected.status.as_u16(), rejected.field("content-length").as_str()), (429, length));
        assert_eq!(rejected.body.len().to_string(), length);
        assert_eq!(rejected.field("transfer-encoding"), "");
    }
}
