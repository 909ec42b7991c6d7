//! A policy at a URL: [`HttpSource`].
//!
//! Long polling where the server supports it, else polling. After any failure
//! the next request is unconditional.

use std::{error::Error, fmt, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri,
    header::{ACCEPT, ETAG, IF_NONE_MATCH},
};
use http_body_util::Full;
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

use super::{
    client::{self, Client},
    document::{DEFAULT_MAX_BYTES, Document},
    source::{NextUpdate, PolicySource, SourceError, Update, within},
};
use crate::error::ConfigError;

/// A policy at a URL, such as a configuration server's: YAML, or JSON, which is
/// YAML as well.
///
/// 1. The first request, and the first one after a failure, is unconditional.
/// 2. Every other request sends the last `ETag` as `If-None-Match`, and
///    `Prefer: wait=30`. A server with long polling, such as Central Dogma,
///    answers once there is a change, or with 304 after that time. It is asked
///    again at once.
/// 3. A server without long polling is polled every five seconds.
///
/// Any status but 200 and 304 is a failure, and redirections are not followed.
/// So is a connection that ends early, and a response that takes five seconds
/// longer than the server was asked to wait.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::policy_source::HttpSource;
///
/// let source = HttpSource::new("http://config.internal/limits.yaml")?.wait(Duration::from_secs(50));
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[must_use]
pub struct HttpSource {
    uri: Uri,
    client: Client,
    headers: HeaderMap,
    poll_interval: Duration,
    wait: Duration,
    max_bytes: usize,
    /// The `ETag` of the last response.
    version: Option<HeaderValue>,
    /// When to ask next; `None` for an unconditional request at once.
    due: Option<Instant>,
}

/// The timeout of a response, beyond what the server was asked to wait.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest time between two requests, even if every response differs.
const SHORTEST: Duration = Duration::from_millis(100);

/// Timers do not reach as far as some durations do.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

const PREFER: HeaderName = HeaderName::from_static("prefer");

impl HttpSource {
    /// A URL without encryption: `http://host:port/path`.
    ///
    /// # Errors
    ///
    /// If `url` is not such a URL.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        Ok(Self::from_parts(client::url(url, false)?, Client::plain()))
    }

    /// A URL that is requested by the application's client, which may encrypt,
    /// follow redirections, authenticate, or unwrap responses.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::Full;
    /// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
    /// use tower_ratelimit::policy_source::HttpSource;
    ///
    /// // For `https`, build it with a connector that encrypts.
    /// let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    /// let source = HttpSource::with_client("https://config.internal/limits.yaml", client)?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If `url` is not an HTTP URL.
    pub fn with_client<S, B>(url: &str, client: S) -> Result<Self, ConfigError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        Ok(Self::from_parts(client::url(url, true)?, Client::new(client)))
    }

    fn from_parts(uri: Uri, client: Client) -> Self {
        Self {
            uri,
            client,
            headers: HeaderMap::new(),
            poll_interval: Duration::from_secs(5),
            wait: Duration::from_secs(30),
            max_bytes: DEFAULT_MAX_BYTES,
            version: None,
            due: None,
        }
    }

    /// Sends this header with each request, such as `authorization`.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// How often to ask a server without long polling: every five seconds by
    /// default, clamped to between 100 ms and a day.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.clamp(SHORTEST, LONGEST);
        self
    }

    /// How long the server is asked to wait for a change (long polling), in
    /// whole seconds: 30 by default, at most an hour; 0 turns long polling off.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Duration::from_secs(wait.as_secs().min(3_600));
        self
    }

    /// The largest response that is accepted, in bytes: 1 MiB by default. No more
    /// than that is kept of a longer one.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    fn request(&self, wait: Duration) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/yaml, application/json, text/plain, */*;q=0.1"));
        headers.extend(self.headers.clone());
        headers.extend(self.version.clone().map(|version| (IF_NONE_MATCH, version)));
        if let (false, Ok(value)) = (wait.is_zero(), HeaderValue::try_from(format!("wait={}", wait.as_secs()))) {
            headers.insert(PREFER, value);
        }
        request
    }

    async fn ask(&mut self, request: Request<Full<Bytes>>, wait: Duration) -> Result<Update, SourceError> {
        let started = Instant::now();
        let (head, body) = self.client.call(request).await?.into_parts();
        match head.status {
            StatusCode::OK => {
                let document = match client::read(body, self.max_bytes).await? {
                    Some(bytes) => Document::from_bytes(bytes, self.max_bytes),
                    None => Document::too_large(self.max_bytes),
                };
                let version = head.headers.get(ETAG).cloned();
                // A server with versions may support long polling.
                let pause = if version.is_some() && version != self.version { SHORTEST } else { self.poll_interval };
                (self.version, self.due) = (version, Some(started + pause));
                Ok(Update::Changed(document))
            }
            StatusCode::NOT_MODIFIED if self.version.is_some() => {
                // A server that has waited supports long polling: the poll
                // interval does not apply.
                let has_waited = !wait.is_zero() && started.elapsed() + SHORTEST >= wait;
                self.due = Some(started + if has_waited { SHORTEST } else { self.poll_interval });
                Ok(Update::Unchanged)
            }
            status => Err(SourceError::new(format!("the server answers {status}"))),
        }
    }
}

impl PolicySource for HttpSource {
    fn name(&self) -> String {
        client::name(&self.uri)
    }

    fn next(&mut self) -> NextUpdate<'_> {
        Box::pin(async {
            match self.due.take() {
                Some(due) => sleep_until(due).await,
                // A restarted server may give the same version to other content.
                None => self.version = None,
            }
            // Only a version makes the server wait for a change.
            let wait = if self.version.is_some() { self.wait } else { Duration::ZERO };
            let request = self.request(wait);
            within(wait + TIMEOUT, self.ask(request, wait)).await
        })
    }
}

/// Without headers and query, which may hold secrets.
impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSource").field("url", &self.name()).finish_non_exhaustive()
    }
}
