//! Real HTTP servers: with long polling, without it, and with responses that no
//! server should send.

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

/// The response of a server.
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

/// A configuration server that can be killed and restarted on its port.
struct Server {
    address: SocketAddr,
    answer: watch::Sender<Answer>,
    /// Long polling: whether a request waits until there is a change.
    long_polls: bool,
    asked: Arc<AtomicU64>,
    headers: Arc<Mutex<HeaderMap>>,
    running: Option<JoinSet<()>>,
}

impl Server {
    async fn start(long_polls: bool, answer: Answer) -> Self {
        let mut server = Self {
            address: SocketAddr::from(([127, 0, 0, 1], free_port())),
            answer: watch::channel(answer).0,
            long_polls,
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

    fn answers(&self, answer: Answer) {
        self.answer.send_replace(answer);
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Ends all connections and accepts no more.
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
        let (answers, long_polls) = (self.answer.clone(), self.long_polls);
        let (asked, headers) = (Arc::clone(&self.asked), Arc::clone(&self.headers));
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answers, asked, headers) = (answers.clone(), Arc::clone(&asked), Arc::clone(&headers));
                let service = service_fn(move |request: Request<Incoming>| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    *headers.lock().unwrap() = request.headers().clone();
                    respond(request, answers.subscribe(), long_polls)
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
    long_polls: bool,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let known = |answer: &Answer| {
        let known = request.headers().get("if-none-match").map(|version| version.to_str().unwrap().to_owned());
        known.is_some() && known.as_deref() == answer.version
    };
    let seconds = request.headers().get("prefer").and_then(|value| value.to_str().ok()?.strip_prefix("wait="));
    if let (true, Some(seconds)) = (long_polls, seconds) {
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
async fn a_server_with_long_polling_is_asked_once_per_change() {
    let server = Server::start(true, Answer::version(yaml(10), "\"1\"")).await;
    let mut watched = Watched::new(HttpSource::new(&server.url()).unwrap());
    watched.follows_soon(10).await;
    for (limit, version) in [(20, "\"2\""), (30, "\"3\""), (40, "W/\"4\"")] {
        let asked = server.asked() + 1;
        // The source waits for the next change.
        until("a request", async || (server.headers.lock().unwrap().contains_key("prefer")).then_some(())).await;
        server.answers(Answer::version(yaml(limit), version));
        watched.follows_soon(limit).await;
        until("the next request", async || (server.asked() >= asked).then_some(())).await;
    }
    assert!(server.asked() <= 6, "{} requests for 3 changes", server.asked());
    let headers = server.headers.lock().unwrap();
    assert_eq!(headers["prefer"], "wait=30");
}

#[tokio::test]
async fn a_long_poll_without_a_change_is_not_a_failure() {
    let server = Server::start(true, Answer::version(yaml(10), "\"1\"")).await;
    let source =
        HttpSource::new(&server.url()).unwrap().wait(Duration::from_secs(1)).poll_interval(Duration::from_millis(100));
    let mut watched = Watched::new(source);
    watched.follows_soon(10).await;
    until("some requests", async || (server.asked() >= 3).then_some(())).await;
    server.answers(Answer::version(yaml(20), "\"2\""));
    watched.follows_soon(20).await;
    assert_eq!(watched.handle.status().unavailable, 0);
}

/// Whatever the poll interval is.
#[tokio::test]
async fn after_a_long_poll_the_server_is_asked_again_at_once() {
    let server = Server::start(true, Answer::version(yaml(10), "\"1\"")).await;
    let source =
        HttpSource::new(&server.url()).unwrap().wait(Duration::from_secs(1)).poll_interval(Duration::from_secs(3_600));
    let mut watched = Watched::new(source);
    watched.follows_soon(10).await;
    until("some requests", async || (server.asked() >= 4).then_some(())).await;
    server.answers(Answer::version(yaml(20), "\"2\""));
    watched.follows_soon(20).await;
}

#[tokio::test]
async fn a_server_without_long_polling_is_polled() {
    for version in [None, Some("\"1\"")] {
        let answer = |limit, nth| Answer { version: version.map(|_| nth), ..Answer::new(yaml(limit)) };
        let server = Server::start(false, answer(10, "\"1\"")).await;
        let interval = Duration::from_millis(200);
        let start = Instant::now();
        let mut watched = Watched::new(HttpSource::new(&server.url()).unwrap().poll_interval(interval));
        watched.follows_soon(10).await;
        until("some requests", async || (server.asked() >= 5).then_some(())).await;
        server.answers(answer(20, "\"2\""));
        watched.follows_soon(20).await;
        let most = 3 + start.elapsed().as_millis() / interval.as_millis();
        assert!(u128::from(server.asked()) <= most + 2, "{} requests, {most} intervals", server.asked());
        assert_eq!(watched.handle.status().applied, 2);
    }
}

#[tokio::test]
async fn a_server_that_is_killed_and_restarted_is_followed_at_once() {
    for long_polls in [true, false] {
        let mut server = Server::start(long_polls, Answer::version(yaml(10), "\"1\"")).await;
        let source = HttpSource::new(&server.url()).unwrap().poll_interval(Duration::from_millis(100));
        let mut watched = Watched::new(source);
        watched.follows_soon(10).await;
        server.kill().await;
        watched.wait_for("some failures", |status| status.unavailable >= 6).await;
        watched.keeps(10, "refused").await;
        // With the same policy as before.
        server.restart().await;
        watched.follows_soon(10).await;
        assert_eq!(watched.handle.status().applied, 1);
        server.kill().await;
        watched.keeps(10, "refused").await;
        server.answers(Answer::version(yaml(20), "\"2\""));
        server.restart().await;
        watched.follows_soon(20).await;
    }
}

/// A restarted server may give the same version to other content. So the first
/// request after a failure has no condition.
#[tokio::test]
async fn the_first_request_after_a_failure_is_unconditional() {
    for long_polls in [true, false] {
        let server = Server::start(long_polls, Answer::version(yaml(10), "\"1\"")).await;
        let source = HttpSource::new(&server.url()).unwrap().poll_interval(Duration::from_millis(100));
        let mut watched = Watched::new(source);
        watched.follows_soon(10).await;
        let has = |name: &str| server.headers.lock().unwrap().contains_key(name);
        until("a conditional request", async || has("if-none-match").then_some(())).await;
        let broken = Answer { status: StatusCode::SERVICE_UNAVAILABLE, ..Answer::version("", "\"2\"") };
        server.answers(broken);
        watched.wait_for("some failures", |status| status.unavailable >= 2).await;
        assert!(!has("if-none-match"), "no conditional request after a failure");
        server.answers(Answer::version(yaml(20), "\"1\""));
        watched.follows_soon(20).await;
        until("another conditional request", async || has("if-none-match").then_some(())).await;
        assert!(has("prefer"));
    }
}

#[tokio::test]
async fn garbage_leaves_the_last_good_policy_in_force() {
    let server = Server::start(false, Answer::new(yaml(10))).await;
    let source = HttpSource::new(&server.url()).unwrap().poll_interval(Duration::from_millis(100));
    let mut watched = Watched::new(source);
    watched.follows(10).await;
    for (nth, garbage) in (1..).zip(GARBAGE) {
        server.answers(Answer::new(garbage));
        watched.rejects(nth, 10).await;
    }
    server.answers(Answer::new(vec![b'#'; (1 << 20) + 1]));
    watched.keeps(10, "has more than 1048576 bytes").await;
    server.answers(Answer::new(&[0xff_u8, 0xfe][..]));
    watched.keeps(10, "is not UTF-8").await;
    for status in [204, 206, 301, 304, 401, 404, 500, 503] {
        server.answers(Answer { status: StatusCode::from_u16(status).unwrap(), ..Answer::new(yaml(99)) });
        watched.keeps(10, &format!("the server answers {status}")).await;
    }
    server.answers(Answer::new(yaml(20)));
    watched.follows_soon(20).await;
    assert!(!watched.handle.status().error.is_some_and(|error| error.contains("secret")));
}

/// Responses that are not HTTP or never end; then a valid one.
#[tokio::test]
async fn a_response_that_breaks_off_or_hangs_is_a_failure() {
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
        // An endless response, then none.
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = "HTTP/1.1 200 OK\r\n\r\n";
        let _ = stream.write_all(head.as_bytes()).await;
        while stream.write_all(&[b'#'; 65_536]).await.is_ok() {}
        listener.accept().await.unwrap()
    });
    let url = format!("http://{address}/");
    let mut watched = Watched::new(HttpSource::new(&url).unwrap().poll_interval(Duration::from_millis(100)));
    watched.follows(20).await;
    let status = watched.handle.status();
    assert!(status.unavailable >= 4 && status.applied == 2, "{status:?}");
    watched.keeps(20, "has more than 1048576 bytes").await;
    let _silent = serving.await.unwrap();
    watched.keeps(20, "no answer within 5s").await;
}

#[tokio::test]
async fn custom_headers_and_clients_are_used() {
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
    let mut watched = Watched::new(HttpSource::with_client("https://config.internal/policy", wrapped).unwrap());
    watched.follows(20).await;
}

#[tokio::test]
async fn no_setting_overflows_a_timer() {
    let server = Server::start(true, Answer::version(yaml(10), "\"1\"")).await;
    for most in [Duration::MAX, Duration::ZERO] {
        let source = HttpSource::new(&server.url()).unwrap().poll_interval(most).wait(most).max_bytes(usize::MAX);
        let mut watched = Watched::new(Watch::new(source).retry(most, most));
        watched.follows_soon(10).await;
        let asked = server.asked();
        until("the next request", async || (server.asked() > asked).then_some(())).await;
        assert!(!watched.handle.is_stopped());
    }
}

#[test]
fn an_invalid_url_is_rejected_and_not_repeated() {
    for (url, reason) in [
        ("", "must be a URL"),
        ("not a url", "must be a URL"),
        ("/policy", "needs a scheme and a host"),
        ("ftp://host/policy", "must start with"),
        ("https://host/policy", "needs a client that encrypts"),
        ("http://user:s3cret@host/policy", "must hold no name and no password"),
    ] {
        let error = HttpSource::new(url).unwrap_err().to_string();
        assert!(error.starts_with("url: ") && error.contains(reason) && !error.contains("s3cret"), "{url}: {error}");
    }
}
