//! Dropping the future ends everything.

use tokio::time::timeout;
use tower_ratelimit::{Quota, RateLimitLayer, Retry};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_sends_nothing() {
    let provider = Provider::rejecting(1, 429, &[("retry-after", "10")]);
    let response = timeout(seconds(9), send(&provider, &Retry::new(), get())).await;
    assert!(response.is_err());
    tokio::time::advance(seconds(100)).await;
    tokio::task::yield_now().await;
    assert_eq!(provider.sends(), 1);
    assert_eq!(Arc::strong_count(&provider.sent), 1, "nobody holds the client any more");
}

#[tokio::test(start_paused = true)]
async fn nor_does_it_take_from_the_limiter() {
    let provider = Provider::rejecting(1, 429, &[("retry-after", "10")]);
    let client = RateLimitLayer::client(limiter(Quota::per_hour(2))).layer(provider.clone());
    assert!(timeout(seconds(9), send(&client, &Retry::new(), get())).await.is_err());
    tokio::time::advance(seconds(9)).await;
    assert_eq!(send(&client, &Retry::new(), get()).await.unwrap().status(), 200, "one of two was taken");
    assert_eq!(provider.sends(), 2);
}
