use std::error::Error;

use super::*;
use crate::{backend::redis::settings::Servers, error::BackendErrorKind};

fn error(builder: RedisBuilder) -> ConfigError {
    builder.settings().unwrap_err()
}

#[test]
fn a_setting_overrides_the_url() {
    let builder = RedisBuilder::new().url("redis://one:two@host:7000/3");
    let servers = builder.clone().settings().unwrap().servers;
    let login = servers.named[0].redis_settings();
    assert_eq!((login.username(), login.password(), login.db()), (Some("one"), Some("two"), 3));
    let builder = builder.username("three").password("four").database(5);
    let servers = builder.settings().unwrap().servers;
    let login = servers.named[0].redis_settings();
    assert_eq!((login.username(), login.password(), login.db()), (Some("three"), Some("four"), 5));
}

#[test]
fn the_login_of_the_primary_is_not_that_of_its_sentinels() {
    let builder = RedisBuilder::new().sentinel("main", ["redis://:theirs@a", "redis://b"]).password("its");
    let Servers { deployment, named: sentinels, login } = builder.settings().unwrap().servers;
    assert_eq!(deployment, Deployment::Sentinel("main".into()));
    assert_eq!(sentinels[0].redis_settings().password(), Some("theirs"));
    assert_eq!(sentinels[1].redis_settings().password(), None);
    assert_eq!(login.password(), Some("its"));
}

#[test]
fn an_invalid_setting_is_named() {
    let new = RedisBuilder::new;
    let none: [&str; 0] = [];
    for (builder, key) in [
        (new().url("http://host"), "url"),
        (new().url("redis://"), "url"),
        (new().url(""), "url"),
        (new().cluster(none), "cluster"),
        (new().cluster(["unix:///tmp/socket"]), "cluster"),
        (new().cluster(["redis://host"]).database(1), "database"),
        (new().sentinel("main", none), "sentinel"),
        (new().connections(0), "connections"),
        (new().max_batch(0), "max_batch"),
        (new().connections(usize::MAX), "connections"),
        (new().max_batch(usize::MAX), "max_batch"),
        (new().deadline(Duration::ZERO), "deadline"),
        (new().connect_timeout(Duration::ZERO), "connect_timeout"),
        (new().lease(Duration::ZERO), "lease"),
        (new().breaker(0, Duration::from_secs(1), Duration::from_secs(1)), "breaker"),
        (new().breaker(1, Duration::ZERO, Duration::from_secs(1)), "breaker"),
        (new().breaker(1, Duration::from_secs(2), Duration::from_secs(1)), "breaker"),
    ] {
        assert_eq!(error(builder).key(), key);
    }
}

#[test]
fn no_error_or_debug_output_shows_a_secret() {
    for url in ["redis://me:hush@host:1/x", "http://me:hush@host:1", "unix:///tmp/s?pass=hush&db=x", "me:hush@host"] {
        let error = error(RedisBuilder::new().url(url)).to_string();
        assert!(!error.contains("hush"), "{error}");
        assert!(error.contains("host") || error.contains("/tmp/s"), "{error}");
        assert!(!format!("{:?}", RedisBuilder::new().url(url)).contains("hush"));
    }
    let settings = RedisBuilder::new().url("redis://me:hush@host").password("hush").settings().unwrap();
    assert!(!format!("{settings:?}").contains("hush"));
    let settings = RedisBuilder::new().sentinel("main", ["redis://:hush@host"]).password("hush").settings().unwrap();
    assert!(!format!("{settings:?}").contains("hush"));
}

#[test]
fn a_build_outside_a_runtime_is_an_error() {
    assert!(RedisBuilder::new().connect_lazy().unwrap_err().to_string().contains("tokio runtime"));
}

#[tokio::test]
async fn a_connect_error_names_the_address_and_no_password() {
    let socket = "/nonexistent/redis.sock";
    let error = RedisBuilder::new().url(format!("unix://{socket}?pass=hush")).connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    let text = error.source().unwrap().to_string();
    assert!(text.contains(socket) && !text.contains("hush"), "{text}");
    let error = RedisBuilder::new().url("nonsense").connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
}

#[cfg(feature = "tls")]
#[test]
fn certificates_are_checked_and_need_tls() {
    let secure = || RedisBuilder::new().url("rediss://host");
    let pem = "-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n";
    for builder in [
        secure().root_certificate("junk"),
        secure().root_certificate(pem),
        secure().client_certificate("junk", "junk"),
        RedisBuilder::new().url("redis://host").root_certificate(pem),
    ] {
        assert_eq!(error(builder).key(), "certificate");
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_without_a_cryptography_provider_does_not_panic() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("rediss://{}", listener.local_addr().unwrap());
    let rejecting = tokio::spawn(async move { drop(listener.accept().await) });
    let error = RedisBuilder::new().url(url).connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error:?}");
    rejecting.await.unwrap();
}
