//! gRPC-Web, with the layer on either side of the translation, and similar
//! content types.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{BufMut, Bytes, BytesMut};
use http::Method;
use prost::Message;
use tonic::{Code, Status, transport::Server};
use tonic_types::StatusExt;
use tonic_web::GrpcWebLayer;
use tower_ratelimit::Rule;

use super::{
    GET, Product, ProductsServer, Shop,
    common::{Caller, Reply},
    everyone, hourly, product, start,
};

const KINDS: [&str; 4] = [
    "application/grpc-web",
    "application/grpc-web+proto",
    "application/grpc-web-text",
    "application/grpc-web-text+proto",
];

/// A message with its five-byte prefix.
fn framed(message: &impl Message) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.encoded_len() as u32);
    frame.extend_from_slice(&message.encode_to_vec());
    frame.freeze()
}

async fn get(caller: &Caller, kind: &str) -> Reply {
    let body = framed(&product("lamp"));
    let body = if kind.contains("text") { STANDARD.encode(body).into() } else { body };
    let headers = [("content-type", kind), ("accept", kind)].map(|(name, value)| (name, value.as_bytes()));
    caller.send(Method::POST, GET, &headers, body).await
}

fn decoded(reply: &Reply, kind: &str) -> Bytes {
    match kind.contains("text") {
        // Each part is padded separately.
        true => reply.body.chunks(4).flat_map(|digits| STANDARD.decode(digits).unwrap()).collect(),
        false => reply.body.clone(),
    }
}

fn limited() -> tower_ratelimit::RateLimitLayer {
    everyone(Rule::new("get").tier(hourly(1)))
}

/// The outcomes in a browser, call by call.
async fn passes_once_then_is_rejected(address: &str, kind: &str) {
    let caller = Caller::new(address.parse().unwrap());
    let went = get(&caller, kind).await;
    let body = decoded(&went, kind);
    assert_eq!(Product::decode(&body[5..5 + body[4] as usize]).unwrap().id, "lamp", "{kind}");
    assert_eq!(went.field("x-ratelimit-remaining"), "0");

    let rejected = get(&caller, kind).await;
    assert_eq!(rejected.status, 200, "{kind}");
    // Its message's encoding may be named or not: tonic-web always does.
    assert_eq!(rejected.field("content-type").trim_end_matches("+proto"), kind.trim_end_matches("+proto"));
    assert!(rejected.body.is_empty(), "{:?}", rejected.body);
    let status = Status::from_header_map(&rejected.headers).unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.get_details_retry_info().unwrap().retry_delay.is_some());
    assert_eq!(status.get_details_quota_failure().unwrap().violations[0].subject, "get");
    assert!(rejected.integer("retry-after") > 3_000);
}

#[tokio::test]
async fn the_layer_inside_of_the_translation() {
    for kind in KINDS {
        let mut server = Server::builder().accept_http1(true).layer(GrpcWebLayer::new()).layer(limited());
        let router = server.add_service(ProductsServer::new(Shop));
        passes_once_then_is_rejected(&start(|incoming| router.serve_with_incoming(incoming)).await, kind).await;
    }
}

#[tokio::test]
async fn the_layer_outside_of_the_translation() {
    for kind in KINDS {
        let mut server = Server::builder().accept_http1(true).layer(limited()).layer(GrpcWebLayer::new());
        let router = server.add_service(ProductsServer::new(Shop));
        passes_once_then_is_rejected(&start(|incoming| router.serve_with_incoming(incoming)).await, kind).await;
    }
}

/// A similar content type is HTTP, and gets an HTTP response.
#[tokio::test]
async fn similar_content_types_are_not_grpc() {
    let mut server = Server::builder().accept_http1(true).layer(everyone(Rule::new("shut").tier(hourly(0).burst(1))));
    let router = server.add_service(ProductsServer::new(Shop));
    let caller = Caller::new(start(|incoming| router.serve_with_incoming(incoming)).await.parse().unwrap());
    for kind in ["application/grpcfoo", "application/grpc2", "application/grpc-webfoo", "application/json", ""] {
        let reply = get(&caller, kind).await;
        assert_eq!(reply.status, 429, "{kind}");
        assert_eq!(reply.field("content-type"), "application/problem+json", "{kind}");
        assert_eq!(reply.field("grpc-status"), "", "{kind}");
    }
    for kind in ["application/grpc;x=y", "Application/gRPC+json", "application/grpc-web-text+thrift"] {
        let reply = get(&caller, kind).await;
        assert_eq!((reply.status.as_u16(), &*reply.field("grpc-status")), (200, "8"), "{kind}");
        assert_eq!(reply.field("content-type"), kind);
    }
}
