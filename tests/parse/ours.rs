//! This crate's own headers, parsed.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use http_body_util::Full;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    Headers, Quota, RateLimitLayer, RateLimiter,
    headers::parse::{Dialect, Parser},
    time::Timestamp,
};

use super::NOON;

#[tokio::test]
async fn every_family_yields_a_cooldown() {
    let limiter = RateLimiter::new(Quota::per_hour(2)).unwrap();
    let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) });
    let mut service = RateLimitLayer::new(limiter).headers(Headers::ALL).layer(inner);
    let parser = Parser::new().cap(Duration::MAX);
    let mut left = Vec::new();
    for _ in 0..2 {
        let response = service.ready().await.unwrap().call(Request::new(())).await.unwrap();
        let signal = parser.read(response.status(), response.headers(), Timestamp::from_secs(NOON));
        assert!(!signal.is_rejection());
        assert_eq!(signal.limit(), Some(2));
        left.push((signal.remaining(), signal.cooldown().is_some()));
    }
    assert_eq!(left, [(Some(1), false), (Some(0), true)]);

    let rejected = service.ready().await.unwrap().call(Request::new(())).await.unwrap();
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    let mut headers = rejected.headers().clone();
    for (dialect, field) in [
        (Dialect::RetryAfter, RETRY_AFTER.as_str()),
        (Dialect::Ietf, "ratelimit"),
        (Dialect::Envoy, "x-ratelimit-reset"),
    ] {
        let signal = parser.read(rejected.status(), &headers, Timestamp::from_secs(NOON));
        assert_eq!(signal.dialect(), Some(dialect), "{headers:?}");
        assert_eq!((signal.limit(), signal.remaining()), (Some(2), Some(0)));
        // One token in half an hour, both in an hour.
        let after = signal.cooldown().unwrap();
        assert!((Duration::from_secs(1_700)..=Duration::from_secs(3_600)).contains(&after), "{dialect}: {after:?}");
        headers.remove(field);
    }
}
