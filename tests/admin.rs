//! The page for operators: what it shows, what it does, who may use it, and how a browser
//! sees it.
#![allow(clippy::unwrap_used)]

#[path = "admin/actions.rs"]
mod actions;
#[path = "admin/browser.rs"]
mod browser;
#[path = "admin/shown.rs"]
mod shown;

use std::net::SocketAddr;

use axum::Router;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower_ratelimit::{
    Descriptor, Dimension, Policy, Quota, RateLimiter, Rule, admin::Admin, backend::Local, testing::ManualClock,
};

/// A rule for each tenant, and one in shadow mode.
fn policy(limit: u64) -> Policy {
    let search = Rule::new("search").path("/search").per([Dimension::Tenant]).tier(Quota::per_day(limit));
    let shadow = Rule::new("trial").path("/search").shadow(true).tier(Quota::per_day(1));
    Policy::new().rule(search).rule(shadow)
}

fn limiter(policy: Policy) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new();
    let builder = RateLimiter::builder().policy(policy).clock(clock.clone());
    (builder.backend(Local::new()).build().unwrap(), clock)
}

fn search(tenant: &str) -> Descriptor<'_> {
    Descriptor::new("/search").tenant(tenant)
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// The page alone, at `/admin`.
async fn serve_page(admin: Admin) -> SocketAddr {
    serve(Router::new().route_service("/admin", admin)).await
}

/// Sends a request in these words, and returns the whole response.
async fn exchange(server: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    String::from_utf8(response).unwrap()
}

async fn get(server: SocketAddr, query: &str) -> String {
    exchange(server, &format!("GET /admin{query} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")).await
}

async fn get_json(server: SocketAddr, query: &str) -> Value {
    let response = get(server, query).await;
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: application/json"), "{head}");
    serde_json::from_str(body).unwrap()
}

async fn post(server: SocketAddr, headers: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("POST /admin HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n");
    exchange(server, &format!("{head}{headers}\r\n{body}")).await
}

/// An action as the page sends it.
async fn act(server: SocketAddr, body: &str) -> String {
    post(server, "x-tower-ratelimit: 1\r\n", body).await
}
