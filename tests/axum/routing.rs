//! Rules match the path that the client sent, wherever in a router the layer
//! is.

use axum::{Router, middleware, response::Response};
use http::{Method, StatusCode};
use tower::ServiceBuilder;
use tower_ratelimit::{Policy, Quota, RateLimited, RateLimitedKind, Rule};

use super::{answer, layer, serve};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

fn path(pattern: &str) -> Policy {
    Policy::new().rule(Rule::new("r").path(pattern).tier(Quota::per_minute(1)))
}

fn route(pattern: &str) -> Policy {
    Policy::new().rule(Rule::new("r").route(pattern).tier(Quota::per_minute(1)))
}

#[tokio::test]
async fn layer_covers_routes_and_fallback() {
    let server = serve(Router::new().route("/a", answer()).layer(layer(Quota::per_minute(2)))).await;
    for (path, status) in [("/a", OK), ("/nowhere", StatusCode::NOT_FOUND), ("/a", REJECTED), ("/nowhere", REJECTED)] {
        assert_eq!(server.get(path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn a_fallback_response_gets_headers() {
    let server = serve(Router::new().fallback(|| async { "none" }).layer(layer(Quota::per_minute(2)))).await;
    let reply = server.get("/nowhere").await;
    assert_eq!((reply.status, reply.trio()), (OK, [2, 1, 30]));
}

#[tokio::test]
async fn route_layer_covers_routes_alone() {
    let app = Router::new().route("/a", answer()).route_layer(layer(Quota::per_minute(1)));
    let server = serve(app).await;
    for (path, status) in
        [("/nowhere", StatusCode::NOT_FOUND), ("/a", OK), ("/a", REJECTED), ("/nowhere", StatusCode::NOT_FOUND)]
    {
        assert_eq!(server.get(path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn only_routes_added_before_the_layer_are_covered() {
    let app = Router::new().route("/in", answer()).layer(layer(Quota::per_minute(1))).route("/out", answer());
    let server = serve(app).await;
    for (path, status) in [("/out", OK), ("/in", OK), ("/out", OK), ("/in", REJECTED)] {
        assert_eq!(server.get(path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn in_a_nested_router_rules_match_the_whole_path() {
    for (policy, status) in [
        (path("/api/v1/users/{id}"), REJECTED),
        (path("/api/{*rest}"), REJECTED),
        (route("/api/v1/users/{id}"), REJECTED),
        // The inner router's path is not one that a client could send.
        (path("/users/{id}"), OK),
        (route("/users/{id}"), OK),
    ] {
        let inner = Router::new().route("/users/{id}", answer()).layer(layer(policy.clone()));
        let server = serve(Router::new().nest("/api", Router::new().nest("/v1", inner))).await;
        assert_eq!(server.get("/api/v1/users/7").await.status, OK);
        assert_eq!(server.get("/api/v1/users/8").await.status, status, "{policy:?}");
    }
}

#[tokio::test]
async fn around_a_nested_router_rules_match_the_whole_path() {
    for (layered, policy) in [(false, path("/api/users/{id}")), (true, route("/api/users/{id}"))] {
        let app = Router::new().nest("/api", Router::new().route("/users/{id}", answer()));
        let app = if layered { app.route_layer(layer(policy)) } else { app.layer(layer(policy)) };
        let server = serve(app).await;
        assert_eq!(server.get("/api/users/7").await.status, OK);
        assert_eq!(server.get("/api/users/8").await.status, REJECTED);
    }
}

#[tokio::test]
async fn a_layer_on_the_service_around_the_router_sees_every_path_and_no_route() {
    for (policy, status) in [(path("/users/{id}"), REJECTED), (route("/users/{id}"), OK)] {
        let routes = Router::new().route("/users/{id}", answer());
        let around = ServiceBuilder::new().layer(layer(policy)).service(routes);
        let server = serve(Router::new().fallback_service(around)).await;
        assert_eq!(server.get("/users/7").await.status, OK);
        assert_eq!(server.get("/users/8").await.status, status);
    }
}

#[tokio::test]
async fn no_path_that_matches_a_route_evades_its_rule() {
    for policy in [path("/users/{id}"), route("/users/{id}")] {
        let server = serve(Router::new().route("/users/{id}", answer()).layer(layer(policy))).await;
        assert_eq!(server.get("/users/7").await.status, OK);
        for path in ["/users/7", "/users/8", "/users/%37", "/users/7?x=/", "/users/%2F", "/users/a%20b", "/users/%ff"] {
            let status = server.get(path).await.status;
            assert_eq!(status, REJECTED, "{path}");
        }
    }
}

#[tokio::test]
async fn a_route_is_counted_per_method_only_where_the_rule_names_methods() {
    for (methods, second) in [(vec![], REJECTED), (vec![Method::GET, Method::POST], OK)] {
        let rule = Rule::new("r").route("/a").methods(methods).tier(Quota::per_minute(1));
        let server = serve(Router::new().route("/a", answer()).layer(layer(Policy::new().rule(rule)))).await;
        assert_eq!(server.call(Method::GET, "/a", &[]).await.status, OK);
        assert_eq!(server.call(Method::POST, "/a", &[]).await.status, second);
        assert_eq!(server.call(Method::GET, "/a", &[]).await.status, REJECTED);
    }
}

#[tokio::test]
async fn an_outer_axum_middleware_finds_the_rejection() {
    let name = |response: Response| async move {
        let kind = response.extensions().get::<RateLimited>().map(RateLimited::kind);
        let seen = if kind == Some(RateLimitedKind::QuotaExceeded) { "rejected" } else { "went" };
        ([("x-seen", seen)], response)
    };
    let app = Router::new().route("/", answer()).layer(layer(Quota::per_minute(1)));
    let server = serve(app.layer(middleware::map_response(name))).await;
    assert_eq!(server.get("/").await.field("x-seen"), "went");
    assert_eq!(server.get("/").await.field("x-seen"), "rejected");
}

#[tokio::test]
async fn a_rejected_head_request_has_headers_and_no_body() {
    let server = serve(Router::new().route("/", answer()).layer(layer(Quota::per_minute(1)))).await;
    server.get("/").await;
    let rejected = server.call(Method::HEAD, "/", &[]).await;
    assert_eq!((rejected.status, rejected.body.len()), (REJECTED, 0));
    assert_eq!(rejected.field("retry-after"), "60");
}
