//! Connections over TLS: their tenants and limits.

use std::{fs, process::Command};

use tonic::{
    Code,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig},
};
use tower_ratelimit::{Policy, Rule, tenant};

use super::{
    ProductsClient, ProductsServer, RateLimitLayer, Shop, certificates::Certificates, hourly, layer, product, start,
};

fn identity(certificates: &Certificates) -> Identity {
    Identity::from_pem(read(&certificates.certificate), read(&certificates.key))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap()
}

/// A shop over TLS that requests optional client certificates signed by
/// `clients`.
async fn secured(own: &Certificates, clients: &Certificates, layer: RateLimitLayer) -> String {
    let asks =
        ServerTlsConfig::new().identity(identity(own)).client_ca_root(Certificate::from_pem(read(&clients.root)));
    let server = Server::builder().tls_config(asks.client_auth_optional(true)).unwrap();
    let router = server.layer(layer).add_service(ProductsServer::new(Shop));
    start(|incoming| router.serve_with_incoming(incoming)).await
}

async fn connect(address: &str, server: &Certificates, own: Option<&Certificates>) -> ProductsClient<Channel> {
    let mut tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&server.root))).domain_name("localhost");
    if let Some(own) = own {
        tls = tls.identity(identity(own));
    }
    let endpoint = Endpoint::try_from(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
    ProductsClient::new(endpoint.connect().await.unwrap())
}

/// In the form of `openssl`, without case and colons.
fn fingerprint(certificates: &Certificates) -> String {
    let arguments = ["x509", "-noout", "-fingerprint", "-sha256", "-in", &certificates.certificate];
    let printed = Command::new("openssl").args(arguments).output().unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    text.trim().rsplit('=').next().unwrap().replace(':', "").to_lowercase()
}

#[tokio::test]
async fn a_tenant_is_a_certificate_or_an_address() {
    let (server, caller) = (Certificates::make("tonic-server"), Certificates::make("tonic-caller"));
    let known = fingerprint(&caller);
    assert_eq!(known.len(), 64, "{known}");
    let policy = Policy::new()
        .rule(Rule::new("certified").tier(hourly(1)).tenant(known, [hourly(3)]).tenant("127.0.0.1", [hourly(2)]));
    let layer = layer(policy).tenant(tenant::client_certificate().or(tenant::peer_ip()));
    let address = secured(&server, &caller, layer).await;

    for (own, admitted) in [(Some(&caller), 3), (None, 2)] {
        let mut shop = connect(&address, &server, own).await;
        for n in 0..=admitted {
            let result = shop.get(product("a")).await.map(|_| ()).map_err(|status| status.code());
            let expected = if n < admitted { Ok(()) } else { Err(Code::ResourceExhausted) };
            assert_eq!(result, expected, "{n}, with a certificate: {}", own.is_some());
        }
    }
}
