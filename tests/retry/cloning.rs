//! Requests that can be cloned, and others.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes, HttpBody};
use http::Version;
use http_body_util::{BodyExt, Full};
use tower::service_fn;
use tower_ratelimit::{RetryPolicy, retry::clone_head};

use super::*;

/// A body that can be read once.
struct Stream;

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_cloned_passes_unretried() {
    let upstream = Upstream::rejecting(1, 429, &[("retry-after", "1")]);
    let retry = RetryPolicy::new().clone_with(|_: &Request<Stream>| None);
    let response = send(&upstream, &retry, Request::get("/").body(Stream).unwrap()).await.unwrap();
    assert_eq!((response.status().as_u16(), upstream.sends()), (429, 1));
}

#[tokio::test(start_paused = true)]
async fn the_function_decides_for_each_request() {
    let retry = RetryPolicy::new().clone_with(|request: &Request<Body>| {
        request.body().is_end_stream().then(|| clone_head(request).map(|()| Body::empty()))
    });
    for (body, sends) in [(Body::empty(), 2), (Body::from("stream"), 1)] {
        let upstream = Upstream::rejecting(1, 429, &[]);
        send(&upstream, &retry, Request::put("/").body(body).unwrap()).await.unwrap();
        assert_eq!(upstream.sends(), sends);
    }
}

#[tokio::test(start_paused = true)]
async fn a_final_attempt_is_not_cloned() {
    // Kept while our own limiter might still reject it.
    for (max_retries, sends, copies) in [(2, 3, 3), (0, 1, 0)] {
        let copied = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&copied);
        let retry = RetryPolicy::new().max_retries(max_retries).clone_with(move |request: &Request<String>| {
            count.fetch_add(1, Ordering::Relaxed);
            Some(request.clone())
        });
        let upstream = Upstream::new(|_| Ok(answer(429, &[])));
        send(&upstream, &retry, get()).await.unwrap();
        assert_eq!((upstream.sends(), copied.load(Ordering::Relaxed)), (sends, copies));
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Trace(&'static str);

fn original<B>(body: B) -> Request<B> {
    let request = Request::put("https://api.example.com/v1?q=1").version(Version::HTTP_2);
    request.header("accept", "a").header("accept", "b").extension(Trace("t")).body(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_whole_request_is_sent_again() {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&bodies);
    let upstream = service_fn(move |request: Request<Full<Bytes>>| {
        let seen = Arc::clone(&seen);
        async move {
            let (head, body) = request.into_parts();
            assert_eq!((head.method, head.version), (Method::PUT, Version::HTTP_2));
            assert_eq!(head.uri, "https://api.example.com/v1?q=1");
            assert_eq!(head.headers.get_all("accept").iter().collect::<Vec<_>>(), ["a", "b"]);
            assert_eq!(head.extensions.get(), Some(&Trace("t")));
            let body = body.collect().await.unwrap().to_bytes();
            seen.lock().unwrap().push(body);
            Ok::<_, BoxError>(answer(503, &[]))
        }
    });
    send(&upstream, &RetryPolicy::new(), original(Full::from("all of it"))).await.unwrap();
    assert_eq!(*bodies.lock().unwrap(), ["all of it"; 4]);
}

#[test]
fn a_head_is_all_but_the_body() {
    let (request, head) = (original("body"), clone_head(&original("body")));
    assert_eq!((head.method(), head.uri(), head.version()), (request.method(), request.uri(), request.version()));
    assert_eq!(head.headers(), request.headers());
    assert_eq!(head.extensions().get(), Some(&Trace("t")));
}
