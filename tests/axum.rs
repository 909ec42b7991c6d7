//! The middleware under axum, served over sockets.
#![allow(clippy::unwrap_used)]

mod common;

#[path = "axum/adding.rs"]
mod adding;
#[path = "axum/answers.rs"]
mod answers;
#[path = "axum/bodies.rs"]
mod bodies;
#[path = "axum/nested.rs"]
mod nested;
#[path = "axum/routing.rs"]
mod routing;
#[path = "axum/rules.rs"]
mod rules;
#[path = "axum/serving.rs"]
mod serving;
#[path = "axum/spellings.rs"]
mod spellings;
#[path = "axum/streams.rs"]
mod streams;
#[path = "axum/upgrades.rs"]
mod upgrades;

use std::net::SocketAddr;

use axum::{Router, extract::Request, response::Response, routing::MethodRouter};
use tokio::net::TcpListener;
use tower_ratelimit::{Policy, RateLimitLayer};

use self::common::{Caller, limiter};

/// Serves with connect info, so that the caller's address is known.
async fn serve(app: Router) -> Caller {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener, app).await.unwrap();
    });
    Caller::new(address)
}

fn layer(policy: impl Into<Policy>) -> RateLimitLayer {
    RateLimitLayer::new(limiter(policy).0)
}

/// Answers every method.
fn answer() -> MethodRouter {
    axum::routing::any(async |_: Request| Response::new(axum::body::Body::from("hello")))
}
