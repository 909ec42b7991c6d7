//! Nested layers of one limiter on a real server: the outer one gives back what
//! the inner one rejects, at every level of consistency.

use std::convert::Infallible;

use http::{Request, Response};
use http_body_util::Empty;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{Algorithm, Consistency, FailureMode, Policy, Quota, RateLimitLayer, Rule};

use super::{limiter, patient, server::Server, shared_machine};

/// A window that outlasts the test, and does not end during it.
fn day(limit: u64) -> Quota {
    Quota::per_day(limit).algorithm(Algorithm::AnchoredWindow)
}

#[tokio::test]
async fn an_outer_layer_gives_back_what_an_inner_one_rejects() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    for consistency in [Consistency::Exact, Consistency::Leased] {
        let rule = |id: String| Rule::new(id).per([]).consistency(consistency).on_backend_failure(FailureMode::Closed);
        let policy = Policy::new()
            .rule(rule(format!("everything-{consistency:?}")).tier(day(5)))
            .rule(rule("search".into()).path("/never").consistency(Consistency::Exact).tier(day(2)));
        let limiter = limiter(policy, &patient(server.url()).await);
        let layer = || RateLimitLayer::new(limiter.clone());
        let handler =
            service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new())));
        let searching = layer().layer(layer().rule("search").layer(handler));
        let other = layer().layer(handler);
        let mut admitted = 0;
        for _ in 0..20 {
            let response = searching.clone().oneshot(Request::new(())).await.unwrap();
            admitted += u32::from(response.status().is_success());
        }
        for _ in 0..10 {
            let response = other.clone().oneshot(Request::new(())).await.unwrap();
            admitted += u32::from(response.status().is_success());
        }
        assert_eq!(admitted, 5, "{consistency:?}");
        limiter.reset(&tower_ratelimit::Descriptor::new("/").rule("search")).await.unwrap();
    }
}
