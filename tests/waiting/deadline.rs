use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimitedKind, Rule, descriptor::Deadline};

use super::{SECOND, by, limiter};

#[tokio::test(start_paused = true)]
async fn a_request_waits_no_longer_than_its_own_max_wait() {
    let limiter = limiter(Quota::per_second(1));
    drop(limiter.acquire(&by("acme").max_wait(Duration::ZERO), Duration::MAX).await.unwrap());
    let rejected = limiter.acquire(&by("acme").max_wait(SECOND / 2), Duration::MAX).await.unwrap_err();
    assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::QuotaExceeded, Some(SECOND)));
    drop(limiter.acquire(&by("acme").max_wait(SECOND), Duration::MAX).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_layer_reads_the_deadline_from_the_extensions() {
    let rule = Rule::new("paced").tier(Quota::per_second(1)).max_wait(10 * SECOND);
    let layer = RateLimitLayer::new(limiter(Policy::new().rule(rule)));
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(Full::<bytes::Bytes>::default()))
    }));
    let start = Instant::now();
    let call = async |deadline: Option<Deadline>| {
        let mut request = Request::new(());
        request.extensions_mut().extend(
            deadline
                .map(|deadline| {
                    let mut extensions = http::Extensions::new();
                    extensions.insert(deadline);
                    extensions
                })
                .unwrap_or_default(),
        );
        let status = service.clone().oneshot(request).await.unwrap().status();
        (status, start.elapsed().as_secs())
    };
    let (ok, rejected) = (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(call(None).await, (ok, 0));
    assert_eq!(call(Some(Deadline::after(SECOND / 2))).await, (rejected, 0));
    assert_eq!(call(Some(Deadline::at(start))).await, (rejected, 0));
    assert_eq!(call(Some(Deadline::after(SECOND))).await, (ok, 1));
    assert_eq!(call(Some(Deadline::after(Duration::MAX))).await, (ok, 2));
    assert_eq!(call(None).await, (ok, 3));
}
