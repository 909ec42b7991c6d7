//! Tenants of calls.

use std::net::Ipv4Addr;

use http::{HeaderMap, HeaderValue};
use tonic::{
    Code, Request, Status,
    metadata::{MetadataMap, MetadataValue},
    service::InterceptorLayer,
    transport::{Endpoint, Server},
};
use tower_ratelimit::{Policy, Rule, Tenant, tenant};

use super::{ProductsClient, ProductsServer, Shop, by, connect, hourly, layer, product, shop, start};

#[tokio::test]
async fn by_metadata() {
    let mut shop = shop(layer(hourly(1)).tenant(tenant::header("x-api-key"))).await;
    for tenant in ["acme", "initech"] {
        shop.get(by(tenant, product("a"))).await.unwrap();
        assert_eq!(shop.get(by(tenant, product("a"))).await.unwrap_err().code(), Code::ResourceExhausted);
    }
}

/// The same bytes are the same tenant, however a client encodes them.
#[tokio::test]
async fn by_binary_metadata() {
    const KEY: &str = "x-tenant-bin";
    // In base64, where neither padding nor the unused bits count: `AP/+` and `AP/9AQ`.
    let (acme, initech) = (&b"\0\xff\xfe"[..], &b"\0\xff\xfd\x01"[..]);
    let rule = Rule::new("get").tier(hourly(1)).tenant("AP/9AQ", [hourly(3)]);
    let mut shop = shop(layer(Policy::new().rule(rule)).tenant(tenant::header(KEY))).await;
    let by = |tenant: &[u8]| {
        let mut request = Request::new(product("a"));
        request.metadata_mut().insert_bin(KEY, MetadataValue::from_bytes(tenant));
        request
    };
    let raw = |values: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(KEY, HeaderValue::from_static(value));
        }
        let mut request = Request::new(product("a"));
        *request.metadata_mut() = MetadataMap::from_headers(headers);
        request
    };
    shop.get(by(acme)).await.unwrap();
    for request in [by(acme), raw(&["AP/+"])] {
        assert_eq!(shop.get(request).await.unwrap_err().code(), Code::ResourceExhausted);
    }
    for request in [by(initech), raw(&["AP/9AQ=="]), raw(&["AP/9AR"])] {
        shop.get(request).await.unwrap();
    }
    assert_eq!(shop.get(by(initech)).await.unwrap_err().code(), Code::ResourceExhausted);
    for two in [raw(&["AP/+", "AP/9AQ"]), raw(&["AP/+,AP/9AQ"])] {
        assert_eq!(shop.get(two).await.unwrap_err().code(), Code::InvalidArgument, "more than one tenant");
    }
    shop.get(raw(&["no base64!"])).await.unwrap();
    assert_eq!(shop.get(product("a")).await.unwrap_err().code(), Code::ResourceExhausted, "both have no tenant");
}

/// By default. All of 127.0.0.0/8 is this machine.
#[tokio::test]
async fn by_the_address_of_the_peer() {
    let router = Server::builder().layer(layer(hourly(1))).add_service(ProductsServer::new(Shop));
    let address = start(|incoming| router.serve_with_incoming(incoming)).await;
    for last in [1, 2] {
        let from = |last| {
            Endpoint::try_from(format!("http://{address}"))
                .unwrap()
                .local_address(Some(Ipv4Addr::new(127, 0, 0, last).into()))
        };
        let mut shop = ProductsClient::new(from(last).connect().await.unwrap());
        shop.get(product("a")).await.unwrap();
        // Another connection from there is the same tenant.
        let mut again = ProductsClient::new(from(last).connect().await.unwrap());
        assert_eq!(again.get(product("a")).await.unwrap_err().code(), Code::ResourceExhausted);
    }
}

#[tokio::test]
async fn by_an_extension_of_an_interceptor() {
    let signed_in = |mut request: Request<()>| {
        let known = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let tenant = match known {
            Some("Bearer pro") => Tenant::new("acme").plan("pro"),
            Some(_) => Tenant::new("initech"),
            None => return Err(Status::unauthenticated("who are you?")),
        };
        request.extensions_mut().insert(tenant);
        Ok(request)
    };
    let policy = Policy::new().rule(Rule::new("get").tier(hourly(1)).plan("pro", [hourly(3)]));
    let router = Server::builder()
        .layer(InterceptorLayer::new(signed_in))
        .layer(layer(policy).tenant(tenant::extension::<Tenant>()))
        .add_service(ProductsServer::new(Shop));
    let mut shop = connect(&start(|incoming| router.serve_with_incoming(incoming)).await).await;
    for (token, admitted) in [("Bearer pro", 3), ("Bearer other", 1)] {
        for n in 0..=admitted {
            let mut request = Request::new(product("a"));
            request.metadata_mut().insert("authorization", token.parse().unwrap());
            let result = shop.get(request).await.map_err(|status| status.code());
            assert_eq!(result.is_ok(), n < admitted, "{token} {n}: {result:?}");
        }
    }
    assert_eq!(shop.get(product("a")).await.unwrap_err().code(), Code::Unauthenticated);
}

/// A long name works until HTTP/2 rejects the header, before it is counted.
#[tokio::test]
async fn a_tenant_of_any_length() {
    let rule = Rule::new("get").tier(hourly(1)).tier(tower_ratelimit::Quota::concurrent(1));
    let mut shop = shop(layer(Policy::new().rule(rule)).tenant(tenant::header("x-api-key"))).await;
    let long = "k".repeat(12_000);
    shop.get(by(&long, product("a"))).await.unwrap();
    assert_eq!(shop.get(by(&long, product("a"))).await.unwrap_err().code(), Code::ResourceExhausted);
    shop.get(by(&long[1..], product("a"))).await.unwrap();

    let huge = shop.get(by(&"k".repeat(1_000_000), product("a"))).await.unwrap_err();
    assert!(huge.message().contains("h2 protocol error") && huge.details().is_empty(), "{huge:?}");
    // Other tenants are unaffected.
    shop.get(by("acme", product("a"))).await.unwrap();
}
