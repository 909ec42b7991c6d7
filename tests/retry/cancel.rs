//! Dropping the future cancels the retries.

use tokio::time::timeout;
use tower_ratelimit::{Quota, RateLimitLayer, RetryPolicy};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_sends_nothing() {
    let upstream = Upstream::rejecting(1, 429, &[("retry-after", "10")]);
    let response = timeout(seconds(9), send(&upstream, &RetryPolicy::new(), get())).await;
    assert!(response.is_err());
    tokio::time::advance(seconds(100)).await;
    tokio::task::yield_now().await;
    assert_eq!(upstream.sends(), 1);
    assert_eq!(Arc::strong_count(&upstream.sent), 1, "the client was dropped");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_charges_nothing() {
    let upstream = Upstream::rejecting(1, 429, &[("retry-after", "10")]);
    let client = RateLimitLayer::client(limiter(Quota::per_hour(2))).layer(upstream.clone());
    assert!(timeout(seconds(9), send(&client, &RetryPolicy::new(), get())).await.is_err());
    tokio::time::advance(seconds(9)).await;
    assert_eq!(send(&client, &RetryPolicy::new(), get()).await.unwrap().status(), 200, "one of two was taken");
    assert_eq!(upstream.sends(), 2);
}
