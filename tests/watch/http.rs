//! A real HTTP server: one that waits for changes, one that does not, and one
//! that answers all that a server should not.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};
use tower_ratelimit::policy_source::{HttpSource, Watch};

use super::{GARBAGE, Watched, server::free_port, until, yaml};

/// What a server answers.
#[derive(Clone)]
struct Answer {
    status: StatusCode,
    version: Option<&'static str>,
    body: Bytes,
}

impl Answer {
    fn new(text: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, version: None, body: text.into() }
    }

    fn version(text: impl Into<Bytes>, version: &'static str) -> Self {
        Self { version: Some(version), ..Self::new(text) }
    }
}

/// A server of configurations; can be killed, and started anew on its port.
struct Server {
    address: SocketAddr,
    answer: watch::Sender<Answer>,
    /// Whether it holds requests back until there is a change.
    waits: bool,
    asked: Arc<AtomicU64>,
    headers: Arc<Mutex<HeaderMap>>,
    running: Option<JoinSet<()>>,
}

impl Server {
    async fn start(waits: bool, answer: Answer) -> Self {
        let mut server = Self {
            address: SocketAddr::from(([127, 0, 0, 1], free_port())),
            answer: watch::channel(answer).0,
            waits,
            asked: Arc::default(),
            headers: Arc::default(),
            running: None,
        };
        server.restart().await;
        server
    }

    fn url(&self) -> String {
        format!("http://{}/policy?token=secret", self.address)
    }

