//! TLS: the backend does not connect to a server without a trusted certificate.

use std::{fs, time::Duration};

use tokio::time::Instant;
use tower_ratelimit::{Descriptor, Quota, backend::Redis, error::BackendErrorKind};

use super::{
    LONG, SCHEDULING, Seen, ask,
    certificates::Certificates,
    chain, closed, limiter,
    server::{Options, Server},
    shared_machine, until,
};

struct Secured {
    _server: Server,
    url: String,
    files: Certificates,
}

/// `clients` says whether clients need a certificate: `yes` or `no`.
async fn secured(name: &str, clients: &str) -> Secured {
    let files = Certificates::make(name);
    let options = Options::default().silent().set("port", ["0"]).set("tls-port", ["{port}"]);
    let options = options.set("tls-key-file", [&files.key]).set("tls-cert-file", [&files.certificate]);
    let server = options.set("tls-ca-cert-file", [&files.root]).set("tls-auth-clients", [clients]).start().await;
    Secured { url: format!("rediss://127.0.0.1:{}", server.port()), _server: server, files }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_certificate_is_trusted() {
    let _machine = shared_machine().await;
    let server = secured("known", "no").await;
    let root = fs::read(&server.files.root).unwrap();
    let redis = Redis::builder().url(&server.url).root_certificate(root).deadline(LONG).connect().await.unwrap();
    assert_eq!(ask(&limiter(closed(Quota::per_day(5)), &redis), "/", "acme").await, Seen::Admitted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_authenticates_by_its_certificate() {
    let _machine = shared_machine().await;
    let server = secured("both", "yes").await;
    let [root, certificate, key] =
        [&server.files.root, &server.files.certificate, &server.files.key].map(|file| fs::read(file).unwrap());
    let builder = Redis::builder().url(&server.url).root_certificate(root).deadline(LONG);
    let builder = builder.connect_timeout(Duration::from_millis(500));
    builder.clone().connect().await.expect_err("a client without a certificate");
    let redis = builder.client_certificate(certificate, key).connect().await.unwrap();
    assert_eq!(ask(&limiter(closed(Quota::per_day(5)), &redis), "/", "acme").await, Seen::Admitted);
}

/// An error when connecting, not with the first request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_certificate_is_an_error() {
    let _machine = shared_machine().await;
    for text in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let error =
            Redis::builder().url("rediss://127.0.0.1:1").root_certificate(text).connect().await.expect_err(text);
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{text:?}: {}", chain(&error));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsigned_certificate_is_not_trusted() {
    let _machine = shared_machine().await;
    let server = secured("unknown", "no").await;
    let start = Instant::now();
    let timeout = Duration::from_millis(500);
    let error = Redis::builder().url(&server.url).connect_timeout(timeout).connect().await.unwrap_err();
    assert!(start.elapsed() < 4 * timeout + SCHEDULING, "{:?}", start.elapsed());
    assert!(chain(&error).to_lowercase().contains("certificate"), "{}", chain(&error));
    let redis = Redis::builder().url(&server.url).connect_lazy().unwrap();
    assert_eq!(ask(&limiter(closed(Quota::per_day(5)), &redis), "/", "acme").await, Seen::Failed);
}

/// A server without TLS where TLS is set, and the reverse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_and_plain_do_not_connect() {
    let _machine = shared_machine().await;
    let (plain, server) = (Server::start().await, secured("mixed", "no").await);
    for url in [plain.url().replace("redis:", "rediss:"), server.url.replace("rediss:", "redis:")] {
        let builder = Redis::builder().url(&url).connect_timeout(Duration::from_millis(500));
        let error = builder.connect().await.expect_err(&url);
        assert_ne!(error.kind(), BackendErrorKind::Unsupported, "{}", chain(&error));
    }
}

/// The connection that receives cooldowns uses TLS as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cooldowns_are_received_over_tls() {
    let _machine = shared_machine().await;
    let secured = secured("hears", "yes").await;
    let pem = |path: &str| fs::read(path).unwrap();
    let instance = async || {
        let redis = Redis::builder().url(&secured.url).deadline(LONG).root_certificate(pem(&secured.files.root));
        let redis =
            redis.client_certificate(pem(&secured.files.certificate), pem(&secured.files.key)).connect().await.unwrap();
        limiter(Quota::per_second(100), &redis)
    };
    let call = Descriptor::new("/").tenant("acme");
    let (one, other) = (instance().await, instance().await);
    one.cool_down(&call, Duration::from_secs(600));
    until("the cooldown of another instance", async || other.cooldown(&call)).await;
}
