//! WebSockets under a concurrency limit: two connections at once for each tenant.
//!
//!     cargo run --example websocket --features axum
//!
//! A layer cannot see when an upgraded connection ends. **The handler must keep the
//! `ConnectionPermit`**, or the limit counts the request only until its response
//! `101 Switching Protocols` is sent, and any number of connections stay open.

use axum::{
    Extension, Router,
    extract::ws::{Message, WebSocketUpgrade},
    response::Response,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, client::IntoClientRequest, http::HeaderValue},
};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule, middleware::ConnectionPermit, tenant};

type Client = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

async fn echo(permit: Option<Extension<ConnectionPermit>>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |mut socket| {
        // Counted until this task ends.
        let _permit = permit;
        while let Some(Ok(Message::Text(text))) = socket.recv().await {
            if socket.send(Message::Text(text)).await.is_err() {
                break;
            }
        }
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rule = Rule::new("connections").path("/echo").tier(Quota::concurrent(2));
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    let layer = RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key"));
    let app = Router::new().route("/echo", get(echo)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("ws://{}/echo", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let mut open = Vec::new();
    for client in 1..=4 {
        match connect(&url).await {
            Ok(socket) => {
                println!("client {client}: connected");
                open.push(socket);
            }
            Err(Error::Http(response)) => println!("client {client}: rejected, {}", response.status()),
            Err(error) => return Err(error.into()),
        }
    }
    println!("in flight: {}", limiter.stats().permits);

    // The first client leaves, and makes way for another one.
    open.remove(0).close(None).await?;
    while limiter.stats().permits > 1 {
        tokio::task::yield_now().await;
    }
    connect(&url).await?;
    println!("client 5: connected");
    Ok(())
}

async fn connect(url: &str) -> Result<Client, Error> {
    let mut request = url.into_client_request()?;
    request.headers_mut().insert("x-api-key", HeaderValue::from_static("acme"));
    Ok(connect_async(request).await?.0)
}
