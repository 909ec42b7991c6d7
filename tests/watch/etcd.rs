//! The example `etcd_source`, on a key of a real etcd that is killed, restarted, frozen and filled with garbage.

use std::{
    env, fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use self::source::EtcdSource;
use super::{GARBAGE, Watched, server::free_port, until, yaml};

#[path = "../../examples/etcd_source/source.rs"]
mod source;

const KEY: &str = "/limits/policy";

/// A server that is killed on drop. Its data survives a kill.
struct Server {
    url: String,
    peers: String,
    directory: PathBuf,
    process: Child,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Server {
    async fn start() -> Self {
        for _ in 0..20 {
            let (url, peers) = (free_port(), free_port());
            let directory = env::temp_dir().join(format!("tower-ratelimit-etcd-{}-{url}", std::process::id()));
            let [url, peers] = [url, peers].map(|port| format!("http://127.0.0.1:{port}"));
            let process = launch(&url, &peers, &directory);
            let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
            let mut server = Self { url, peers, directory, process, client };
            if server.answers().await {
                return server;
            }
        }
        panic!("no `etcd` could be started on any of 20 ports");
    }

    /// Waits until the server answers (`true`) or has exited (`false`).
    async fn answers(&mut self) -> bool {
        until("`etcd` to answer", async || {
            if self.process.try_wait().unwrap().is_some() {
                return Some(false);
            }
            self.ask("/v3/kv/range", &json!({ "key": encoded("probe") })).await.map(|_| true)
        })
        .await
    }

    async fn ask(&self, path: &str, body: &Value) -> Option<Value> {
        let request = Request::post(format!("{}{path}", self.url)).body(Full::new(Bytes::from(body.to_string())));
        let response = timeout(Duration::from_secs(2), self.client.request(request.unwrap())).await.ok()?.ok()?;
        let success = response.status().is_success();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        success.then(|| serde_json::from_slice(&body).unwrap())
    }

    async fn set(&self, value: impl AsRef<[u8]>) {
        let body = json!({ "key": encoded(KEY), "value": encoded(value) });
        until("a value to be set", async || self.ask("/v3/kv/put", &body).await).await;
    }

    async fn delete(&self) {
        let body = json!({ "key": encoded(KEY) });
        until("a key to be deleted", async || self.ask("/v3/kv/deleterange", &body).await).await;
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status().unwrap();
        assert!(sent.success(), "kill -{name}");
    }

    async fn restart(&mut self) {
        self.process = launch(&self.url, &self.peers, &self.directory);
        assert!(self.answers().await, "another process has taken its port");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn encoded(text: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(text)
}

fn launch(url: &str, peers: &str, directory: &PathBuf) -> Child {
    let program = env::var("ETCD_SERVER").unwrap_or_else(|_| "etcd".into());
    let mut command = Command::new(&program);
    command.args(["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peers]);
    command.args(["--initial-advertise-peer-urls", peers, "--initial-cluster", &format!("default={peers}")]);
    command.args(["--unsafe-no-fsync", "--data-dir"]).arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| {
        panic!("`{program}` is needed for these tests, `apt-get install etcd-server` has it: {error}")
    })
}

/// Polls too seldom for a test to see it.
fn events_only(server: &Server) -> EtcdSource {
    EtcdSource::new([server.url.as_str()], KEY).unwrap().poll_interval(Duration::from_secs(600))
}

#[tokio::test]
async fn a_key_is_followed_through_changes_deletion_and_restarts() {
    let mut server = Server::start().await;
    let mut watched = Watched::new(events_only(&server));
    let missing = |error: &str| error.contains("the key is missing");
    watched.wait_for("a missing key", |status| status.error.as_deref().is_some_and(missing)).await;
    server.set(yaml(10)).await;
    watched.follows_soon(10).await;
    for limit in [20, 30] {
        server.set(yaml(limit)).await;
        watched.follows_soon(limit).await;
    }
    server.delete().await;
    watched.keeps(30, "missing").await;
    server.set(yaml(40)).await;
    watched.follows_soon(40).await;

    for limit in [50, 60] {
        server.kill();
        watched.keeps(limit - 10, "refused").await;
        // It restarts with its data.
        server.restart().await;
        watched.follows_soon(limit - 10).await;
        server.set(yaml(limit)).await;
        watched.follows_soon(limit).await;
    }
}

#[tokio::test]
async fn garbage_leaves_the_last_good_policy_in_force() {
    let server = Server::start().await;
    server.set(yaml(10)).await;
    let mut watched = Watched::new(events_only(&server));
    watched.follows_soon(10).await;
    for (nth, garbage) in (1..).zip(GARBAGE) {
        server.set(garbage).await;
        watched.rejects(nth, 10).await;
    }
    server.set([0xff, 0xfe]).await;
    watched.keeps(10, "is not UTF-8").await;
    // Too large by one byte, and by far.
    server.set(vec![b'#'; (1 << 20) + 1]).await;
    watched.keeps(10, "has more than 1048576 bytes").await;
    server.set(yaml(20)).await;
    watched.follows_soon(20).await;
    server.set(vec![b'#'; (1 << 20) + 400_000]).await;
    watched.keeps(20, "has more than 1048576 bytes").await;
    server.set(yaml(30)).await;
    watched.follows_soon(30).await;
}

#[tokio::test]
async fn a_server_that_freezes_and_recovers_is_followed_at_once() {
    let server = Server::start().await;
    server.set(yaml(10)).await;
    let source = EtcdSource::new([server.url.as_str()], KEY).unwrap().poll_interval(Duration::from_millis(200));
    let mut watched = Watched::new(source);
    watched.follows_soon(10).await;
    server.signal("STOP");
    watched.keeps(10, "no answer").await;
    server.signal("CONT");
    server.set(yaml(20)).await;
    watched.follows_soon(20).await;
}

#[tokio::test]
async fn one_working_server_of_several_is_enough() {
    let server = Server::start().await;
    server.set(yaml(10)).await;
    let closed = format!("http://127.0.0.1:{}", free_port());
    let source = EtcdSource::new([closed.as_str(), server.url.as_str()], KEY).unwrap();
    let mut watched = Watched::new(source);
    watched.follows_soon(10).await;
    server.set(yaml(20)).await;
    watched.follows_soon(20).await;
}

#[tokio::test]
async fn a_custom_client_is_used() {
    let server = Server::start().await;
    server.set(yaml(10)).await;
    let client = server.client.clone();
    let mut watched = Watched::new(EtcdSource::with_client([server.url.as_str()], KEY, client).unwrap());
    watched.follows_soon(10).await;
    server.set(yaml(20)).await;
    watched.follows_soon(20).await;
}

/// A proxy ends a watch as soon as it begins, or rejects it.
#[tokio::test]
async fn a_key_that_cannot_be_watched_is_polled() {
    let server = Server::start().await;
    for rejected in [false, true] {
        server.set(yaml(10)).await;
        let asked = Arc::new(AtomicU64::new(0));
        let (client, count) = (server.client.clone(), Arc::clone(&asked));
        let proxy = tower::service_fn(move |request: Request<Full<Bytes>>| {
            count.fetch_add(1, Ordering::SeqCst);
            let (client, watches) = (client.clone(), request.uri().path() == "/v3/watch");
            async move {
                let mut response = client.request(request).await?.map(BodyExt::boxed);
                if watches && rejected {
                    *response.status_mut() = http::StatusCode::FORBIDDEN;
                }
                if watches {
                    let first = response.body_mut().frame().await.unwrap()?.into_data().unwrap();
                    *response.body_mut() = Full::new(first).map_err(|never| match never {}).boxed();
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(response)
            }
        });
        let mut watched = Watched::new(EtcdSource::with_client([server.url.as_str()], KEY, proxy).unwrap());
        let start = Instant::now();
        for limit in [10, 20, 30] {
            server.set(yaml(limit)).await;
            watched.follows_soon(limit).await;
        }
        until("more requests", async || (asked.load(Ordering::SeqCst) > 12).then_some(())).await;
        let (asked, took) = (u128::from(asked.load(Ordering::SeqCst)), start.elapsed());
        // At most three in 100 ms: a read, a watch, and a read of what it missed.
        assert!(asked <= took.as_millis() * 3 / 100 + 4, "{asked} requests in {took:?}");
        assert_eq!(watched.handle.status().unavailable, 0);
    }
}

#[test]
fn an_invalid_server_is_rejected() {
    for (servers, error) in [
        (vec![], "servers: there are none"),
        (vec!["/v3"], "url: needs a scheme and a host"),
        (vec!["127.0.0.1:2379"], "url: must start with `http://` or `https://`"),
        (vec!["https://127.0.0.1:2379"], "url: needs a client that encrypts: see `with_client`"),
    ] {
        assert_eq!(EtcdSource::new(servers.clone(), KEY).unwrap_err().to_string(), error, "{servers:?}");
    }
}
