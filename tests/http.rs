//! The middleware over plain hyper: real sockets and a real client, or the
//! service itself where no client would send such a request.
#![allow(clippy::unwrap_used)]

mod common;

#[path = "http/any_request.rs"]
mod any_request;
#[path = "http/client.rs"]
mod client;
#[path = "http/exempt.rs"]
mod exempt;
#[path = "http/headers.rs"]
mod headers;
#[path = "http/in_flight.rs"]
mod in_flight;
#[path = "http/keyed.rs"]
mod keyed;
#[path = "http/keys.rs"]
mod keys;
#[path = "http/matching.rs"]
mod matching;
#[path = "http/own_limits.rs"]
mod own_limits;
#[path = "http/preflights.rs"]
mod preflights;
#[path = "http/rejection.rs"]
mod rejection;
#[path = "http/reload.rs"]
mod reload;
#[path = "http/settlement.rs"]
mod settlement;
#[path = "http/tenants.rs"]
mod tenants;
#[path = "http/units.rs"]
mod units;
#[path = "http/waits.rs"]
mod waits;

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, Service, service_fn};
use tower_ratelimit::RateLimitLayer;

use self::common::{Caller, serve};

/// The limited service. It answers every request.
fn hello<B: Send + 'static>()
-> impl Service<Request<B>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send> + Clone + Send {
    service_fn(|_: Request<B>| async { Ok(Response::new(Full::from("hello"))) })
}

/// A server limited by `layer`.
async fn limited(layer: RateLimitLayer) -> Caller {
    serve(layer.layer(hello())).await
}
