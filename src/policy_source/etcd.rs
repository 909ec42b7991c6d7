//! A policy in a key of etcd: [`EtcdSource`].
//!
//! Speaks the JSON gateway of etcd over HTTP. A watch only signals a change: the
//! value is always read from the key itself.

use std::{error::Error, fmt, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tower_service::Service;

use super::{
    client::{self, Body, Client},
    document::{DEFAULT_MAX_BYTES, Document},
    source::{MIN_POLL_INTERVAL, NextUpdate, PolicySource, SourceError, Update, within},
};
use crate::error::ConfigError;

/// A policy in a key of etcd 3.4 or later, as YAML.
///
/// Changes are seen at once by a watch. Polling sees what a broken watch has
/// missed: within five seconds by default, and within half a second where the
/// key cannot be watched. The source speaks the JSON gateway that every etcd
/// server has. When one of several servers fails, it asks the next one.
///
/// ```
/// use tower_ratelimit::policy_source::EtcdSource;
///
/// let source = EtcdSource::new(["http://10.0.0.1:2379", "http://10.0.0.2:2379"], "/limits/policy")?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[must_use]
pub struct EtcdSource {
    servers: Vec<Uri>,
    /// The index of the server that is asked.
    server: usize,
    key: String,
    client: Client,
    poll_interval: Duration,
    max_bytes: usize,
    /// The stream of a watch.
    watch: Option<Body>,
    /// The last read succeeded: the next one waits for a change.
    is_current: bool,
}

const TIMEOUT: Duration = Duration::from_secs(2);

/// The poll interval where the key cannot be watched.
const UNWATCHED: Duration = Duration::from_millis(500);

/// The pause after a watch has ended: a proxy may end each one at once.
const WATCH_ENDED: Duration = Duration::from_millis(100);

impl EtcdSource {
    /// The key at one server, or at several of one cluster, without encryption:
    /// `http://host:2379`.
    ///
    /// # Errors
    ///
    /// If there is no server, or one is not such a URL.
    pub fn new<'u>(servers: impl IntoIterator<Item = &'u str>, key: impl Into<String>) -> Result<Self, ConfigError> {
        let servers = servers.into_iter().map(|url| client::url(url, false)).collect::<Result<_, _>>()?;
        Self::from_parts(servers, key.into(), Client::plain())
    }

    /// The key, requested by the application's client, which may encrypt and
    /// authenticate. It has to stream response bodies: that of a watch never
    /// ends.
    ///
    /// # Errors
    ///
    /// If there is no server, or one is not an HTTP URL.
    pub fn with_client<'u, S, B>(
        servers: impl IntoIterator<Item = &'u str>,
        key: impl Into<String>,
        client: S,
    ) -> Result<Self, ConfigError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let servers = servers.into_iter().map(|url| client::url(url, true)).collect::<Result<_, _>>()?;
        Self::from_parts(servers, key.into(), Client::new(client))
    }

    fn from_parts(servers: Vec<Uri>, key: String, client: Client) -> Result<Self, ConfigError> {
        if servers.is_empty() {
            return Err(ConfigError::new("servers", "there are none"));
        }
        Ok(Self {
            servers,
            server: 0,
            key,
            client,
            poll_interval: Duration::from_secs(5),
            max_bytes: DEFAULT_MAX_BYTES,
            watch: None,
            is_current: false,
        })
    }

    /// How often to read the key where the watch reports nothing: every five
    /// seconds by default, at least 10 ms.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(MIN_POLL_INTERVAL);
        self
    }

    /// The largest value that is accepted, in bytes: 1 MiB by default.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
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
        match watch.frame().await.transpose().map_err(SourceError::new)? {
            Some(frame) if frame.data_ref().is_some_and(|data| !is_end(data)) => Ok(watch),
            _ => Err(SourceError::new("the server rejects the watch")),
        }
    }

    async fn get(&mut self) -> Result<Update, SourceError> {
        let request = json!({ "key": BASE64_STANDARD.encode(&self.key) });
        let body = self.post("/v3/kv/range", &request).await?;
        // The value in base64, the key, and the JSON around them.
        let max = (self.max_bytes / 3 + 1).saturating_mul(4).saturating_add(self.key.len() * 2).saturating_add(4_096);
        let Some(answer) = client::read(body, max).await? else {
            return Ok(Update::Changed(Document::too_large(self.max_bytes)));
        };
        let answer: Value = serde_json::from_slice(&answer).map_err(SourceError::new)?;
        let Some(pair) = answer.pointer("/kvs/0") else { return Err(SourceError::new("the key is missing")) };
        // The gateway omits an empty value.
        let value = pair.get("value").and_then(Value::as_str).unwrap_or_default();
        let value = BASE64_STANDARD.decode(value).map_err(SourceError::new)?;
        Ok(Update::Changed(Document::from_bytes(value, self.max_bytes)))
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<Body, SourceError> {
        let server = self.servers.get(self.server % self.servers.len().max(1)).cloned().unwrap_or_default();
        let request = Request::builder().method(Method::POST).uri(format!("{}{path}", client::root(&server)));
        let request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let request = request.body(Full::new(Bytes::from(body.to_string()))).map_err(SourceError::new)?;
        let response = self.client.call(request).await?;
        match response.status() {
            StatusCode::OK => Ok(response.into_body()),
            status => Err(SourceError::new(format!("the server answers {status}"))),
        }
    }
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

impl PolicySource for EtcdSource {
    fn name(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(client::root).collect();
        format!("{} {}", servers.join(","), self.key)
    }

    fn next(&mut self) -> NextUpdate<'_> {
        Box::pin(async {
            if std::mem::take(&mut self.is_current) {
                self.changed().await;
            }
            let update = within(TIMEOUT, self.get()).await;
            self.is_current = update.is_ok();
            if !self.is_current {
                (self.watch, self.server) = (None, self.server.wrapping_add(1) % self.servers.len().max(1));
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
