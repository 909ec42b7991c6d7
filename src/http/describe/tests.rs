use http::{HeaderValue, Request};

use super::*;
use crate::{
    descriptor::{Tenant, TenantRef},
    http::tenant::{self, PeerAddr},
    quota::Quota,
};

fn get(uri: &str) -> Request<()> {
    Request::get(uri).body(()).unwrap()
}

fn preflight() -> Request<()> {
    Request::options("/v1").header(ACCESS_CONTROL_REQUEST_METHOD, "PUT").body(()).unwrap()
}

#[test]
fn a_request_is_described_by_path_method_and_tenant() {
    let mut http = Http { missing_tenant: Some(MissingTenant::Reject), ..Http::server() };
    let mut request = Request::put("/v1/a%2Fb?q=1").body("any body").unwrap();
    request.extensions_mut().insert(PeerAddr("192.0.2.7:1".parse().unwrap()));
    let descriptor = http.describe_head(&RequestHead::new(&request), || false);
    assert_eq!((descriptor.path(), descriptor.method), ("/v1/a%2Fb", "PUT"));
    assert_eq!(descriptor.tenant, Some(TenantRef::address([192, 0, 2, 7].into())));
    assert_eq!(descriptor.on_missing, Some(MissingTenant::Reject));
    assert_eq!((descriptor.cost, descriptor.exempt, descriptor.matched_route()), (1, false, None));

    let unnamed = get("/");
    assert_eq!(http.describe_head(&RequestHead::new(&unnamed), || false).tenant, None);
    http.tenant = Arc::new(tenant::from_fn(|_: &RequestHead<'_>| Some("acme")));
    assert_eq!(http.describe_head(&RequestHead::new(&unnamed), || false).tenant, Some(TenantRef::name("acme")));
}

#[test]
fn a_path_is_never_empty() {
    let connect = Request::connect("api.example:443").body(()).unwrap();
    assert_eq!(Http::client().describe_head(&RequestHead::new(&connect), || false).path(), "/");
    assert_eq!(Http::client().describe_head(&RequestHead::new(&get("https://api.example")), || false).path(), "/");
    assert_eq!(
        Http::server().describe_head(&RequestHead::new(&Request::options("*").body(()).unwrap()), || false).path(),
        "*"
    );
}

#[test]
fn a_preflight_is_exempt_on_a_server_only() {
    assert!(Http::server().describe_head(&RequestHead::new(&preflight()), || false).exempt);
    let counting = Http { exempt_preflight: Some(false), ..Http::server() };
    assert!(!counting.describe_head(&RequestHead::new(&preflight()), || false).exempt);
    assert!(!Http::client().describe_head(&RequestHead::new(&preflight()), || false).exempt);

    let mut put = preflight();
    *put.method_mut() = Method::PUT;
    assert!(!Http::server().describe_head(&RequestHead::new(&put), || false).exempt);
    let mut options = preflight();
    options.headers_mut().clear();
    options.headers_mut().insert("origin", HeaderValue::from_static("https://a.example"));
    assert!(!Http::server().describe_head(&RequestHead::new(&options), || false).exempt);
    for (name, value, exempt) in [
        ("content-type", "application/grpc", false),
        ("content-length", "5", false),
        ("transfer-encoding", "chunked", false),
        ("content-length", "0", true),
    ] {
        let mut options = preflight();
        options.headers_mut().insert(name, HeaderValue::from_static(value));
        assert_eq!(Http::server().describe_head(&RequestHead::new(&options), || false).exempt, exempt, "{name}");
    }
}

#[test]
fn a_client_counts_by_host() {
    let mut request = get("https://api.example/v1");
    request.extensions_mut().insert(PeerAddr("192.0.2.7:1".parse().unwrap()));
    let http = Http::client();
    assert_eq!(http.describe_head(&RequestHead::new(&request), || false).tenant, Some(TenantRef::name("api.example")));
    request.extensions_mut().insert(Tenant::new("acme"));
    let http = Http { tenant: Arc::new(tenant::extension::<Tenant>()), ..http };
    assert_eq!(http.describe_head(&RequestHead::new(&request), || false).tenant, Some(TenantRef::name("acme")));
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn a_nested_router_does_not_change_the_path() {
    use std::sync::Mutex;

    use axum::{Router, body::Body, middleware::from_fn, routing::get as on_get};
    use tower::ServiceExt;

    type Seen = (String, Option<String>, String);
    static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

    async fn see(request: Request<Body>, next: axum::middleware::Next) -> axum::response::Response {
        let (server, client) = (Http::server(), Http::client());
        let descriptor = server.describe_head(&RequestHead::new(&request), || false);
        let (path, route) = (descriptor.path().to_owned(), descriptor.matched_route().map(str::to_owned));
        let passed_on = client.describe_head(&RequestHead::new(&request), || false);
        assert_eq!(passed_on.matched_route(), None);
        *SEEN.lock().unwrap() = Some((path, route, passed_on.path().to_owned()));
        next.run(request).await
    }
    let inner = Router::new().route("/items/{id}", on_get(|| async {})).route_layer(from_fn(see));
    let outer = Router::new().nest("/v1", inner);
    let request = Request::get("/v1/items/7").body(Body::empty()).unwrap();
    assert_eq!(outer.oneshot(request).await.unwrap().status(), 200);
    let seen = SEEN.lock().unwrap().take().unwrap();
    assert_eq!(seen, ("/v1/items/7".into(), Some("/v1/items/{id}".into()), "/items/7".into()));
}

#[test]
fn only_a_strict_layer_goes_on_looking_at_a_mistake_that_stays() {
    let limiter = RateLimiter::new(Quota::per_second(1)).unwrap();
    // No server has put the peer's address into the extensions.
    let mut request = Request::new(());
    for strict in [false, true] {
        let http = Http { is_strict: strict, ..Http::server() };
        for _ in 0..1_000 {
            assert_eq!(http.check(&mut request, &limiter, None), strict);
        }
        assert_eq!(http.checks_are_open(), strict);
    }
}
