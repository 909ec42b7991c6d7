//! What a person may have got wrong: an error that says so, at once.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::{Quota, backend::Redis, error::BackendErrorKind};

use super::{SCHEDULING, Seen, ask, beside_others, chain, closed, failure, limiter, server::Server, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urls_that_are_none() {
    let _turn = beside_others().await;
    let urls = ["", "nonsense", "redis://", "http://127.0.0.1:6379", "redis://127.0.0.1:99999", "redis://:::", "\0"];
    for url in urls {
        let error = Redis::connect(url).await.expect_err(url);
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{url:?}: {}", chain(&error));
        let error = Redis::builder().url(url).build().expect_err(url);
        assert!(!error.to_string().is_empty());
    }
    let error = Redis::builder().cluster(Vec::<String>::new()).build().expect_err("no node");
    assert!(!error.to_string().is_empty());
    let error = Redis::builder().sentinel("limits", Vec::<String>::new()).build().expect_err("no sentinel");
    assert!(!error.to_string().is_empty());
}

/// Nothing may make it print what is to be kept secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_are_not_told() {
    let _turn = beside_others().await;
    let server = Server::options().password("right").start().await;
    let mut told = Vec::new();
    let url = format!("redis://user:s3cret@127.0.0.1:{}", server.port());
    told.push(chain(&Redis::connect(&url).await.unwrap_err()));
    told.push(format!("{:?}", Redis::builder().url(&url)));
    told.push(format!("{:?}", Redis::builder().url(server.url()).password("s3cret")));
    told.push(format!("{:?}", Redis::builder().url(&url).build()));
    told.push(chain(&Redis::builder().url("redis://user:s3cret@127.0.0.1:99999").build().unwrap_err()));
    told.push(chain(&Redis::connect("http://user:s3cret@127.0.0.1").await.unwrap_err()));
    assert!(!told.iter().any(|text| text.contains("s3cret")), "{told:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_are_not_there() {
    let _turn = beside_others().await;
    let mut gone = Server::start().await;
    gone.kill();
    for url in [gone.url(), "redis://nowhere.invalid:6379".to_owned()] {
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
async fn wrong_passwords() {
    let _turn = beside_others().await;
    let server = Server::options().password("right").start().await;
    let connects = Redis::builder().url(server.url()).password("right").connect().await;
    assert_eq!(ask(&limiter(closed(Quota::per_day(5)), &connects.unwrap()), "/", "acme").await, Seen::Admitted);
    for wrong in [
        Redis::builder().url(server.url()),
        Redis::builder().url(server.url()).password("wrong"),
        Redis::builder().url(server.url()).username("nobody").password("right"),
        Redis::builder().url(format!("redis://:wrong@127.0.0.1:{}", server.port())),
    ] {
        let error = wrong.clone().connect().await.expect_err("a wrong password");
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{wrong:?}: {}", chain(&error));
        let limiter = limiter(closed(Quota::per_day(5)), &wrong.build().unwrap());
        let error = failure(&limiter, "acme").await.expect("a wrong password");
        // A connection that is not there yet is told from one that will never be.
        let known = until("the reason to be known", async || {
            let error = failure(&limiter, "acme").await.expect("a wrong password");
            (error.kind() == BackendErrorKind::Misconfigured).then_some(error)
        });
        assert_eq!(known.await.kind(), BackendErrorKind::Misconfigured, "{}", chain(&error));
        assert!(limiter.stats().failed_closed > 0);
    }
}

/// A user of its own, with what it needs and no more; and with less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_without_the_rights() {
    let _turn = beside_others().await;
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
                assert!(says("NOPERM") || says("can't run this command"), "{user}: {}", chain(&error));
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

/// A database that there is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_that_are_not_there() {
    let _turn = beside_others().await;
    let server = Server::start().await;
    let error = Redis::builder().url(server.url()).database(1_000).connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{}", chain(&error));
}
