//! Mistakes in settings: each is an error at once that names the cause.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::{Quota, backend::Redis, error::BackendErrorKind};

use super::{SCHEDULING, Seen, ask, chain, closed, failure, limiter, server::Server, shared_machine, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_url_is_an_error() {
    let _machine = shared_machine().await;
    let urls = ["", "nonsense", "redis://", "http://127.0.0.1:6379", "redis://127.0.0.1:99999", "redis://:::", "\0"];
    for url in urls {
        let error = Redis::connect(url).await.expect_err(url);
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{url:?}: {}", chain(&error));
        let error = Redis::builder().url(url).connect_lazy().expect_err(url);
        assert!(!error.to_string().is_empty());
    }
    let error = Redis::builder().cluster(Vec::<String>::new()).connect_lazy().expect_err("no node");
    assert!(!error.to_string().is_empty());
    let error = Redis::builder().sentinel("limits", Vec::<String>::new()).connect_lazy().expect_err("no sentinel");
    assert!(!error.to_string().is_empty());
}

/// No output contains a secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_shows_a_password() {
    let _machine = shared_machine().await;
    let server = Server::options().password("right").start().await;
    let mut texts = Vec::new();
    let url = format!("redis://user:s3cret@127.0.0.1:{}", server.port());
    texts.push(chain(&Redis::connect(&url).await.unwrap_err()));
    texts.push(format!("{:?}", Redis::builder().url(&url)));
    texts.push(format!("{:?}", Redis::builder().url(server.url()).password("s3cret")));
    texts.push(format!("{:?}", Redis::builder().url(&url).connect_lazy()));
    texts.push(chain(&Redis::builder().url("redis://user:s3cret@127.0.0.1:99999").connect_lazy().unwrap_err()));
    texts.push(chain(&Redis::connect("http://user:s3cret@127.0.0.1").await.unwrap_err()));
    assert!(!texts.iter().any(|text| text.contains("s3cret")), "{texts:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_host_is_an_error() {
    let _machine = shared_machine().await;
    let mut stopped = Server::start().await;
    stopped.kill();
    for url in [stopped.url(), "redis://nowhere.invalid:6379".to_owned()] {
        let timeout = Duration::from_millis(500);
        let start = Instant::now();
        let error = Redis::builder().url(&url).connect_timeout(timeout).connect().await.expect_err(&url);
        let took = start.elapsed();
        assert!(took < 4 * timeout + SCHEDULING, "{url}: {took:?}");
        let kind = error.kind();
        let expected = matches!(kind, BackendErrorKind::Unavailable | BackendErrorKind::Timeout);
        assert!(expected, "{url}: {kind:?}: {}", chain(&error));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_misconfigured() {
    let _machine = shared_machine().await;
    let server = Server::options().password("right").start().await;
    let connects = Redis::builder().url(server.url()).password("right").connect().await;
    assert_eq!(ask(&limiter(closed(Quota::per_day(5)), &connects.unwrap()), "/", "acme").await, Seen::Admitted);
    for wrong in [
        Redis::builder().url(server.url()),
        Redis::builder().url(server.url()).password("wrong"),
        Redis::builder().url(server.url()).username("unknown").password("right"),
        Redis::builder().url(format!("redis://:wrong@127.0.0.1:{}", server.port())),
    ] {
        let error = wrong.clone().connect().await.expect_err("a wrong password");
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{wrong:?}: {}", chain(&error));
        let limiter = limiter(closed(Quota::per_day(5)), &wrong.connect_lazy().unwrap());
        let error = failure(&limiter, "acme").await.expect("a wrong password");
        // The error differs from that of a connection that is not open yet.
        let known = until("the reason to be known", async || {
            let error = failure(&limiter, "acme").await.expect("a wrong password");
            (error.kind() == BackendErrorKind::Misconfigured).then_some(error)
        });
        assert_eq!(known.await.kind(), BackendErrorKind::Misconfigured, "{}", chain(&error));
        assert!(limiter.stats().failed_closed > 0);
    }
}

/// A user with exactly the rights that it needs, and users with fewer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_misconfigured() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    for (user, rights) in [
        ("all", &["~*", "+@all"][..]),
        ("no-scripts", &["~*", "+@all", "-@scripting"]),
        ("other-keys", &["~other:*", "+@all"]),
        ("reads", &["~*", "+@all", "-@write"]),
    ] {
        let rights = [&["SETUSER", user, "on", ">secret", "resetkeys"], rights].concat();
        let () = redis::cmd("ACL").arg(&rights).query_async(&mut server.connection().await.unwrap()).await.unwrap();
        let builder = Redis::builder().url(server.url()).username(user).password("secret");
        let limiter = match builder.connect().await {
            Ok(redis) => limiter(closed(Quota::per_day(5)), &redis),
            Err(error) => {
                assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{user}: {}", chain(&error));
                let says = |what| chain(&error).contains(what);
                let is_denied = ["NOPERM", "can't run this command", "ACL failure in script"].into_iter().any(says);
                assert!(is_denied, "{user}: {}", chain(&error));
                assert_ne!(user, "all");
                continue;
            }
        };
        match failure(&limiter, "acme").await {
            None => assert_eq!(user, "all"),
            Some(error) => {
                assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{user}: {}", chain(&error));
                assert_ne!(user, "all", "{}", chain(&error));
            }
        }
    }
}

/// A database that does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_database_is_an_error() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let error = Redis::builder().url(server.url()).database(1_000).connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{}", chain(&error));
}
