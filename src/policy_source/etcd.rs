use std::{error::Error, fmt, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tower_service::Service;

use super::{
    Document, MOST_BYTES, Next, PolicySource, SHORTEST_LOOK, SourceError, Update,
    client::{self, Body, Client},
};
use crate::error::ConfigError;

/// A policy in a key of etcd 3.4 or later, as YAML.
///
/// Changes are seen at once, by a watch; at the next look, within five seconds
/// unless set, where that was lost without a word; and within half a second
/// where the key cannot be watched. It speaks the
/// gateway that every etcd server has for JSON over HTTP. Of several servers it
/// asks the next one when one fails.
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
    /// Which of them is asked.
    at: usize,
    key: String,
    client: Client,
    every: Duration,
    most: usize,
    /// What tells of changes.
    notices: Option<Body>,
    told: bool,
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often to look where the key cannot be watched, and where a watch ends as
/// soon as it begins: something in between may not let it through.
const UNWATCHED: Duration = Duration::from_millis(500);
const BROKEN: Duration = Duration::from_millis(100);

impl EtcdSource {
    /// The key at one server, or at several of one cluster; without encryption:
    /// `http://host:2379`.
    ///
    /// # Errors
    ///
    /// Where there is no server, or one that is no such URL.
    pub fn new<'u>(servers: impl IntoIterator<Item = &'u str>, key: impl Into<String>) -> Result<Self, ConfigError> {
        let servers = servers.into_iter().map(|url| client::url(url, false)).collect::<Result<_, _>>()?;
        Self::by(servers, key.into(), Client::plain())
    }

    /// The same by another client, which may encrypt and authenticate. Its
    /// answers have to come as they arrive, not as a whole: a watch never ends.
    ///
    /// # Errors
    ///
    /// Where there is no server, or one that is no URL of HTTP.
    pub fn over<'u, S, B>(
        servers: impl IntoIterator<Item = &'u str>,
        key: impl Into<String>,
        service: S,
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
        Self::by(servers, key.into(), Client::over(service))
    }

    fn by(servers: Vec<Uri>, key: String, client: Client) -> Result<Self, ConfigError> {
        if servers.is_empty() {
            return Err(ConfigError::new("servers", "there are none"));
        }
        Ok(Self {
            servers,
            at: 0,
            key,
            client,
            every: Duration::from_secs(5),
            most: MOST_BYTES,
            notices: None,
            told: false,
        })
    }

    /// How often to look at the key where the watch says nothing: every five
    /// seconds, unless set. At least 10 ms.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(SHORTEST_LOOK);
        self
    }

    /// The most bytes that the value may have: a mebibyte, unless set.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.most = bytes;
        self
    }

    /// Waits until the key may have changed.
    async fn change(&mut self) {
        let Some(notices) = &mut self.notices else {
            // It may have changed until there was a watch.
            match in_time(self.watch()).await {
                Ok(notices) => self.notices = Some(notices),
                Err(_) => pause(UNWATCHED.min(self.every)).await,
            }
            return;
        };
        match timeout(self.every, notices.frame()).await {
            // It is looked at anyway.
            Err(_) => {}
            Ok(Some(Ok(frame))) if !frame.data_ref().is_some_and(|data| is_end(data)) => {}
            Ok(_) => {
                self.notices = None;
                pause(BROKEN.min(self.every)).await;
            }
        }
    }

    /// A watch, as soon as it is one.
    async fn watch(&mut self) -> Result<Body, SourceError> {
        let key = BASE64_STANDARD.encode(&self.key);
        let mut notices = self.post("/v3/watch", &json!({ "create_request": { "key": key } })).await?;
        match notices.frame().await.transpose().map_err(SourceError::new)? {
            Some(frame) if frame.data_ref().is_some_and(|data| !is_end(data)) => Ok(notices),
            _ => Err(SourceError::new("the server does not let the key be watched")),
        }
    }

    async fn get(&mut self) -> Result<Update, SourceError> {
        let request = json!({ "key": BASE64_STANDARD.encode(&self.key) });
        let body = self.post("/v3/kv/range", &request).await?;
        // As it is written there, and what is around it.
        let most = (self.most / 3 + 1).saturating_mul(4).saturating_add(self.key.len() * 2).saturating_add(4_096);
        let Some(answer) = client::read(body, most).await? else {
            return Ok(Update::Changed(Document::too_large(self.most)));
        };
        let answer: Value = serde_json::from_slice(&answer).map_err(SourceError::new)?;
        let Some(pair) = answer.pointer("/kvs/0") else { return Err(SourceError::new("the key is missing")) };
        // An empty value is left out.
        let value = pair.get("value").and_then(Value::as_str).unwrap_or_default();
        let value = BASE64_STANDARD.decode(value).map_err(SourceError::new)?;
        Ok(Update::Changed(Document::of_bytes(value, self.most)))
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<Body, SourceError> {
        let server = self.servers.get(self.at % self.servers.len().max(1)).cloned().unwrap_or_default();
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

/// Whether a watch says that there will be nothing more. Nothing else that it
/// says is of interest: a value in it is written in another alphabet.
fn is_end(notice: &[u8]) -> bool {
    let contains = |word: &[u8]| notice.windows(word.len()).any(|part| part == word);
    contains(b"\"canceled\":true") || contains(b"\"error\":")
}

async fn pause(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

async fn in_time<T>(answer: impl Future<Output = Result<T, SourceError>>) -> Result<T, SourceError> {
    match timeout(PATIENCE, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(SourceError::new(format!("no answer within {PATIENCE:?}"))),
    }
}

impl PolicySource for EtcdSource {
    fn name(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(client::root).collect();
        format!("{} {}", servers.join(","), self.key)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async {
            if std::mem::take(&mut self.told) {
                self.change().await;
            }
            match in_time(self.get()).await {
                Ok(update) => {
                    self.told = true;
                    Ok(update)
                }
                Err(error) => {
                    (self.notices, self.at) = (None, self.at.wrapping_add(1) % self.servers.len().max(1));
                    Err(error)
                }
            }
        })
    }
}

impl fmt::Debug for EtcdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { every, most, .. } = self;
        f.debug_struct("Etcd")
            .field("at", &self.name())
            .field("every", every)
            .field("most", most)
            .finish_non_exhaustive()
    }
}
