//! A policy in a key of etcd: `EtcdSource`, an implementation of `PolicySource`.
//!
//! Speaks the JSON gateway of etcd over HTTP. A watch only signals a change: the
//! value is always read from the key itself.

use std::{error::Error, fmt, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tower::{Service, ServiceExt, util::BoxCloneService};
use tower_ratelimit::{
    BoxFuture,
    policy_source::{Document, PolicySource, SourceError},
};

type BoxError = Box<dyn Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, SourceError>;

/// The timeout of an answer, and of the start of a watch.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The poll interval where the key cannot be watched.
const UNWATCHED: Duration = Duration::from_millis(500);

/// The pause after a watch has ended: a proxy may end each one at once.
const WATCH_ENDED: Duration = Duration::from_millis(100);

/// The largest policy that is accepted, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// A policy in a key of etcd 3.4 or later, as YAML.
///
/// Changes are seen at once by a watch. Polling sees what a broken watch has
/// missed: within five seconds by default, and within half a second where the
/// key cannot be watched. When one of several servers fails, the source asks the
/// next one.
pub(crate) struct EtcdSource {
    servers: Vec<Uri>,
    /// The index of the server that is asked.
    server: usize,
    key: String,
    client: BoxCloneService<Request<Full<Bytes>>, Response<Body>, SourceError>,
    poll_interval: Duration,
    /// The stream of a watch.
    watch: Option<Body>,
    /// The last read succeeded: the next one waits for a change.
    is_current: bool,
}

impl EtcdSource {
    /// The key at one server, or at several of one cluster, without encryption:
    /// `http://host:2379`.
    pub(crate) fn new<'u>(servers: impl IntoIterator<Item = &'u str>, key: &str) -> Result<Self, SourceError> {
        let source = Self::with_client(servers, key, Client::builder(TokioExecutor::new()).build_http())?;
        if source.servers.iter().any(|server| server.scheme_str() == Some("https")) {
            return Err(SourceError::new("url: needs a client that encrypts: see `with_client`"));
        }
        Ok(source)
    }

    /// The key, requested by the application's client, which may encrypt and
    /// authenticate. It has to stream response bodies: that of a watch never
    /// ends.
    pub(crate) fn with_client<'u, S, B>(
        servers: impl IntoIterator<Item = &'u str>,
        key: &str,
        client: S,
    ) -> Result<Self, SourceError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + 'static,
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let servers = servers.into_iter().map(server).collect::<Result<Vec<_>, _>>()?;
        if servers.is_empty() {
            return Err(SourceError::new("servers: there are none"));
        }
        let boxed = |response: Response<B>| response.map(|body| body.map_err(SourceError::new).boxed_unsync());
        Ok(Self {
            servers,
            server: 0,
            key: key.to_owned(),
            client: BoxCloneService::new(client.map_response(boxed).map_err(SourceError::new)),
            poll_interval: Duration::from_secs(5),
            watch: None,
            is_current: false,
        })
    }

    /// How often to read the key where the watch reports nothing: every five
    /// seconds by default.
    pub(crate) fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// Waits until the key may have changed.
    async fn changed(&mut self) {
        let Some(watch) = &mut self.watch else {
            // Returns at once: the key may have changed before the watch began.
            match within(TIMEOUT, self.watch()).await {
                Ok(watch) => self.watch = Some(watch),
                Err(_) => pause(UNWATCHED.min(self.poll_interval)).await,
            }
            return;
        };
        match timeout(self.poll_interval, watch.frame()).await {
            // Time to poll.
            Err(_) => {}
            Ok(Some(Ok(frame))) if !frame.data_ref().is_some_and(|data| is_end(data)) => {}
            Ok(_) => {
                self.watch = None;
                pause(WATCH_ENDED.min(self.poll_interval)).await;
            }
        }
    }

    /// Starts a watch. Returns once the server has confirmed it.
    async fn watch(&mut self) -> Result<Body, SourceError> {
        let key = BASE64_STANDARD.encode(&self.key);
        let mut watch = self.post("/v3/watch", &json!({ "create_request": { "key": key } })).await?;
        match watch.frame().await.transpose()? {
            Some(frame) if frame.data_ref().is_some_and(|data| !is_end(data)) => Ok(watch),
            _ => Err(SourceError::new("the server rejects the watch")),
        }
    }

    /// Reads the key.
    async fn get(&mut self) -> Result<Option<Document>, SourceError> {
        let request = json!({ "key": BASE64_STANDARD.encode(&self.key) });
        let body = self.post("/v3/kv/range", &request).await?;
        // The value in base64, the key, and the JSON around them.
        let max = (MAX_BYTES / 3 + 1) * 4 + self.key.len() * 2 + 4_096;
        let answer = match Limited::new(body, max).collect().await {
            Ok(answer) => answer.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Ok(Some(too_large())),
            Err(error) => return Err(SourceError::new(error)),
        };
        let answer: Value = serde_json::from_slice(&answer).map_err(SourceError::new)?;
        let Some(pair) = answer.pointer("/kvs/0") else { return Err(SourceError::new("the key is missing")) };
        // The gateway omits an empty value.
        let value = pair.get("value").and_then(Value::as_str).unwrap_or_default();
        Ok(Some(document(BASE64_STANDARD.decode(value).map_err(SourceError::new)?)))
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<Body, SourceError> {
        let request = Request::post(format!("{}{path}", root(&self.servers[self.server])))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(SourceError::new)?;
        let response = self.client.clone().oneshot(request).await?;
        match response.status() {
            StatusCode::OK => Ok(response.into_body()),
            status => Err(SourceError::new(format!("the server answers {status}"))),
        }
    }
}

