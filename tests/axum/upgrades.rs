//! WebSockets of axum under a concurrency limit, with real clients.

use std::{net::SocketAddr, time::Duration};

use axum::{Extension, Router, extract::ws::WebSocketUpgrade, response::Response, routing::get};
use tokio::{net::TcpStream, time::Instant};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule, middleware::ConnectionPermit};

use super::serve;

type Client = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Keeps the permit until the client has left.
async fn keeping(permit: Option<Extension<ConnectionPermit>>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |mut socket| {
        let _permit = permit;
        while let Some(Ok(_)) = socket.recv().await {}
    })
}

async fn dropping(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |mut socket| while let Some(Ok(_)) = socket.recv().await {})
}

async fn limited(policy: Policy) -> (SocketAddr, RateLimiter) {
    let limiter = RateLimiter::new(policy).unwrap();
    let app = Router::new().route("/keeping", get(keeping)).route("/dropping", get(dropping));
    let inner = RateLimitLayer::new(RateLimiter::new(Quota::concurrent(100)).unwrap());
    // Two layers: the handler keeps the permits of both.
    let server = serve(app.layer(inner).layer(RateLimitLayer::new(limiter.clone()))).await;
    (server.address, limiter)
}

async fn connect(server: SocketAddr, path: &str) -> Result<Client, u16> {
    match connect_async(format!("ws://{server}{path}")).await {
        Ok((client, _)) => Ok(client),
        Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

pub(super) async fn until_in_flight(limiter: &RateLimiter, wanted: usize) {
    let start = Instant::now();
    while limiter.stats().permits != wanted {
        assert!(start.elapsed() < Duration::from_secs(30), "{} of {wanted} in flight", limiter.stats().permits);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_websocket_is_in_flight_until_it_ends() {
    let (server, limiter) = limited(Policy::new().rule(Rule::new("sockets").tier(Quota::concurrent(2)))).await;
    let mut open = Vec::new();
    for expected in [None, None, Some(429), Some(429)] {
        match connect(server, "/keeping").await {
            Ok(client) => open.push(client),
            Err(status) => assert_eq!(Some(status), expected),
        }
    }
    assert_eq!((open.len(), limiter.stats().permits), (2, 2));

    // One says goodbye, the other one breaks off.
    open.remove(0).close(None).await.unwrap();
    until_in_flight(&limiter, 1).await;
    open.push(connect(server, "/keeping").await.unwrap());
    assert_eq!(connect(server, "/keeping").await.err(), Some(429));
    drop(open);
    until_in_flight(&limiter, 0).await;
}

#[tokio::test]
async fn without_its_permit_a_websocket_is_in_flight_until_its_response() {
    let (server, limiter) = limited(Quota::concurrent(1).into()).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        until_in_flight(&limiter, 0).await;
        open.push(connect(server, "/dropping").await.unwrap());
    }
}

/// A request that only asks for an upgrade ends with its response.
#[tokio::test]
async fn an_upgrade_that_fails_is_not_in_flight() {
    let (server, limiter) = limited(Quota::concurrent(1).into()).await;
    for _ in 0..3 {
        assert_eq!(connect(server, "/nowhere").await.err(), Some(404));
        until_in_flight(&limiter, 0).await;
    }
}
