//! Against real servers, each on a socket of its own.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::AtomicUsize,
};

use super::*;
use crate::{
    backend::redis::{
        RedisBuilder,
        wire::scripts::{CHANGE, DECIDE},
    },
    error::BackendErrorKind,
};

struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    async fn start() -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!("rl-link-{}-{number}.sock", std::process::id()));
        Self::start_at(socket).await
    }

    async fn start_at(socket: PathBuf) -> Self {
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let server = Self { process, socket };
        until("the server answers", async || {
            let Ok(client) = redis::Client::open(server.url()) else { return false };
            client.get_multiplexed_async_connection().await.is_ok()
        })
        .await;
        server
    }

    fn url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    fn builder(&self) -> RedisBuilder {
        RedisBuilder::new().url(self.url()).deadline(DEADLINE)
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    async fn ask(&self, command: &[&str]) -> Value {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut asked = redis::cmd(command[0]);
        asked.arg(&command[1..]);
        asked.query_async(&mut connection).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Far beyond what a busy machine takes, where an answer is expected.
const DEADLINE: Duration = Duration::from_millis(200);

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    for _ in 0..1500 {
        looks.tick().await;
        if holds().await {
            return;
        }
    }
    panic!("in vain: {what}");
}

async fn connect(builder: RedisBuilder) -> Result<Arc<Link>, BackendError> {
    Link::connect(builder.settings().unwrap()).await
}

fn call() -> Call {
    Call::new(&EPOCH, ["test"], 1, b"abc")
}

async fn answers(link: &Link) -> bool {
    link.call(0, &call()).await.is_ok()
}

fn why(error: &BackendError) -> String {
    std::error::Error::source(error).unwrap().to_string()
}

#[tokio::test]
async fn scripts_are_loaded_and_where_they_were_forgotten_sent_again() {
    let server = Server::start().await;
    let link = connect(server.builder().connections(3)).await.unwrap();
    let exists = server.ask(&["SCRIPT", "EXISTS", DECIDE.hash(), CHANGE.hash()]).await;
    assert_eq!(exists, Value::Array(vec![Value::Int(1), Value::Int(1)]));
    for lane in 0..7 {
        server.ask(&["SCRIPT", "FLUSH"]).await;
        let answer = link.call(lane, &call()).await.unwrap();
        assert!(matches!(&answer, Value::BulkString(bytes) if bytes.starts_with(b"abc:")), "{answer:?}");
    }
    assert_eq!(link.memory_lost(), 0);
}

#[tokio::test]
async fn a_script_that_raises_is_no_failure_of_the_server() {
    let server = Server::start().await;
    let link = connect(server.builder().breaker(1, DEADLINE, DEADLINE)).await.unwrap();
    server.ask(&["LPUSH", "test", "something else"]).await;
    let error = link.call(0, &call()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    assert!(why(&error).starts_with("WRONGTYPE"), "{error:?}");
    assert!(link.rejection().is_none());
}

#[tokio::test]
async fn a_frozen_server_costs_a_deadline_a_few_times_and_then_nothing() {
    let server = Server::start().await;
    let deadline = Duration::from_millis(50);
    let link = connect(server.builder().deadline(deadline).breaker(3, deadline, DEADLINE)).await.unwrap();
    until("it answers on a busy machine", async || answers(&link).await).await;
    server.signal("-STOP");
    for _ in 0..3 {
        let started = Instant::now();
        assert_eq!(link.call(0, &call()).await.unwrap_err().kind(), BackendErrorKind::Timeout);
        assert!(started.elapsed() >= deadline * 15 / 16 - Duration::from_millis(1));
    }
    let error = link.rejection().unwrap();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(why(&error).contains("no answer within 50ms"), "{error:?}");
    server.signal("-CONT");
    until("the breaker is closed by a probe", async || link.rejection().is_none()).await;
    assert_eq!(link.memory_lost(), 0, "it is the same memory");
}

#[tokio::test]
async fn a_killed_server_opens_the_breaker_at_once_and_its_successor_has_no_memory() {
    let mut server = Server::start().await;
    let link = connect(server.builder()).await.unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = Arc::clone(&told);
    link.on_memory_lost(move || _ = tell.fetch_add(1, Ordering::Relaxed));
    server.signal("-KILL");
    server.process.wait().unwrap();
    let error = link.call(0, &call()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(link.rejection().is_some());
    let again = Server::start_at(server.socket.clone()).await;
    until("it is connected again", async || link.rejection().is_none()).await;
    assert_eq!((link.memory_lost(), told.load(Ordering::Relaxed)), (1, 1), "known before the first answer");
    assert!(answers(&link).await);
    drop(again);
}

#[tokio::test]
async fn a_memory_that_is_emptied_is_noticed_while_in_use() {
    let server = Server::start().await;
    let link = connect(server.builder()).await.unwrap();
    server.ask(&["FLUSHALL"]).await;
    until("the loss is noticed", async || {
        assert!(answers(&link).await);
        link.memory_lost() == 1
    })
    .await;
}

#[tokio::test]
async fn what_is_wrong_is_said_when_connecting() {
    let server = Server::start().await;
    server.ask(&["ACL", "SETUSER", "scriptless", "on", ">hush", "~*", "+@all", "-@scripting"]).await;
    let user = |name: &str, password: &str| server.builder().username(name).password(password);
    for (builder, kind, text) in [
        (user("scriptless", "wrong-hush"), BackendErrorKind::Misconfigured, "authentication failed"),
        (user("scriptless", "hush"), BackendErrorKind::Misconfigured, "NOPERM"),
        (RedisBuilder::new().url("unix:///nonexistent"), BackendErrorKind::Unavailable, "No such file"),
    ] {
        let error = connect(builder).await.unwrap_err();
        let why = why(&error);
        assert_eq!(error.kind(), kind, "{why}");
        assert!(why.contains(text) && why.contains("redis at /") && !why.contains("hush"), "{why}");
    }
    server.ask(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = connect(server.builder()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(why(&error).contains("READONLY"), "{error:?}");
}

#[tokio::test]
async fn a_lazy_link_connects_once_there_is_a_server() {
    let first = Server::start().await;
    let socket = first.socket.clone();
    let builder = first.builder().breaker(5, Duration::from_millis(10), Duration::from_millis(20));
    drop(first);
    let link = Link::lazy(builder.settings().unwrap());
    assert_eq!(link.rejection().unwrap().kind(), BackendErrorKind::Unavailable);
    assert!(!answers(&link).await);
    let _server = Server::start_at(socket).await;
    until("it is connected", async || answers(&link).await).await;
    assert_eq!(link.memory_lost(), 0);
}

#[tokio::test]
async fn rights_that_are_taken_away_open_the_breaker() {
    let server = Server::start().await;
    server.ask(&["ACL", "SETUSER", "limiter", "on", ">hush", "~*", "+@all"]).await;
    let builder = server.builder().username("limiter").password("hush").breaker(2, DEADLINE, DEADLINE);
    let link = connect(builder).await.unwrap();
    server.ask(&["ACL", "SETUSER", "limiter", "-@scripting"]).await;
    for _ in 0..2 {
        assert_eq!(link.call(0, &call()).await.unwrap_err().kind(), BackendErrorKind::Misconfigured);
    }
    assert_eq!(link.rejection().unwrap().kind(), BackendErrorKind::Misconfigured);
}

#[tokio::test]
async fn dropped_it_ends_its_tasks() {
    let server = Server::start().await;
    let before = Handle::current().metrics().num_alive_tasks();
    let link = connect(server.builder()).await.unwrap();
    assert!(answers(&link).await);
    assert!(Handle::current().metrics().num_alive_tasks() > before);
    drop(link);
    until("all tasks have ended", async || Handle::current().metrics().num_alive_tasks() <= before).await;
}
