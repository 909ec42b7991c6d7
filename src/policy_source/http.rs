use std::{error::Error, fmt, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri,
    header::{ACCEPT, ETAG, IF_NONE_MATCH},
};
use http_body_util::Full;
use tokio::time::{Instant, sleep_until, timeout};
use tower_service::Service;

use super::{
    Document, MOST_BYTES, Next, PolicySource, SourceError, Update,
    client::{self, Client},
};
use crate::error::ConfigError;

/// A policy that a URL answers, such as a configuration server's: YAML, or
/// JSON, which is YAML as well.
///
/// 1. The first request asks for what there is, on no condition. So does the
///    first one after any that failed.
/// 2. All others send the answer's `ETag` as `If-None-Match`, and
///    `Prefer: wait=30`. A server that knows of it (long polling, as Central
///    Dogma has it) answers once there is a change, or 304 when the time is
///    over; then it is asked again at once.
/// 3. A server that does not wait is asked every five seconds.
///
/// Any answer but 200 and 304 counts as none; redirections are not followed.
/// A server that does not answer within five seconds, beyond what it was asked
/// to wait, counts as away; so does one whose connection ends.
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
    every: Duration,
    wait: Duration,
    most: usize,
    /// What is asked for a change of.
    version: Option<HeaderValue>,
    /// When to ask next; `None` where that is at once, for what there is.
    due: Option<Instant>,
}

/// How long an answer may take, beyond what the server was asked to wait.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server whose answers are another each time is not asked more often.
const SHORTEST: Duration = Duration::from_millis(100);

/// Timers do not reach so far as some durations do.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

const PREFER: HeaderName = HeaderName::from_static("prefer");

impl HttpSource {
    /// What a URL answers, without encryption: `http://host:port/path`.
    ///
    /// # Errors
    ///
    /// Where it is no such URL.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        Ok(Self::by(client::url(url, false)?, Client::plain()))
    }

    /// The same by another client, which may encrypt, follow redirections,
    /// authenticate, or unwrap what it gets.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::Full;
    /// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
    /// use tower_ratelimit::policy_source::HttpSource;
    ///
    /// // One that knows `https` as well would be built with its connector.
    /// let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    /// let source = HttpSource::over("https://config.internal/limits.yaml", client)?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Where it is no URL of HTTP.
    pub fn over<S, B>(url: &str, service: S) -> Result<Self, ConfigError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        Ok(Self::by(client::url(url, true)?, Client::over(service)))
    }

    fn by(uri: Uri, client: Client) -> Self {
        Self {
            uri,
            client,
            headers: HeaderMap::new(),
            every: Duration::from_secs(5),
            wait: Duration::from_secs(30),
            most: MOST_BYTES,
            version: None,
            due: None,
        }
    }

    /// Sends this header with each request, such as `authorization`.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// How often a server is asked that does not wait for a change: every five
    /// seconds, unless set. From 100 ms to a day.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.clamp(SHORTEST, LONGEST);
        self
    }

    /// How long the server is asked to wait for a change, in whole seconds: 30,
    /// unless set. Up to an hour; 0: it is not asked to.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Duration::from_secs(wait.as_secs().min(3_600));
        self
    }

    /// The most bytes that the answer may have: a mebibyte, unless set. Of what
    /// is longer no more than that is kept.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.most = bytes;
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
                let document = match client::read(body, self.most).await? {
                    Some(bytes) => Document::of_bytes(bytes, self.most),
                    None => Document::too_large(self.most),
                };
                let version = head.headers.get(ETAG).cloned();
                // A server that tells versions apart may be waiting for the next.
                let pause = if version.is_some() && version != self.version { SHORTEST } else { self.every };
                (self.version, self.due) = (version, Some(started + pause));
                Ok(Update::Changed(document))
            }
            StatusCode::NOT_MODIFIED if self.version.is_some() => {
                // A server that has waited is asked again at once, however often
                // others are asked.
                let waited = !wait.is_zero() && started.elapsed() + SHORTEST >= wait;
                self.due = Some(started + if waited { SHORTEST } else { self.every });
                Ok(Update::Unchanged)
            }
            status => Err(SourceError::new(format!("the server answers {status}"))),
        }
    }
}

impl PolicySource for HttpSource {
    fn name(&self) -> String {
        client::named(&self.uri)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async {
            let due = self.due.take();
            let wait = match due {
                Some(due) => {
                    sleep_until(due).await;
                    // Without a version there is nothing to wait for a change of.
                    if self.version.is_some() { self.wait } else { Duration::ZERO }
                }
                None => {
                    // Who knows whether what answers now means the same by it.
                    self.version = None;
                    Duration::ZERO
                }
            };
            let request = self.request(wait);
            let most = wait + PATIENCE;
            match timeout(most, self.ask(request, wait)).await {
                Ok(answer) => answer,
                Err(_) => Err(SourceError::new(format!("no answer within {most:?}"))),
            }
        })
    }
}

/// Without headers and query, which may hold what is secret.
impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { every, wait, most, .. } = self;
        let mut fields = f.debug_struct("Http");
        fields.field("url", &self.name()).field("every", every).field("wait", wait).field("most", most);
        fields.finish_non_exhaustive()
    }
}