    fn says(&self, answer: Answer) {
        self.answer.send_replace(answer);
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// All connections end, and none is taken.
    async fn kill(&mut self) {
        self.running.take().unwrap().shutdown().await;
    }

    async fn restart(&mut self) {
        let listener = until("the port", async || {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(self.address).ok()?;
            socket.listen(64).ok()
        });
        let listener: TcpListener = listener.await;
        let (answers, waits) = (self.answer.clone(), self.waits);
        let (asked, headers) = (Arc::clone(&self.asked), Arc::clone(&self.headers));
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answers, asked, headers) = (answers.clone(), Arc::clone(&asked), Arc::clone(&headers));
                let service = service_fn(move |request: Request<Incoming>| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    *headers.lock().unwrap() = request.headers().clone();
                    respond(request, answers.subscribe(), waits)
                });
                connections.spawn(async move {
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        self.running = Some(running);
    }
}

async fn respond(
    request: Request<Incoming>,
    mut answers: watch::Receiver<Answer>,
    waits: bool,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let known = |answer: &Answer| {
        let known = request.headers().get("if-none-match").map(|version| version.to_str().unwrap().to_owned());
        known.is_some() && known.as_deref() == answer.version
    };
    let seconds = request.headers().get("prefer").and_then(|value| value.to_str().ok()?.strip_prefix("wait="));
    if let (true, Some(seconds)) = (waits, seconds) {
        let wait = Duration::from_secs(seconds.parse().unwrap());
        let _ = timeout(wait, answers.wait_for(|answer| !known(answer))).await;
    }
    let answer = answers.borrow().clone();
    let mut response = Response::new(Full::new(answer.body.clone()));
    *response.status_mut() = answer.status;
    if known(&answer) {
        (*response.status_mut(), *response.body_mut()) = (StatusCode::NOT_MODIFIED, Full::default());
    }
    if let Some(version) = answer.version {
        response.headers_mut().insert("etag", HeaderValue::from_static(version));
    }
    Ok(response)
}

#[tokio::test]
async fn a_server_that_waits_for_changes_is_asked_once_for_each() {
    let server = Server::start(true, Answer::version(yaml(10), "\"1\"")).await;
    let mut watched = Watched::new(HttpSource::new(&server.url()).unwrap());
    watched.soon_follows(10).await;
    for (limit, version) in [(20, "\"2\""), (30, "\"3\""), (40, "W/\"4\"")] {
        let asked = server.asked() + 1;
        // It waits for the next change.
        until("a question", async || (server.headers.lock().unwrap().contains_key("prefer")).then_some(())).await;
        server.says(Answer::version(yaml(limit), version));
        watched.soon_follows(limit).await;
        until("the next question", async || (server.asked() >= asked).then_some(())).await;
    }
    assert!(server.asked() <= 6, "{} questions for 3 changes", server.asked());
    let headers = server.headers.lock().unwrap();
    assert_eq!(headers["prefer"], "wait=30");
}

#[tokio::test]
async fn a_wait_that_is_over_is_no_failure() {
    let server = Server::start(true, Answer::version(yaml(10), "\"1\"")).await;
    let source = HttpSource::new(&server.url()).unwrap().wait(Duration::from_secs(1)).every(Duration::from_millis(100));
    let mut watched = Watched::new(source);
    watched.soon_follows(10).await;
    until("some questions", async || (server.asked() >= 3).then_some(())).await;
    server.says(Answer::version(yaml(20), "\"2\""));
    watched.soon_follows(20).await;
    assert_eq!(watched.watching.status().unavailable, 0);
}

/// Also where that is sooner than a server would be asked that does not wait.
#[tokio::test]
async fn a_server_that_has_waited_is_asked_again_at_once() {
    let server = Server::start(true, Answer::version(yaml(10), "\"1\"")).await;
    let source = HttpSource::new(&server.url()).unwrap().wait(Duration::from_secs(1)).every(Duration::from_secs(3_600));
    let mut watched = Watched::new(source);
    watched.soon_follows(10).await;
    until("some questions", async || (server.asked() >= 4).then_some(())).await;
    server.says(Answer::version(yaml(20), "\"2\""));
    watched.soon_follows(20).await;
}

#[tokio::test]
async fn a_server_that_does_not_wait_is_asked_at_intervals() {
    for version in [None, Some("\"1\"")] {
        let answer = |limit, nth| Answer { version: version.map(|_| nth), ..Answer::new(yaml(limit)) };
        let server = Server::start(false, answer(10, "\"1\"")).await;
        let every = Duration::from_millis(200);
        let start = Instant::now();
        let mut watched = Watched::new(HttpSource::new(&server.url()).unwrap().every(every));
        watched.soon_follows(10).await;
        until("some questions", async || (server.asked() >= 5).then_some(())).await;
        server.says(answer(20, "\"2\""));
        watched.soon_follows(20).await;
        let most = 3 + start.elapsed().as_millis() / every.as_millis();
        assert!(u128::from(server.asked()) <= most + 2, "{} questions, {most} intervals", server.asked());
        assert_eq!(watched.watching.status().applied, 2);
    }
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_is_followed_at_once() {
    for waits in [true, false] {
        let mut server = Server::start(waits, Answer::version(yaml(10), "\"1\"")).await;
        let source = HttpSource::new(&server.url()).unwrap().every(Duration::from_millis(100));
        let mut watched = Watched::new(source);
        watched.soon_follows(10).await;
        server.kill().await;
        watched.wait_for("some failures", |status| status.unavailable >= 6).await;
        watched.stays_at(10, "refused").await;
        // The same as before.
        server.restart().await;
        watched.soon_follows(10).await;
        assert_eq!(watched.watching.status().applied, 1);
        server.kill().await;
        watched.stays_at(10, "refused").await;
        server.says(Answer::version(yaml(20), "\"2\""));
        server.restart().await;
        watched.soon_follows(20).await;
    }
}

/// One that was made anew may give the same version to something else: after a
/// failure it is asked what there is, and then for changes again.
#[tokio::test]
async fn after_a_failure_a_server_is_asked_on_no_condition() {
    for waits in [true, false] {
        let server = Server::start(waits, Answer::version(yaml(10), "\"1\"")).await;
        let source = HttpSource::new(&server.url()).unwrap().every(Duration::from_millis(100));
        let mut watched = Watched::new(source);
        watched.soon_follows(10).await;
        let has = |name: &str| server.headers.lock().unwrap().contains_key(name);
        until("a condition", async || has("if-none-match").then_some(())).await;
        let broken = Answer { status: StatusCode::SERVICE_UNAVAILABLE, ..Answer::version("", "\"2\"") };
        server.says(broken);
        watched.wait_for("some failures", |status| status.unavailable >= 2).await;
        assert!(!has("if-none-match"), "no failure is followed by a condition");
        server.says(Answer::version(yaml(20), "\"1\""));
        watched.soon_follows(20).await;
        until("a condition again", async || has("if-none-match").then_some(())).await;
        assert!(has("prefer"));
    }
}

#[tokio::test]
async fn no_garbage_is_put_in_force() {
    let server = Server::start(false, Answer::new(yaml(10))).await;
    let source = HttpSource::new(&server.url()).unwrap().every(Duration::from_millis(100));
    let mut watched = Watched::new(source);
    watched.follows(10).await;
    for (nth, garbage) in (1..).zip(GARBAGE) {
        server.says(Answer::new(garbage));
        watched.rejects(nth, 10).await;
    }
    server.says(Answer::new(vec![b'#'; (1 << 20) + 1]));
    watched.stays_at(10, "has more than 1048576 bytes").await;
    server.says(Answer::new(&[0xff_u8, 0xfe][..]));
    watched.stays_at(10, "is not UTF-8").await;
    for status in [204, 206, 301, 304, 401, 404, 500, 503] {
        server.says(Answer { status: StatusCode::from_u16(status).unwrap(), ..Answer::new(yaml(99)) });
        watched.stays_at(10, &format!("the server answers {status}")).await;
    }
    server.says(Answer::new(yaml(20)));
    watched.soon_follows(20).await;
    assert!(!watched.watching.status().trouble.is_some_and(|trouble| trouble.contains("secret")));
}

/// What is not HTTP, or never ends; then a server that is in order.
#[tokio::test]
async fn what_breaks_off_hangs_or_never_ends_counts_as_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let good =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{}", yaml(10).len(), yaml(10));
    let answers = [
        good.clone(),
        String::new(),
        "SSH-2.0-OpenSSH_9.2\r\n".into(),
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nrules:".into(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".into(),
        "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n".into(),
        format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(1 << 20)),
        good.replace("limit: 10", "limit: 20"),
    ];
    let serving = tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        // Endless, then silent.
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = "HTTP/1.1 200 OK\r\n\r\n";
        let _ = stream.write_all(head.as_bytes()).await;
        while stream.write_all(&[b'#'; 65_536]).await.is_ok() {}
        listener.accept().await.unwrap()
    });
    let url = format!("http://{address}/");
    let mut watched = Watched::new(HttpSource::new(&url).unwrap().every(Duration::from_millis(100)));
    watched.follows(20).await;
    let status = watched.watching.status();
    assert!(status.unavailable >= 4 && status.applied == 2, "{status:?}");
    watched.stays_at(20, "has more than 1048576 bytes").await;
    let _silent = serving.await.unwrap();
    watched.stays_at(20, "no answer within 5s").await;
}

