//! A hyper-util client behind the layer stays within its limits.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, Error as ClientError},
    rt::TokioExecutor,
};
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::{Quota, RateLimitLayer, RateLimited, RateLimitedKind, Tenant, http::tenant};

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
