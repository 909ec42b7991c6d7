//! The layer around real tonic servers and under real tonic clients, over
//! sockets.
#![allow(clippy::unwrap_used)]

#[path = "common/certificates.rs"]
mod certificates;
mod common;
#[path = "../examples/proto/mod.rs"]
mod proto;
#[path = "../examples/proto/shop.rs"]
mod serving;

#[path = "tonic/bodies.rs"]
mod bodies;
#[path = "tonic/client.rs"]
mod client;
#[path = "tonic/deadlines.rs"]
mod deadlines;
#[path = "tonic/feedback.rs"]
mod feedback;
#[path = "tonic/lies.rs"]
mod lies;
#[path = "tonic/messages.rs"]
mod messages;
#[path = "tonic/meters.rs"]
mod meters;
#[path = "tonic/rejection.rs"]
mod rejection;
#[path = "tonic/rules.rs"]
mod rules;
#[path = "tonic/streams.rs"]
mod streams;
#[path = "tonic/tenants.rs"]
mod tenants;
#[path = "tonic/tls.rs"]
mod tls;
#[path = "tonic/web.rs"]
mod web;

use tonic::{
    Request,
    transport::{Channel, Server, server::TcpIncoming},
};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule};

use self::{
    proto::{
        GetRequest, Imported, ListRequest, Product, products_client::ProductsClient, products_server::ProductsServer,
    },
    serving::Shop,
};

const GET: &str = "/shop.v1.Products/Get";
const LIST: &str = "/shop.v1.Products/List";

/// Serves on a free port, and returns its address.
async fn start<F>(serve: impl FnOnce(TcpIncoming) -> F) -> String
where
    F: Future<Output = Result<(), tonic::transport::Error>> + Send + 'static,
{
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    tokio::spawn(serve(incoming));
    address.to_string()
}

/// A shop limited by `layer`.
async fn shop(layer: RateLimitLayer) -> ProductsClient<Channel> {
    let router = Server::builder().layer(layer).add_service(ProductsServer::new(Shop));
    connect(&start(|incoming| router.serve_with_incoming(incoming)).await).await
}

async fn connect(address: &str) -> ProductsClient<Channel> {
    ProductsClient::connect(format!("http://{address}")).await.unwrap()
}

fn product(id: &str) -> GetRequest {
    GetRequest { id: id.into() }
}

/// By the tenant in the call's metadata.
fn by<T>(tenant: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-api-key", tenant.parse().unwrap());
    request
}

/// One counter for all callers, on the system clock.
fn everyone(rule: Rule) -> RateLimitLayer {
    layer(Policy::new().rule(rule.per([])))
}

fn layer(policy: impl Into<Policy>) -> RateLimitLayer {
    RateLimitLayer::new(RateLimiter::new(policy).unwrap())
}

/// A rate so low that nothing refills during a test.
fn hourly(limit: u64) -> Quota {
    Quota::per_day(24 * limit).burst(limit)
}
