//! CORS preflights: exempt, unless a caller hides another request in one.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{Empty, Full};
use hyper::{body::Incoming, client, server};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tower::Layer;
use tower_ratelimit::{Quota, RateLimitLayer};

use super::{
    common::{Caller, limiter},
    hello, limited,
};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// One request a minute in all: every request comes from one address.
fn one_a_minute() -> RateLimitLayer {
    RateLimitLayer::new(limiter(Quota::per_minute(1)).0)
}

async fn server(change: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> Caller {
    limited(change(one_a_minute())).await
}

const PREFLIGHT: [(&str, &[u8]); 2] = [("origin", b"https://app.example"), ("access-control-request-method", b"PUT")];

#[tokio::test]
async fn mistake_13_preflights_are_not_charged_and_rejections_not_counted_as_served() {
    let (limiter, _) = limiter(Quota::per_minute(2));
    let server = limited(RateLimitLayer::new(limiter.clone())).await;
    for _ in 0..5 {
        let preflight = server.call(Method::OPTIONS, "/", &PREFLIGHT).await;
        assert_eq!((preflight.status, preflight.field("ratelimit")), (OK, String::new()));
    }
    for status in [OK, OK, REJECTED, REJECTED, REJECTED] {
        assert_eq!(server.get("/").await.status, status);
    }
    let stats = limiter.stats();
    assert_eq!((stats.allowed, stats.rejected), (2, 3));
}

#[tokio::test]
async fn an_options_request_is_a_preflight_only_if_it_asks_for_a_method() {
    let server = server(|layer| layer).await;
    assert_eq!(server.call(Method::OPTIONS, "/", &PREFLIGHT[..1]).await.status, OK);
    assert_eq!(server.call(Method::OPTIONS, "/", &PREFLIGHT[..1]).await.status, REJECTED);
    assert_eq!(server.call(Method::GET, "/", &PREFLIGHT).await.status, REJECTED);
    assert_eq!(server.call(Method::OPTIONS, "/", &PREFLIGHT).await.status, OK);
}

#[tokio::test]
async fn preflights_can_be_counted() {
    let server = server(|layer| layer.exempt_preflight(false)).await;
    assert_eq!(server.call(Method::OPTIONS, "/", &PREFLIGHT).await.status, OK);
    assert_eq!(server.call(Method::OPTIONS, "/", &PREFLIGHT).await.status, REJECTED);
}

fn preflight<B>(content: B) -> Request<B> {
    let request = Request::options("http://api.example/").header("origin", "https://app.example");
    request.header("access-control-request-method", "PUT").body(content).unwrap()
}

/// The statuses of three preflights without content, then of three with content
/// that no header announces, over one HTTP/2 connection.
async fn over_http2(address: SocketAddr) -> Vec<StatusCode> {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let mut statuses = Vec::new();
    for content in [None, None, None, Some("x"), Some("x"), Some("x")] {
        // A stream has no length that a client could announce.
        let chunks = tokio_stream::iter(
            content.map(|text| Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from(text)))),
        );
        let body = match content {
            Some(_) => http_body_util::Either::Left(http_body_util::StreamBody::new(chunks)),
            None => http_body_util::Either::Right(Empty::<Bytes>::new()),
        };
        let response = sender.send_request(preflight(body)).await.unwrap();
        statuses.push(response.status());
    }
    statuses
}

const ONLY_EMPTY_ONES_PASS: [StatusCode; 6] = [OK, OK, OK, OK, REJECTED, REJECTED];

/// No header announces the content of an HTTP/2 request.
#[cfg(any(feature = "axum", feature = "tonic"))]
#[tokio::test]
async fn over_http2_a_preflight_with_content_is_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = one_a_minute().layer(hello::<Incoming>());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let http2 = server::conn::http2::Builder::new(TokioExecutor::new());
        http2.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await
    });
    assert_eq!(over_http2(address).await, ONLY_EMPTY_ONES_PASS);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn over_http2_axum_counts_a_preflight_with_content() {
    let app = axum::Router::new().fallback(|| async { "hello" }).layer(one_a_minute());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    assert_eq!(over_http2(address).await, ONLY_EMPTY_ONES_PASS);
}

/// HTTP/1 announces content by its length or its encoding.
#[tokio::test]
async fn over_http1_a_preflight_with_content_is_counted() {
    let server = server(|layer| layer).await;
    for status in [OK, OK, OK] {
        assert_eq!(server.call(Method::OPTIONS, "/", &PREFLIGHT).await.status, status);
    }
    for status in [OK, REJECTED, REJECTED] {
        let reply = server.send(Method::OPTIONS, "/", &PREFLIGHT, Bytes::from("x")).await;
        assert_eq!(reply.status, status);
    }
}

/// A body of a type that the layer does not know cannot be asked. Over HTTP/2 it
/// may have content.
#[tokio::test]
async fn an_unknown_body_counts_as_content_over_http2_unless_its_length_is_0() {
    use tower::ServiceExt;
    let service = one_a_minute().layer(hello::<Full<Bytes>>());
    let over = |version, length: Option<&'static str>| {
        let mut request = preflight(Full::default());
        *request.version_mut() = version;
        request.headers_mut().extend(length.map(|length| (http::header::CONTENT_LENGTH, length.parse().unwrap())));
        request
    };
    for (request, status) in [
        (over(http::Version::HTTP_2, None), OK),
        (over(http::Version::HTTP_2, None), REJECTED),
        (over(http::Version::HTTP_2, Some("0")), OK),
        (over(http::Version::HTTP_2, Some("1")), REJECTED),
        (over(http::Version::HTTP_11, None), OK),
        (over(http::Version::HTTP_11, Some("1")), REJECTED),
    ] {
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), status);
    }
}