impl PolicySource for EtcdSource {
    fn name(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(root).collect();
        format!("{} {}", servers.join(","), self.key)
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<Document>, SourceError>> {
        Box::pin(async {
            if std::mem::take(&mut self.is_current) {
                self.changed().await;
            }
            let update = within(TIMEOUT, self.get()).await;
            self.is_current = update.is_ok();
            if !self.is_current {
                (self.watch, self.server) = (None, (self.server + 1) % self.servers.len());
            }
            update
        })
    }
}

impl fmt::Debug for EtcdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdSource").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Parses a server's URL.
fn server(url: &str) -> Result<Uri, SourceError> {
    let uri: Uri = url.parse().map_err(|_| SourceError::new("url: must be a URL"))?;
    let Some(authority) = uri.authority() else { return Err(SourceError::new("url: needs a scheme and a host")) };
    // The source's name has the host, and is logged.
    if authority.as_str().contains('@') {
        return Err(SourceError::new("url: must hold no name and no password: the client may send them"));
    }
    match uri.scheme_str() {
        Some("http" | "https") => Ok(uri),
        _ => Err(SourceError::new("url: must start with `http://` or `https://`")),
    }
}

/// Scheme, host and port.
fn root(server: &Uri) -> String {
    let host = server.authority().map_or("", |authority| authority.as_str());
    format!("{}://{host}", server.scheme_str().unwrap_or_default())
}

fn document(value: Vec<u8>) -> Document {
    if value.len() > MAX_BYTES {
        return too_large();
    }
    match String::from_utf8(value) {
        Ok(text) => Document::yaml(text),
        Err(error) => Document::invalid(format!("is not UTF-8 at byte {}", error.utf8_error().valid_up_to())),
    }
}

fn too_large() -> Document {
    Document::invalid(format!("has more than {MAX_BYTES} bytes"))
}

/// Whether a message of a watch ends it. A value cannot contain these words: it
/// is in base64.
fn is_end(message: &[u8]) -> bool {
    let contains = |word: &[u8]| message.windows(word.len()).any(|part| part == word);
    contains(b"\"canceled\":true") || contains(b"\"error\":")
}

async fn pause(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

/// The answer, or an error once `limit` has passed.
async fn within<T>(limit: Duration, answer: impl Future<Output = Result<T, SourceError>>) -> Result<T, SourceError> {
    match timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(SourceError::new(format!("no answer within {limit:?}"))),
    }
}
