use std::{fmt, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisError, aio::MultiplexedConnection,
};
use tokio::{sync::Notify, time::timeout};

use super::{Document, MOST_BYTES, Next, PolicySource, SHORTEST_LOOK, SourceError, Update};
use crate::error::ConfigError;

/// A policy in a key of Redis or Valkey, as a string of YAML.
///
/// Changes are seen at once where the server tells of them: by keyspace
/// notifications, which it has to be set to send (`notify-keyspace-events K$g`
/// tells of strings that are set, deleted and renamed), or by a message on
/// [`channel`](Self::channel). What it does not tell of is seen at the next
/// look, within five seconds unless set. A server before Redis 6, or a proxy
/// without its protocol, is only looked at.
///
/// It has a connection of its own, and shares nothing with
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
    every: Duration,
    most: usize,
    changed: Arc<Notify>,
    connection: Option<MultiplexedConnection>,
    told: bool,
}

/// How long connecting, and an answer, may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// No string of Redis' is longer.
const LONGEST: usize = 1 << 29;

impl RedisSource {
    /// The key at a server: `redis://user:password@host:6379/0`.
    ///
    /// # Errors
    ///
    /// Where the URL is none of Redis'; it may hold a password, and is not
    /// repeated.
    pub fn new(url: &str, key: impl Into<String>) -> Result<Self, ConfigError> {
        let server = url.into_connection_info();
        let server = server.map_err(|_| ConfigError::new("url", "is no URL of a Redis server"))?;
        Ok(Self {
            server,
            key: key.into(),
            channel: None,
            every: Duration::from_secs(5),
            most: MOST_BYTES,
            changed: Arc::default(),
            connection: None,
            told: false,
        })
    }

    /// A message on this channel, whatever it says, tells that the key may
    /// have changed.
    pub fn channel(mut self, name: impl Into<String>) -> Self {
        self.channel = Some(name.into());
        self
    }

    /// How often to look at the key where nobody tells of a change: every five
    /// seconds, unless set. At least 10 ms.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(SHORTEST_LOOK);
        self
    }

    /// The most bytes that the value may have: a mebibyte, unless set. Of what
    /// is longer no more than that is fetched.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.most = bytes;
        self
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        #[cfg(feature = "redis-tls")]
        crate::backend::provide_cryptography();
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(None);
        let changed = Arc::clone(&self.changed);
        // Messages are not kept: that there was one is all there is to know.
        let listening = config.clone().set_push_sender(move |push: PushInfo| {
            if matches!(push.kind, PushKind::Message | PushKind::Disconnection) {
                changed.notify_one();
            }
            Ok::<_, redis::aio::SendError>(())
        });
        let settings = self.server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(self.server.clone().set_redis_settings(settings))?;
        match client.get_multiplexed_async_connection_with_config(&listening).await {
            Ok(mut connection) => {
                let notices = format!("__keyspace@{}__:{}", self.server.redis_settings().db(), self.key);
                let channels: Vec<_> = self.channel.iter().chain([&notices]).collect();
                for channel in channels {
                    match connection.subscribe(channel).await {
                        Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                        // It may not: then it looks, as it does anyway.
                        _ => {}
                    }
                }
                Ok(connection)
            }
            Err(error) if error.kind() == ErrorKind::Io => Err(error),
            // It does not speak the protocol, or does not let us in at all.
            Err(_) => {
                let client = Client::open(self.server.clone())?;
                client.get_multiplexed_async_connection_with_config(&config).await
            }
        }
    }

    async fn look(&mut self) -> Result<Update, SourceError> {
        let late = || SourceError::new(format!("no answer within {PATIENCE:?}"));
        // Gone unless it answers: what it is asked next belongs to it no more.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => timeout(PATIENCE * 2, self.connect()).await.map_err(|_| late())?.map_err(SourceError::new)?,
        };
        let mut part = redis::cmd("GETRANGE");
        part.arg(&self.key).arg(0).arg(self.most.min(LONGEST));
        let asked = timeout(PATIENCE, part.query_async::<Vec<u8>>(&mut connection)).await;
        let value = asked.map_err(|_| late())?.map_err(SourceError::new)?;
        self.connection = Some(connection);
        if value.is_empty() {
            return Err(SourceError::new("the key is missing or empty"));
        }
        Ok(Update::Changed(Document::of_bytes(value, self.most)))
    }
}

impl PolicySource for RedisSource {
    fn name(&self) -> String {
        format!("redis://{}/{}", self.server.addr(), self.key)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async {
            if std::mem::take(&mut self.told) {
                // Late or told of: it is looked at.
                let _ = timeout(self.every, self.changed.notified()).await;
            }
            let update = self.look().await?;
            self.told = true;
            Ok(update)
        })
    }
}

/// Without what may be secret in its address.
impl fmt::Debug for RedisSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { channel, every, most, .. } = self;
        let mut name = f.debug_struct("Redis");
        name.field("at", &self.name()).field("channel", channel).field("every", every).field("most", most);
        name.finish_non_exhaustive()
    }
}
