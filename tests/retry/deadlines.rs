//! No wait is longer than what is left to the caller.

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
async fn who_has_no_time_for_the_wait_has_the_rejection_at_once() {
    let begin = Instant::now();
    let mut hurried = get();
    hurried.extensions_mut().insert(Deadline::after(seconds(20)));
    for request in [call("20S"), hurried] {
        let provider = Provider::rejecting(1, 429, &[("retry-after", "30")]);
        let response = send(&provider, &Retry::new(), request).await.unwrap();
        assert_eq!((response.status().as_u16(), provider.sends()), (429, 1));
        assert_eq!(begin.elapsed(), seconds(0));
    }
    let provider = Provider::rejecting(1, 429, &[("retry-after", "30")]);
    assert_eq!(send(&provider, &Retry::new(), call("40S")).await.unwrap().status(), 200);
}

/// What it has waited for, and what its attempts took, is gone.
#[tokio::test(start_paused = true)]
async fn what_is_sent_again_has_what_is_left() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&sent);
    let provider = service_fn(move |request: Request<String>| {
        log.lock().unwrap().push(request.headers()["grpc-timeout"].to_str().unwrap().to_owned());
        async {
            tokio::time::advance(seconds(2)).await;
            Ok::<_, BoxError>(answer(429, &[("retry-after", "3")]))
        }
    });
    let response = send(&provider, &Retry::new().jitter(Duration::ZERO), call("12S")).await.unwrap();
    // The third would have to wait until 13 seconds are over.
    assert_eq!(response.status(), 429);
    assert_eq!(*sent.lock().unwrap(), ["12S", "7000000u", "2000000u"]);
}
