//! Calls that do not look like calls. tonic serves every request with the path
//! of a method, whatever its content type and HTTP method, so limits must apply
//! to all of them.

use http::{HeaderValue, Method, Request};
use tonic::{
    Code,
    body::Body,
    transport::{Channel, Endpoint, Server},
};
use tower::{Service, ServiceBuilder, util::MapRequestLayer};
use tower_ratelimit::{RateLimitLayer, Rule, middleware, policy::Messages};

use super::{ListRequest, Product, ProductsClient, ProductsServer, Shop, everyone, hourly, product, start};

/// A channel to a shop that charges messages, with altered requests.
async fn lying(
    layer: RateLimitLayer,
    lie: fn(&mut Request<Body>),
) -> ProductsClient<
    impl Service<Request<Body>, Response = http::Response<Body>, Error = tonic::transport::Error, Future: Send>
    + Clone
    + Send,
> {
    let router = Server::builder()
        .layer(layer)
        .layer(MapRequestLayer::new(middleware::charge_client_messages))
        .add_service(ProductsServer::new(Shop));
    let address = start(|incoming| router.serve_with_incoming(incoming)).await;
    let channel: Channel = Endpoint::try_from(format!("http://{address}")).unwrap().connect().await.unwrap();
    let changed = ServiceBuilder::new().map_request(move |mut request| {
        lie(&mut request);
        request
    });
    ProductsClient::new(changed.service(channel))
}

fn says(content_type: Option<&'static str>) -> impl Fn(&mut Request<Body>) {
    move |request| {
        request.headers_mut().remove("content-type");
        if let Some(content_type) = content_type {
            request.headers_mut().insert("content-type", HeaderValue::from_static(content_type));
        }
    }
}

const LIES: [fn(&mut Request<Body>); 5] = [
    |request| says(None)(request),
    |request| says(Some("application/json"))(request),
    |request| says(Some("application/grpc-web"))(request),
    |request| says(Some("application/grpc-web-text"))(request),
    |request| says(Some("application/grpcfoo"))(request),
];

#[tokio::test]
async fn server_messages_are_charged_whatever_the_request_claims() {
    for (n, lie) in LIES.into_iter().enumerate() {
        let mut shop = lying(everyone(Rule::new("list").tier(hourly(10)).per_message(Messages::Server)), lie).await;
        let mut products = shop.list(ListRequest { most: 50 }).await.unwrap().into_inner();
        let mut came = 0;
        let end = loop {
            match products.message().await {
                Ok(Some(_)) => came += 1,
                Ok(None) => break Code::Ok,
                Err(status) => break status.code(),
            }
        };
        assert_eq!((came, end), (10, Code::ResourceExhausted), "lie {n}");
    }
}

#[tokio::test]
async fn client_messages_are_charged_whatever_the_request_claims() {
    for (n, lie) in LIES.into_iter().enumerate() {
        let mut shop = lying(everyone(Rule::new("import").tier(hourly(10)).per_message(Messages::Client)), lie).await;
        let products = (0..50).map(|cents| Product { cents, ..Product::default() });
        let result = shop.import(tokio_stream::iter(products)).await.map(|imported| imported.into_inner().products);
        assert_eq!(result.map_err(|status| status.code()), Err(Code::ResourceExhausted), "lie {n}");
    }
}

/// With or without the headers that browsers never send.
#[tokio::test]
async fn a_call_is_no_preflight() {
    const PREFLIGHTS: [fn(&mut Request<Body>); 2] = [
        |request| {
            *request.method_mut() = Method::OPTIONS;
            request.headers_mut().insert("access-control-request-method", HeaderValue::from_static("POST"));
        },
        |request| {
            *request.method_mut() = Method::OPTIONS;
            request.headers_mut().insert("access-control-request-method", HeaderValue::from_static("POST"));
            request.headers_mut().remove("content-type");
            request.headers_mut().remove("te");
        },
    ];
    for (n, lie) in PREFLIGHTS.into_iter().enumerate() {
        let mut shop = lying(everyone(Rule::new("get").tier(hourly(1))), lie).await;
        shop.get(product("a")).await.unwrap();
        // A request without gRPC's content type is rejected in HTTP.
        assert!(shop.get(product("a")).await.is_err(), "lie {n}");
    }
}

/// A CORS layer that answers all `OPTIONS` permits the exemption, of requests
/// without content.
#[tokio::test]
async fn preflights_without_content_are_exempt_on_request() {
    let preflight: fn(&mut Request<Body>) = |request| {
        *request.method_mut() = Method::OPTIONS;
        request.headers_mut().clear();
        request.headers_mut().insert("access-control-request-method", HeaderValue::from_static("POST"));
    };
    let empty: fn(&mut Request<Body>) = |request| {
        *request.method_mut() = Method::OPTIONS;
        request.headers_mut().clear();
        request.headers_mut().insert("access-control-request-method", HeaderValue::from_static("POST"));
        *request.body_mut() = Body::empty();
    };
    for (lie, is_exempt) in [(preflight, false), (empty, true)] {
        let mut shop = lying(everyone(Rule::new("get").tier(hourly(1))).exempt_preflight(true), lie).await;
        let _ = shop.get(product("a")).await;
        let second = shop.get(product("a")).await.unwrap_err();
        // The rejection is in HTTP. What is exempt fails in tonic, which misses
        // the message.
        assert_eq!(second.message().contains("429"), !is_exempt, "{second:?}");
    }
}
