//! No wait exceeds the request's deadline.

use tower::service_fn;
use tower_ratelimit::descriptor::Deadline;

use super::*;

fn call(timeout: &str) -> Request<String> {
    let mut call = get();
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    call.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
    call
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_deadline_returns_the_rejection_at_once() {
    let begin = Instant::now();
    let mut hurried = get();
    hurried.extensions_mut().insert(Deadline::after(seconds(20)));
    for request in [call("20S"), hurried] {
        let upstream = Upstream::rejecting(1, 429, &[("retry-after", "30")]);
        let response = send(&upstream, &RetryPolicy::new(), request).await.unwrap();
        assert_eq!((response.status().as_u16(), upstream.sends()), (429, 1));
        assert_eq!(begin.elapsed(), seconds(0));
    }
    let upstream = Upstream::rejecting(1, 429, &[("retry-after", "30")]);
    assert_eq!(send(&upstream, &RetryPolicy::new(), call("40S")).await.unwrap().status(), 200);
}

/// Waits and attempts count against the timeout.
#[tokio::test(start_paused = true)]
async fn a_retry_carries_the_time_left_as_its_timeout() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&sent);
    let upstream = service_fn(move |request: Request<String>| {
        log.lock().unwrap().push(request.headers()["grpc-timeout"].to_str().unwrap().to_owned());
        async {
            tokio::time::advance(seconds(2)).await;
            Ok::<_, BoxError>(answer(429, &[("retry-after", "3")]))
        }
    });
    let response = send(&upstream, &RetryPolicy::new().jitter(Duration::ZERO), call("12S")).await.unwrap();
    // The third would have to wait until 13 seconds are over.
    assert_eq!(response.status(), 429);
    assert_eq!(*sent.lock().unwrap(), ["12S", "7000000u", "2000000u"]);
}
