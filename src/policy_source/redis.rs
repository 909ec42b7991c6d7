//! A policy in a key of Redis or Valkey: [`RedisSource`].
//!
//! Notifications only signal a change: the value is always read from the key
//! itself. The connection is not shared with the Redis backend.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisError, aio::MultiplexedConnection,
};
use tokio::{sync::Notify, time::timeout};

use super::{DEFAULT_MAX_BYTES, Document, MIN_POLL_INTERVAL, PolicySource, SourceError, within};
use crate::error::ConfigError;

/// A policy in a key of Redis or Valkey, as a string of YAML.
///
/// Changes are seen at once by keyspace notifications or by a message on
/// [`channel`](Self::channel). The server sends keyspace notifications only if
/// it is set to: `notify-keyspace-events K$g` covers strings that are set,
/// deleted and renamed. Polling sees all else within five seconds by default. A
/// server before Redis 6, or a proxy without RESP3, is only polled.
///
/// The source has its own connection and shares nothing with
/// [`backend::Redis`](crate::backend::Redis).
///
/// ```
/// use tower_ratelimit::policy_source::RedisSource;
///
/// let source = RedisSource::new("redis://127.0.0.1/", "limits:policy")?.channel("limits:changed");
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[must_use]
pub struct RedisSource {
    server: ConnectionInfo,
    key: String,
    channel: Option<String>,
    poll_interval: Duration,
    max_bytes: usize,
    changed: Arc<Notify>,
    connection: Option<MultiplexedConnection>,
    /// The last read succeeded: the next one waits for a change.
    is_current: bool,
}

/// The timeout of an answer; connecting has twice that.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The longest string that Redis stores, in bytes.
const MAX_STRING: usize = 1 << 29;

impl RedisSource {
    /// The key at a server: `redis://user:password@host:6379/0`.
    ///
    /// # Errors
    ///
    /// If `url` is not a Redis URL. The error does not repeat it, as it may hold
    /// a password.
    pub fn new(url: &str, key: impl Into<String>) -> Result<Self, ConfigError> {
        let server = url.into_connection_info();
        let server = server.map_err(|_| ConfigError::new("url", "must be the URL of a Redis server"))?;
        Ok(Self {
            server,
            key: key.into(),
            channel: None,
            poll_interval: Duration::from_secs(5),
            max_bytes: DEFAULT_MAX_BYTES,
            changed: Arc::default(),
            connection: None,
            is_current: false,
        })
    }

    /// Reads the key again at each message on this channel, whatever its
    /// content.
    pub fn channel(mut self, name: impl Into<String>) -> Self {
        self.channel = Some(name.into());
        self
    }

    /// How often to read the key without a notification: every five seconds by
    /// default, at least 10 ms.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(MIN_POLL_INTERVAL);
        self
    }

    /// The largest value that is accepted, in bytes: 1 MiB by default. No more
    /// than that is fetched of a longer one.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        #[cfg(feature = "tls")]
        crate::backend::provide_cryptography();
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(TIMEOUT)).set_response_timeout(None);
        let changed = Arc::clone(&self.changed);
        let subscribed = config.clone().set_push_sender(move |push: PushInfo| {
            if matches!(push.kind, PushKind::Message | PushKind::Disconnection) {
                changed.notify_one();
            }
            Ok::<_, redis::aio::SendError>(())
        });
        let settings = self.server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(self.server.clone().set_redis_settings(settings))?;
        match client.get_multiplexed_async_connection_with_config(&subscribed).await {
            Ok(mut connection) => {
                let keyspace = format!("__keyspace@{}__:{}", self.server.redis_settings().db(), self.key);
                for channel in self.channel.iter().chain([&keyspace]) {
                    match connection.subscribe(channel).await {
                        Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                        // Without the right to subscribe, polling is enough.
                        _ => {}
                    }
                }
                Ok(connection)
            }
            Err(error) if error.kind() == ErrorKind::Io => Err(error),
            // The server may not speak RESP3. If it rejects the login, so does
            // this attempt.
            Err(_) => {
                let client = Client::open(self.server.clone())?;
                client.get_multiplexed_async_connection_with_config(&config).await
            }
        }
    }

    async fn get(&mut self) -> Result<Option<Document>, SourceError> {
        // Kept only if it answers: a late answer would be taken for the next one.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => within(TIMEOUT * 2, self.connect()).await?,
        };
        let mut command = redis::cmd("GETRANGE");
        command.arg(&self.key).arg(0).arg(self.max_bytes.min(MAX_STRING));
        let value: Vec<u8> = within(TIMEOUT, command.query_async(&mut connection)).await?;
        self.connection = Some(connection);
        if value.is_empty() {
            return Err(SourceError::new("the key is missing or empty"));
        }
        Ok(Some(Document::from_bytes(&value, self.max_bytes)))
    }
}

impl PolicySource for RedisSource {
    fn name(&self) -> String {
        format!("redis://{}/{}", self.server.addr(), self.key)
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Option<Document>, SourceError>> {
        Box::pin(async {
            if std::mem::take(&mut self.is_current) {
                // Notified or not, the key is read.
                let _ = timeout(self.poll_interval, self.changed.notified()).await;
            }
            let update = self.get().await;
            self.is_current = update.is_ok();
            update
        })
    }
}

/// Without the server's password.
impl fmt::Debug for RedisSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSource").field("name", &self.name()).finish_non_exhaustive()
    }
}
