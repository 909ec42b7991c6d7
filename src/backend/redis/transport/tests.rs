//! On real servers, each on a socket of its own.

#[allow(dead_code, unreachable_pub, reason = "the integration tests need the rest of it")]
#[path = "../../../../tests/redis/server.rs"]
mod server;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::runtime::Handle;

use self::server::{Server, until};
use super::*;
use crate::{
    backend::redis::{
        RedisBuilder,
        wire::{DECIDE, Script},
    },
    error::BackendErrorKind,
};

/// Far beyond what a busy machine needs for a reply.
const DEADLINE: Duration = Duration::from_millis(200);

async fn start() -> Server {
    Server::options().socket().start().await
}

fn builder(server: &Server) -> RedisBuilder {
    RedisBuilder::new().url(server.url()).deadline(DEADLINE)
}

async fn holds(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    until(what, async || holds().await.then_some(())).await;
}

async fn connect(builder: RedisBuilder) -> Result<Arc<Link>, BackendError> {
    Link::connect(builder.settings().unwrap()).await
}

fn call() -> Call {
    static SCRIPT: Script = Script::new("return ARGV[1] .. ':' .. (redis.call('GET', KEYS[1]) or '')");
    Call::new(&SCRIPT, ["test"], 1, [&b"abc"[..]])
}

async fn answers(link: &Arc<Link>) -> bool {
    link.call(0, &call()).await.is_ok()
}

fn why(error: &BackendError) -> String {
    std::error::Error::source(error).unwrap().to_string()
}

#[tokio::test]
async fn scripts_are_loaded_and_sent_again_after_a_flush() {
    let server = start().await;
    let link = connect(builder(&server).connections(3)).await.unwrap();
    let exists = server.run::<Value, 2>("SCRIPT", ["EXISTS", DECIDE.hash()]).await;
    assert_eq!(exists, Value::Array(vec![Value::Int(1)]));
    for lane in 0..7 {
        let () = server.run("SCRIPT", ["FLUSH"]).await;
        let answer = link.call(lane, &call()).await.unwrap();
        assert!(matches!(&answer, Value::BulkString(bytes) if bytes.starts_with(b"abc:")), "{answer:?}");
    }
    assert_eq!(link.dataset.losses(), 0);
}

#[tokio::test]
async fn an_error_of_a_script_does_not_open_the_breaker() {
    let server = start().await;
    let link = connect(builder(&server).breaker(1, DEADLINE, DEADLINE)).await.unwrap();
    let () = server.run("LPUSH", ["test", "something else"]).await;
    let error = link.call(0, &call()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    assert!(why(&error).starts_with("WRONGTYPE"), "{error:?}");
    assert!(link.rejection().is_none());
}

#[tokio::test]
async fn a_frozen_server_opens_the_breaker_after_a_few_timeouts() {
    let mut server = start().await;
    let deadline = Duration::from_millis(50);
    let link = connect(builder(&server).deadline(deadline).breaker(3, deadline, DEADLINE)).await.unwrap();
    holds("it answers on a busy machine", async || answers(&link).await).await;
    server.freeze();
    for _ in 0..3 {
        let started = Instant::now();
        assert_eq!(link.call(0, &call()).await.unwrap_err().kind(), BackendErrorKind::Timeout);
        assert!(started.elapsed() >= deadline * 15 / 16 - Duration::from_millis(1));
    }
    let error = link.rejection().unwrap();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(why(&error).contains("no answer within 50ms"), "{error:?}");
    server.thaw();
    holds("the breaker is closed by a probe", async || link.rejection().is_none()).await;
    assert_eq!(link.dataset.losses(), 0, "no data was lost");
}

#[tokio::test]
async fn a_killed_server_opens_the_breaker_at_once_and_its_data_is_lost() {
    let mut server = start().await;
    let link = connect(builder(&server)).await.unwrap();
    let notified = Arc::new(AtomicUsize::new(0));
    let listener = Arc::clone(&notified);
    link.dataset.on_loss(move || _ = listener.fetch_add(1, Ordering::Relaxed));
    server.kill();
    let error = link.call(0, &call()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(link.rejection().is_some());
    server.restart().await;
    holds("it is connected again", async || link.rejection().is_none()).await;
    assert_eq!((link.dataset.losses(), notified.load(Ordering::Relaxed)), (1, 1), "known before the first answer");
    assert!(answers(&link).await);
}

#[tokio::test]
async fn an_emptied_store_is_noticed_while_it_is_used() {
    let server = start().await;
    let link = connect(builder(&server)).await.unwrap();
    let () = server.run("FLUSHALL", []).await;
    holds("the loss is noticed", async || {
        assert!(answers(&link).await);
        link.dataset.losses() == 1
    })
    .await;
}

#[tokio::test]
async fn a_connect_error_names_address_and_cause() {
    let server = start().await;
    let () = server.run("ACL", ["SETUSER", "scriptless", "on", ">hush", "~*", "+@all", "-@scripting"]).await;
    let user = |name: &str, password: &str| builder(&server).username(name).password(password);
    for (builder, kind, text) in [
        (user("scriptless", "wrong-hush"), BackendErrorKind::Misconfigured, "authentication failed"),
        (user("scriptless", "hush"), BackendErrorKind::Misconfigured, "NOPERM"),
        (RedisBuilder::new().url("unix:///nonexistent"), BackendErrorKind::Unavailable, "No such file"),
    ] {
        let error = connect(builder).await.err().unwrap();
        let why = why(&error);
        assert_eq!(error.kind(), kind, "{why}");
        assert!(why.contains(text) && why.contains("redis at /") && !why.contains("hush"), "{why}");
    }
    let () = server.run("REPLICAOF", ["127.0.0.1", "1"]).await;
    let error = connect(builder(&server)).await.err().unwrap();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(why(&error).contains("READONLY"), "{error:?}");
}

#[tokio::test]
async fn a_lazy_link_connects_when_the_server_is_up() {
    let mut server = start().await;
    let builder = builder(&server).breaker(5, Duration::from_millis(10), Duration::from_millis(20));
    server.kill();
    let link = Link::lazy(builder.settings().unwrap()).unwrap();
    assert_eq!(link.rejection().unwrap().kind(), BackendErrorKind::Unavailable);
    assert!(!answers(&link).await);
    server.restart().await;
    holds("it is connected", async || answers(&link).await).await;
    assert_eq!(link.dataset.losses(), 0);
}

#[tokio::test]
async fn a_revoked_right_opens_the_breaker() {
    let server = start().await;
    let () = server.run("ACL", ["SETUSER", "limiter", "on", ">hush", "~*", "+@all"]).await;
    let builder = builder(&server).username("limiter").password("hush").breaker(2, DEADLINE, DEADLINE);
    let link = connect(builder).await.unwrap();
    let () = server.run("ACL", ["SETUSER", "limiter", "-@scripting"]).await;
    for _ in 0..2 {
        assert_eq!(link.call(0, &call()).await.unwrap_err().kind(), BackendErrorKind::Misconfigured);
    }
    assert_eq!(link.rejection().unwrap().kind(), BackendErrorKind::Misconfigured);
}

#[tokio::test]
async fn a_dropped_link_ends_its_tasks() {
    let server = start().await;
    let before = Handle::current().metrics().num_alive_tasks();
    let settings = Settings { uses_current_runtime: true, ..builder(&server).settings().unwrap() };
    let link = Link::connect(settings).await.unwrap();
    assert!(answers(&link).await);
    assert!(Handle::current().metrics().num_alive_tasks() > before);
    drop(link);
    holds("all tasks have ended", async || Handle::current().metrics().num_alive_tasks() <= before).await;
}
