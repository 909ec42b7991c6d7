//! Adaptive rates on a store: each call carries its present limit.

use std::time::Duration;

use tower_ratelimit::{AdaptiveRate, Descriptor, FailureMode, Policy, Quota, Rule};

use super::{limiter, patient, server::Server, shared_machine};

const LONG_WAIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_counter_serves_every_rate_and_its_waiters() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let adapt = AdaptiveRate::between(Quota::per_second(10), Quota::per_second(400)).start(Quota::per_second(50));
    let rule = Rule::new("provider").adaptive_rate(adapt).on_backend_failure(FailureMode::Closed);
    let limiter = limiter(Policy::new().rule(rule), &redis);
    let request = Descriptor::new("/").tenant("acme");
    let rate = || limiter.adaptive_rates(&request)[0].rate();

    let began = tokio::time::Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            for _ in 0..60 {
                let request = Descriptor::new("/").tenant("acme");
                limiter.acquire(&request, LONG_WAIT).await.unwrap().report_success();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    // 960 at 400 a second take 2.4 s; the rate starts at 50.
    assert!(began.elapsed() >= Duration::from_millis(2_300), "{:?}", began.elapsed());
    let found = rate();
    assert!(found > 100.0, "{found}");
    assert_eq!(server.keys("*provider*").await.len(), 1, "{:?}", server.keys("*").await);

    let permit = limiter.acquire(&request, LONG_WAIT).await.unwrap();
    permit.report_rejection();
    assert!((rate() - found * 0.7).abs() < 1e-6, "{}", rate());
    let decision = limiter.acquire(&request, LONG_WAIT).await.unwrap();
    let tier = &decision.decision().tiers()[0];
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let shown = tier.limit() as f64 / tier.window().as_secs_f64();
    assert!(shown <= rate() && shown > rate() * 0.97, "{shown} of {}", rate());
    assert_eq!(server.keys("*provider*").await.len(), 1);
}
