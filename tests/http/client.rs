//! A hyper-util client behind the layer stays within its limits.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, Error as ClientError},
    rt::TokioExecutor,
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    Quota, RateLimitLayer, RateLimited, RateLimitedKind, Tenant, headers::parse::Parser, middleware::UpstreamFeedback,
    tenant,
};

use super::common::{limiter, serve};

fn to(uri: http::Uri) -> Request<Full<Bytes>> {
    Request::get(uri).body(Full::default()).unwrap()
}

#[tokio::test]
async fn a_rejection_is_a_typed_error() {
    let server = serve(super::hello()).await;
    let (limiter, clock) = limiter(Quota::per_minute(1));
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let mut client = RateLimitLayer::client(limiter).layer(client);

    let sent = client.ready().await.unwrap().call(to(server.uri("/"))).await.unwrap();
    assert_eq!(sent.status(), StatusCode::OK);
    assert!(!sent.headers().contains_key("ratelimit"), "what the server says is not written over");

    let error = client.ready().await.unwrap().call(to(server.uri("/"))).await.unwrap_err();
    let rejection = error.downcast_ref::<RateLimited>().unwrap();
    assert_eq!(rejection.kind(), RateLimitedKind::QuotaExceeded);
    let after = rejection.retry_after().unwrap();
    assert_eq!(after.as_secs(), 60);

    clock.advance(after);
    assert_eq!(client.ready().await.unwrap().call(to(server.uri("/"))).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn each_host_and_each_tenant_has_its_own_counter() {
    let server = serve(super::hello()).await;
    let (limiter, _) = limiter(Quota::per_minute(1));
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let layer = RateLimitLayer::client(limiter);
    let by_host = layer.layer(client.clone());
    let by_tenant = layer.tenant(tenant::extension::<Tenant>()).layer(client);
    let named = |host: &str, tenant: Option<&str>| {
        let mut request = to(format!("http://{host}:{}/", server.address.port()).parse().unwrap());
        if let Some(tenant) = tenant {
            request.extensions_mut().insert(Tenant::new(tenant));
        }
        request
    };
    for (host, tenant, admitted) in [
        ("127.0.0.1", None, true),
        ("localhost", None, true),
        ("LOCALHOST", None, false),
        ("127.0.0.1", None, false),
        ("127.0.0.1", Some("acme"), true),
        ("localhost", Some("acme"), false),
    ] {
        let client = if tenant.is_some() { &by_tenant } else { &by_host };
        let result = client.clone().oneshot(named(host, tenant)).await;
        assert_eq!(result.is_ok(), admitted, "{host} {tenant:?}: {:?}", result.err());
    }
}

#[tokio::test]
async fn the_clients_own_errors_pass() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let unused = listener.local_addr().unwrap();
    drop(listener);
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = RateLimitLayer::client(limiter(Quota::per_minute(1)).0).layer(client);
    let error = client.oneshot(to(format!("http://{unused}/").parse().unwrap())).await.unwrap_err();
    assert!(error.downcast_ref::<ClientError>().unwrap().is_connect(), "{error:?}");
}

/// The time of a rejection that only the user's list knows is obeyed as that of a 429.
#[tokio::test]
async fn a_listed_status_pauses_for_its_time() {
    let upstream = service_fn(async |request: Request<hyper::body::Incoming>| {
        let status: u16 = request.uri().path()[1..].parse().unwrap();
        let response = Response::builder().status(status).header("retry-after", "120");
        Ok::<_, std::convert::Infallible>(response.body(Full::<Bytes>::default()).unwrap())
    });
    let server = serve(upstream).await;
    let feedback = UpstreamFeedback::new().rejection_statuses([429, 418, 420, 509, 529]);
    for (feedback, status, pause) in [
        (feedback, 418, 120),
        (feedback, 420, 120),
        (feedback, 429, 120),
        (feedback, 509, 120),
        (feedback, 529, 120),
        (feedback.parser(Parser::new()), 418, 120),
        (UpstreamFeedback::new().parser(Parser::new().cap(Duration::from_secs(60))).rejection_statuses([418]), 418, 60),
        (UpstreamFeedback::new(), 418, 0),
    ] {
        let (limiter, _) = limiter(Quota::per_second(50));
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let client = RateLimitLayer::client(limiter).feedback(feedback).layer(client);
        let call = || client.clone().oneshot(to(server.uri(&format!("/{status}"))));
        assert_eq!(call().await.unwrap().status(), status);
        let after = match call().await {
            Ok(_) => Duration::ZERO,
            Err(error) => error.downcast_ref::<RateLimited>().unwrap().retry_after().unwrap(),
        };
        // Those of a fleet do not all return at once.
        let most = Duration::from_secs(pause + 10.min(pause / 4));
        assert!((Duration::from_secs(pause)..=most).contains(&after), "{status}: {after:?}");
    }
}
