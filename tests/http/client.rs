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
    Quota, RateLimitLayer, RateLimited, RateLimitedKind, Tenant,
    headers::parse::{Parser, Signal},
    middleware::{ResponseHead, UpstreamFeedback},
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
        (feedback.clone(), 418, 120),
        (feedback.clone(), 420, 120),
        (feedback.clone(), 429, 120),
        (feedback.clone(), 509, 120),
        (feedback.clone(), 529, 120),
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

/// What an upstream says elsewhere comes before its fields and its status.
#[tokio::test]
async fn a_function_reads_what_the_parser_does_not_know() {
    let upstream = service_fn(async |request: Request<hyper::body::Incoming>| {
        let [status, busy, after] = [0, 1, 2].map(|at| request.uri().path()[1..].split('/').nth(at).unwrap());
        let response = Response::builder().status(status.parse::<u16>().unwrap()).header("x-busy-minutes", busy);
        Ok::<_, std::convert::Infallible>(response.header("retry-after", after).body(Full::<Bytes>::default()).unwrap())
    });
    let server = serve(upstream).await;
    // Captures what it compares with, as a user's may.
    let allowed = String::from("fine");
    let feedback = UpstreamFeedback::new().read_with(move |response: &ResponseHead<'_>| {
        let busy = response.headers().get("x-busy-minutes")?.to_str().ok()?;
        let is_rejection = response.status() == StatusCode::FORBIDDEN;
        match busy.parse::<u64>() {
            Ok(minutes) if is_rejection => Some(Signal::rejection().with_cooldown(Duration::from_secs(60 * minutes))),
            Ok(minutes) => Some(Signal::default().with_cooldown(Duration::from_secs(60 * minutes))),
            Err(_) => (busy == allowed).then(Signal::default),
        }
    });
    for (path, pause) in [
        // No field and no status that the parser knows.
        ("/403/2/-", 120),
        // Not a rejection, but nothing remains.
        ("/200/2/-", 120),
        // In place of the time that the parser would read, in both directions.
        ("/403/2/30", 120),
        ("/403/1/500", 60),
        ("/429/fine/30", 0),
        ("/503/fine/30", 0),
        // The parser's cap holds.
        ("/403/20/-", 600),
        ("/403/99999999999/-", 600),
        // Where the function says nothing, the parser does.
        ("/429/-/30", 30),
        ("/403/-/30", 30),
        ("/200/-/30", 0),
    ] {
        let (limiter, _) = limiter(Quota::per_second(50));
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let client = RateLimitLayer::client(limiter).feedback(feedback.clone()).layer(client);
        let call = || client.clone().oneshot(to(server.uri(path)));
        call().await.unwrap();
        let after = match call().await {
            Ok(_) => Duration::ZERO,
            Err(error) => error.downcast_ref::<RateLimited>().unwrap().retry_after().unwrap(),
        };
        let pause = Duration::from_secs(pause);
        // The jitter of a cooldown.
        let most = pause + (pause / 4).min(Duration::from_secs(10));
        assert!((pause..=most).contains(&after), "{path}: {after:?}");
    }
}
