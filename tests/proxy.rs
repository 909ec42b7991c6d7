//! The example's proxy over real sockets: it forwards its upstream's rate limit
//! headers, or limits by itself.
#![allow(clippy::unwrap_used)]

#[path = "proxy/chunks.rs"]
mod chunks;
#[path = "../examples/proxy/forward.rs"]
mod forward;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{Next, from_fn},
    response::Response,
    routing::any,
};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpListener, task::JoinSet};
use tower_ratelimit::{Headers, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant};

use self::chunks::Chunks;

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn limiter(rule: &str, quota: Quota) -> RateLimiter {
    RateLimiter::new(Policy::new().rule(Rule::new(rule).tier(quota))).unwrap()
}

/// A proxy for `upstream`. Its guard admits a burst of five, then one per
/// minute.
async fn proxy_for(upstream: SocketAddr) -> SocketAddr {
    let guard = limiter("guard", Quota::per_minute(1).burst(5));
    serve(forward::proxy(upstream.to_string().parse().unwrap(), guard)).await
}

/// Responds with what it received.
fn mirror() -> Router {
    Router::new().fallback(|request: Request| async move {
        let said = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
        (request.into_body(), said).1
    })
}

fn client<B>() -> Client<HttpConnector, B>
where
    B: http_body::Body<Data: Send> + Send,
{
    Client::builder(TokioExecutor::new()).build_http()
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

async fn call(method: Method, to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Reply {
    let request = http::Request::builder().method(method).uri(format!("http://{to}{path}"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = client().request(request.body(Full::<bytes::Bytes>::default()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Reply { status: head.status, headers: head.headers, text: String::from_utf8(body.to_vec()).unwrap() }
}

async fn get(to: SocketAddr, path: &str) -> Reply {
    call(Method::GET, to, path, &[]).await
}

/// Fields of all dialects. They are forwarded without being parsed.
const SAID: [(&str, &str); 12] = [
    ("retry-after", "37"),
    ("ratelimit", "\"hour\";r=0;t=37, \"day\";r=5"),
    ("ratelimit-policy", "\"hour\";q=100;w=3600"),
    ("ratelimit-policy", "\"day\";q=1000;w=86400"),
    ("x-ratelimit-limit", "10, 10;w=1;name=\"per-ip\""),
    ("x-ratelimit-remaining", "-1"),
    ("x-ratelimit-reset", "1704067200.5"),
    ("x-ratelimit-reset-requests", "6m0s"),
    ("anthropic-ratelimit-requests-reset", "2024-01-01T00:00:00Z"),
    ("x-shopify-shop-api-call-limit", "40/40"),
    ("content-type", "application/problem+json"),
    ("x-ratelimit-reset", "soon"),
];

#[tokio::test]
async fn a_rejection_is_forwarded_unchanged() {
    let reject = || async {
        let mut response = Response::builder().status(429);
        for (name, value) in SAID {
            response = response.header(name, value);
        }
        response.body(Body::from("{\"title\":\"slow down\"}")).unwrap()
    };
    let proxy = proxy_for(serve(Router::new().fallback(reject)).await).await;
    let reply = get(proxy, "/pass/anything").await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.text, "{\"title\":\"slow down\"}");
    for (name, _) in SAID {
        let expected: Vec<_> = SAID.iter().filter(|(other, _)| *other == name).map(|(_, value)| *value).collect();
        assert_eq!(reply.headers.get_all(name).iter().collect::<Vec<_>>(), expected, "{name}");
    }
}

#[tokio::test]
async fn an_upstreams_headers_arrive_unchanged() {
    let app = mirror().layer(RateLimitLayer::new(limiter("upstream", Quota::per_hour(2))).headers(Headers::ALL));
    let upstream = serve(app).await;
    let proxy = proxy_for(upstream).await;
    for remaining in ["1", "0"] {
        let reply = get(proxy, "/pass/").await;
        assert_eq!(
            (reply.status, &reply.headers["x-ratelimit-remaining"]),
            (StatusCode::OK, &remaining.parse().unwrap())
        );
    }
    let (direct, passed) = (get(upstream, "/").await, get(proxy, "/pass/").await);
    assert_eq!((direct.status, passed.status), (StatusCode::TOO_MANY_REQUESTS, StatusCode::TOO_MANY_REQUESTS));
    for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "ratelimit-policy", "content-type", "cache-control"] {
        assert_eq!(direct.headers[name], passed.headers[name], "{name}");
    }
    // Seconds may pass between the two.
    let after = |reply: &Reply| reply.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap();
    assert!(after(&passed) <= after(&direct) && after(&passed) > 1_000, "{}", after(&passed));
    assert_eq!(direct.text, passed.text);
}

/// 64 callers with 20 requests each, for 4 customers. The upstream admits a
/// burst of ten per customer. It sees only the guard's five, and what a minute
/// adds.
#[tokio::test]
async fn an_upstream_behind_the_guard_is_never_overrun() {
    let (asked, overrun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let count = {
        let (asked, overrun) = (Arc::clone(&asked), Arc::clone(&overrun));
        from_fn(move |request: Request, next: Next| {
            let (asked, overrun) = (Arc::clone(&asked), Arc::clone(&overrun));
            async move {
                asked.fetch_add(1, Ordering::Relaxed);
                let response = next.run(request).await;
                overrun.fetch_add(usize::from(response.status() == 429), Ordering::Relaxed);
                response
            }
        })
    };
    let limit = RateLimitLayer::new(limiter("upstream", Quota::per_minute(1).burst(10)));
    let app = mirror().layer(limit.tenant(tenant::header("x-api-key"))).layer(count);
    let proxy = proxy_for(serve(app).await).await;

    let mut callers = JoinSet::new();
    for caller in 0..64 {
        callers.spawn(async move {
            let mut admitted = 0;
            let customer = ["ada", "bob", "cyd", "dan"][caller % 4];
            for _ in 0..20 {
                let reply = call(Method::GET, proxy, "/guard/", &[("x-api-key", customer)]).await;
                match reply.status {
                    StatusCode::OK => admitted += 1,
                    StatusCode::TOO_MANY_REQUESTS => {
                        assert_eq!(reply.headers["ratelimit-policy"], "\"guard\";q=1;w=60", "ours alone");
                        assert!(reply.headers.contains_key("retry-after"));
                    }
                    other => panic!("{other}"),
                }
            }
            admitted
        });
    }
    let admitted: usize = callers.join_all().await.into_iter().sum();
    assert_eq!((asked.load(Ordering::Relaxed), overrun.load(Ordering::Relaxed)), (admitted, 0));
    // 20, and one more per customer and minute.
    assert!((20..=32).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn paths_queries_and_methods_arrive_as_they_were_sent() {
    let proxy = proxy_for(serve(mirror()).await).await;
    for (path, arrives) in [
        ("/pass/things/a%2Fb%20c?q=1&q=%26", "/things/a%2Fb%20c?q=1&q=%26"),
        ("/pass/", "/"),
        ("/guard/things//7/", "/things//7/"),
    ] {
        for method in [Method::GET, Method::DELETE] {
            let reply = call(method.clone(), proxy, path, &[]).await;
            assert!(reply.text.starts_with(&format!("{method} {arrives} ")), "{path}: {}", reply.text);
        }
    }
    assert_eq!(get(proxy, "/elsewhere").await.status, 404);
}

#[tokio::test]
async fn hop_by_hop_headers_are_not_forwarded() {
    const HOP: [&str; 6] = ["keep-alive", "proxy-connection", "te", "proxy-authorization", "upgrade", "x-for-this-hop"];
    let answer = any(|request: Request| async move {
        let names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        let response = Response::builder().header("connection", "x-for-this-hop").header("keep-alive", "timeout=9");
        response.header("x-for-this-hop", "1").header("x-for-all", "1").body(Body::from(names.join(" "))).unwrap()
    });
    let upstream = serve(Router::new().route("/", answer)).await;
    let proxy = proxy_for(upstream).await;
    let mut headers = vec![("connection", "keep-alive, X-For-This-Hop"), ("x-for-all", "1"), ("host", "proxy.example")];
    headers.extend(HOP.map(|name| (name, "1")));
    let reply = call(Method::GET, proxy, "/pass/", &headers).await;
    let arrived: Vec<_> = reply.text.split(' ').collect();
    assert!(arrived.contains(&"x-for-all") && arrived.contains(&"host"), "{arrived:?}");
    for name in HOP.iter().chain(&["connection"]) {
        assert!(!arrived.contains(name), "{name} went up");
        assert!(!reply.headers.contains_key(*name), "{name} came down");
    }
    assert!(reply.headers.contains_key("x-for-all"));
    let mirrored = call(Method::GET, proxy_for(serve(mirror()).await).await, "/pass/", &headers).await;
    assert!(!mirrored.text.contains("proxy.example"), "the upstream's own name: {}", mirrored.text);
}

/// The second chunk is sent after the first has come back: nothing buffers a
/// whole body.
#[tokio::test]
async fn bodies_are_streams_both_ways() {
    let echo = Router::new().fallback(|body: Body| async move { body });
    let proxy = proxy_for(serve(echo).await).await;
    for path in ["/pass/", "/guard/"] {
        let (chunks, body) = Chunks::new();
        chunks.send("one").await;
        let request = http::Request::post(format!("http://{proxy}{path}")).body(body).unwrap();
        let mut response = client().request(request).await.unwrap().into_body();
        for (chunk, next) in [("one", "two"), ("two", "three")] {
            let frame = response.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(frame, chunk, "{path}");
            chunks.send(next).await;
        }
        drop(chunks);
        assert_eq!(response.collect().await.unwrap().to_bytes(), "three", "{path}");
    }
}

#[tokio::test]
async fn an_unreachable_upstream_is_a_bad_gateway() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(get(proxy_for(closed).await, "/pass/").await.status, 502);
}