#[tokio::test]
async fn headers_and_clients_of_ones_own_are_used() {
    let server = Server::start(false, Answer::new(yaml(10))).await;
    let name = HeaderName::from_static("authorization");
    let source =
        HttpSource::new(&server.url()).unwrap().header(name.clone(), HeaderValue::from_static("Bearer s3cret"));
    assert!(!format!("{source:?}").contains("s3cret") && !format!("{source:?}").contains("token"), "{source:?}");
    let mut watched = Watched::new(source);
    watched.follows(10).await;
    assert_eq!(server.headers.lock().unwrap()[name], "Bearer s3cret");

    let wrapped = tower::service_fn(|request: Request<Full<Bytes>>| async move {
        assert_eq!(request.uri(), "https://config.internal/policy");
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(yaml(20)))))
    });
    let mut watched = Watched::new(HttpSource::over("https://config.internal/policy", wrapped).unwrap());
    watched.follows(20).await;
}

#[tokio::test]
async fn no_setting_overflows_a_timer() {
    let server = Server::start(true, Answer::version(yaml(10), "\"1\"")).await;
    for most in [Duration::MAX, Duration::ZERO] {
        let source = HttpSource::new(&server.url()).unwrap().every(most).wait(most).max_bytes(usize::MAX);
        let mut watched = Watched::new(Watch::new(source).retry(most, most));
        watched.soon_follows(10).await;
        let asked = server.asked();
        until("the next question", async || (server.asked() > asked).then_some(())).await;
        assert!(!watched.watching.is_stopped());
    }
}

#[test]
fn what_is_no_url_is_rejected_and_not_repeated() {
    for (url, reason) in [
        ("", "is no URL"),
        ("not a url", "is no URL"),
        ("/policy", "needs a scheme and a host"),
        ("ftp://host/policy", "must start with"),
        ("https://host/policy", "needs a client that encrypts"),
        ("http://user:s3cret@host/policy", "must hold no name and no password"),
    ] {
        let error = HttpSource::new(url).unwrap_err().to_string();
        assert!(error.starts_with("url: ") && error.contains(reason) && !error.contains("s3cret"), "{url}: {error}");
    }
}
