//! The policy changes while a backend decides.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    Descriptor, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    backend::{Backend, Decide, Outcome, Receipt, Request},
    time::Timestamp,
};

use super::is_pending;

/// A backend that answers when the test notifies it, and records refunds.
#[derive(Debug, Default)]
struct SlowBackend {
    answer_now: Arc<Notify>,
    wait: Duration,
    refunded: Mutex<Vec<String>>,
}

impl Backend for SlowBackend {
    fn decide(&self, _: &Request<'_>) -> Decide {
        let (answer_now, wait) = (Arc::clone(&self.answer_now), self.wait);
        Decide::Later(Box::pin(async move {
            answer_now.notified().await;
            Ok(Outcome::admitted(wait))
        }))
    }

    fn refund(&self, receipt: &Receipt, _: Timestamp) {
        self.refunded
            .lock()
            .expect("a lock that is not poisoned")
            .extend(receipt.charges().map(|charge| charge.rule().to_owned()));
    }
}

#[tokio::test]
async fn the_policy_may_change_while_the_backend_decides() {
    let backend = Arc::new(SlowBackend { wait: Duration::from_secs(3_600), ..SlowBackend::default() });
    let rule = |id| Rule::new(id).tier(Quota::per_hour(1));
    let policy = Policy::new().rule(rule("first")).rule(rule("old").path("/old").max_wait(Duration::MAX));
    let limiter = RateLimiter::builder().policy(policy).backend(Arc::clone(&backend)).build().unwrap();
    let layer = RateLimitLayer::keyed(limiter.clone(), |_: &()| Descriptor::new("/old"));
    let mut service = layer.layer(service_fn(async |()| Ok::<_, Infallible>(())));
    let mut waiting = Box::pin(service.ready().await.unwrap().call(()));
    assert!(is_pending(&mut waiting));
    limiter.set_policy(Policy::new()).unwrap();
    backend.answer_now.notify_one();
    assert!(is_pending(&mut waiting));
    drop(waiting);
    assert_eq!(*backend.refunded.lock().unwrap(), ["first", "old"]);
}

#[tokio::test]
async fn a_shadow_rule_may_be_removed_while_the_backend_decides() {
    let backend = Arc::new(SlowBackend::default());
    let rule = |id| Rule::new(id).tier(Quota::per_hour(1));
    let policy = Policy::new().rule(rule("one")).rule(rule("shadow").shadow(true));
    let limiter = RateLimiter::builder().policy(policy).backend(Arc::clone(&backend)).build().unwrap();
    let request = Descriptor::new("/");
    let mut check = Box::pin(limiter.check(&request));
    assert!(is_pending(&mut check));
    limiter.set_policy(Policy::new()).unwrap();
    backend.answer_now.notify_one();
    assert!(is_pending(&mut check));
    backend.answer_now.notify_one();
    assert!(check.await.is_allowed());
}
