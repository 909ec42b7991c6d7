//! A policy at a URL: [`HttpSource`].
//!
//! Long polling where the server supports it, else polling. After any failure
//! the next request is unconditional.

use std::{error::Error, fmt, time::Duration};

use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri,
    header::{ACCEPT, ETAG, IF_NONE_MATCH},
    uri::Scheme,
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::time::{Instant, sleep_until};
use tower::{ServiceExt, util::BoxCloneService};
use tower_service::Service;

use super::{DEFAULT_MAX_BYTES, Document, MAX_DELAY, PolicySource, SourceError, within};
use crate::error::ConfigError;

type BoxError = Box<dyn Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, SourceError>;
type Client = BoxCloneService<Request<Full<Bytes>>, Response<Body>, SourceError>;

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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

const PREFER: HeaderName = HeaderName::from_static("prefer");

impl HttpSource {
    /// A URL without encryption: `http://host:port/path`.
    ///
    /// # Errors
    ///
    /// If `url` is not such a URL.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = legacy::Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
        let source = Self::with_client(url, client)?;
        if source.uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(ConfigError::new("url", "needs a client that encrypts: see `with_client`"));
        }
        Ok(source)
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
        S: Service<Request<Full<Bytes>>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + 'static,
        B: http_body::Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let whole = |mut data: B::Data| data.copy_to_bytes(data.remaining());
        let erased =
            move |body: B| body.map_frame(move |frame| frame.map_data(whole)).map_err(SourceError::new).boxed_unsync();
        let client = client.map_response(move |response| response.map(erased)).map_err(SourceError::new);
        Ok(Self {
            uri: parse(url)?,
            client: BoxCloneService::new(client),
            headers: HeaderMap::new(),
            poll_interval: Duration::from_secs(5),
            wait: Duration::from_secs(30),
            max_bytes: DEFAULT_MAX_BYTES,
            version: None,
            due: None,
        })
    }

    /// Sends this header with each request, such as `authorization`.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// How often to ask a server without long polling: every five seconds by
    /// default, clamped to between 100 ms and a day.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.clamp(SHORTEST, MAX_DELAY);
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

    async fn ask(&mut self, request: Request<Full<Bytes>>, wait: Duration) -> Result<Option<Document>, SourceError> {
        let started = Instant::now();
        let response = self.client.clone().oneshot(request).await?;
        let (head, body) = response.into_parts();
        match head.status {
            StatusCode::OK => {
                let document = read(body, self.max_bytes).await?;
                let version = head.headers.get(ETAG).cloned();
                // A server with versions may support long polling.
                let pause = if version.is_some() && version != self.version { SHORTEST } else { self.poll_interval };
                (self.version, self.due) = (version, Some(started + pause));
                Ok(Some(document))
            }
            StatusCode::NOT_MODIFIED if self.version.is_some() => {
                // A server that has waited supports long polling: the poll
                // interval does not apply.
                let has_waited = !wait.is_zero() && started.elapsed() + SHORTEST >= wait;
                self.due = Some(started + if has_waited { SHORTEST } else { self.poll_interval });
                Ok(None)
            }
            status => Err(SourceError::new(format!("the server answers {status}"))),
        }
    }
}

impl PolicySource for HttpSource {
    fn name(&self) -> String {
        // Without the query, which may hold a secret.
        let host = self.uri.authority().map_or("", |host| host.as_str());
        format!("{}://{host}{}", self.uri.scheme_str().unwrap_or_default(), self.uri.path())
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<Document>, SourceError>> {
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

/// The document in a body, of which no more than `max_bytes` are kept.
async fn read(body: Body, max_bytes: usize) -> Result<Document, SourceError> {
    match Limited::new(body, max_bytes).collect().await {
        Ok(body) => Ok(Document::from_bytes(&body.to_bytes(), max_bytes)),
        Err(error) if error.is::<LengthLimitError>() => Ok(Document::too_large(max_bytes)),
        Err(error) => Err(SourceError::new(error)),
    }
}

/// Parses an HTTP URL with a host and without credentials.
fn parse(url: &str) -> Result<Uri, ConfigError> {
    let error = |reason: &str| ConfigError::new("url", reason);
    let uri: Uri = url.parse().map_err(|_| error("must be a URL"))?;
    let Some(authority) = uri.authority() else { return Err(error("needs a scheme and a host")) };
    if authority.as_str().contains('@') {
        return Err(error("must hold no name and no password: send them in a header"));
    }
    match uri.scheme_str() {
        Some("http" | "https") => Ok(uri),
        _ => Err(error("must start with `http://` or `https://`")),
    }
}
