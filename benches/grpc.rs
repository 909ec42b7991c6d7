//! The cost that the layer adds to a call of a tonic server: equal calls to a
//! bare server and to servers behind the layer, interleaved in one run.
//!
//! `cargo bench --bench grpc --features tonic`

#[path = "../examples/proto/mod.rs"]
mod proto;
#[path = "../examples/proto/shop.rs"]
mod shop;

use std::{error::Error, hint::black_box};

use http::Request;
use http_body_util::BodyExt;
use tokio::{runtime::Builder, time::Instant};
use tonic::{
    body::Body,
    service::Routes,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::{Headers, Quota, RateLimitLayer, RateLimiter, tenant};

use self::{
    proto::{GetRequest, products_client::ProductsClient, products_server::ProductsServer},
    shop::Shop,
};

type Failure = Box<dyn Error + Send + Sync>;

const ROUNDS: usize = 15;
const CALLS: usize = 4_000;
const AT_ONCE: usize = 16;
const IN_PROCESS: u32 = 20_000;

fn layer(headers: Headers) -> Result<RateLimitLayer, Failure> {
    let limiter = RateLimiter::new(Quota::per_second(1_000_000_000))?;
    Ok(RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")).headers(headers))
}

/// A limit of 0, which rejects every call.
fn rejecting_layer() -> Result<RateLimitLayer, Failure> {
    Ok(RateLimitLayer::new(RateLimiter::new(Quota::per_second(0))?).tenant(tenant::header("x-api-key")))
}

macro_rules! serve {
    ($server:expr) => {{
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
        let address = incoming.local_addr()?;
        tokio::spawn($server.add_service(ProductsServer::new(Shop)).serve_with_incoming(incoming));
        ProductsClient::new(Endpoint::try_from(format!("http://{address}"))?.connect().await?)
    }};
}

/// Microseconds a call, with `AT_ONCE` concurrent calls.
async fn over_sockets(shop: &ProductsClient<Channel>) -> Result<f64, Failure> {
    let start = Instant::now();
    let callers = (0..AT_ONCE).map(|n| {
        let mut shop = shop.clone();
        tokio::spawn(async move {
            for _ in 0..CALLS / AT_ONCE {
                let mut request = tonic::Request::new(GetRequest { id: "lamp".into() });
                request.metadata_mut().insert("x-api-key", format!("tenant-{n}").parse()?);
                shop.get(request).await?;
            }
            Ok::<_, Failure>(())
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await??;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / CALLS as f64)
}

/// Nanoseconds a call of the service without sockets, including the body.
async fn in_process<S, B>(mut service: S) -> Result<f64, Failure>
where
    S: Service<Request<Body>, Response = http::Response<B>>,
    S::Error: Into<Failure>,
    B: http_body::Body,
    B::Error: Into<Failure>,
{
    let message = bytes::Bytes::from_static(b"\0\0\0\0\x06\x0a\x04lamp");
    let start = Instant::now();
    for _ in 0..IN_PROCESS {
        let body = Body::new(http_body_util::Full::new(message.clone()));
        let request = Request::post("http://localhost/shop.v1.Products/Get")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("x-api-key", "acme")
            .body(body)?;
        let response = service.ready().await.map_err(Into::into)?.call(request).await.map_err(Into::into)?;
        black_box(response.into_body().collect().await.map_err(Into::into)?);
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(IN_PROCESS))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<(), Failure> {
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let bare = serve!(Server::builder());
        let limited = serve!(Server::builder().layer(layer(Headers::NONE)?));
        let with_headers = serve!(Server::builder().layer(layer(Headers::ALL)?));
        let servers = [("bare", &bare), ("limited", &limited), ("limited, headers", &with_headers)];
        let mut took = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            for ((_, shop), took) in servers.iter().zip(&mut took) {
                took.push(over_sockets(shop).await?);
            }
        }
        println!("over sockets, {AT_ONCE} calls at once, client and server in one process:");
        let [bare_times, ..] = &took;
        for ((name, _), took) in servers.iter().zip(&took) {
            let ratios = took.iter().zip(bare_times).map(|(took, bare)| took / bare);
            println!("  {name:18} {:7.2} us a call, {:.3} of bare", median(took.clone()), median(ratios.collect()));
        }

        let routes = || Routes::new(ProductsServer::new(Shop)).prepare();
        let mut took = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            let round = [
                in_process(routes()).await?,
                in_process(layer(Headers::NONE)?.layer(routes())).await?,
                in_process(layer(Headers::ALL)?.layer(routes())).await?,
                in_process(rejecting_layer()?.layer(routes())).await?,
            ];
            took.iter_mut().zip(round).for_each(|(took, one)| took.push(one));
        }
        println!("the service without sockets:");
        let [bare_times, ..] = &took;
        for (name, took) in ["bare", "limited", "limited, headers", "rejected"].iter().zip(&took) {
            let added = took.iter().zip(bare_times).map(|(took, bare)| took - bare);
            println!("  {name:18} {:7.0} ns a call, {:+.0} to bare", median(took.clone()), median(added.collect()));
        }
        Ok(())
    })
}
