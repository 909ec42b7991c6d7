//! The public builder of [`Redis`]. It gathers settings; `settings`
//! checks them.
//!
//! Invariant: a backend exists only with settings that were checked.

use std::{fmt, pin::Pin, time::Duration};

use tokio::runtime::Handle;

use super::{
    Redis,
    settings::{Deployment, ServerConfig, Settings, without_secrets},
    transport::{Link, breaker::BreakerSettings},
};
use crate::error::{BackendError, ConfigError};

/// Builds a [`Redis`].
///
/// ```no_run
/// use std::time::Duration;
/// use tower_ratelimit::backend::Redis;
///
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::builder()
///     .url("rediss://limiter:secret@redis.internal/0")
///     .prefix("shop")
///     .deadline(Duration::from_millis(20))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisBuilder {
    servers: ServerConfig,
    settings: Settings,
}

impl Redis {
    /// Starts building a backend, with the default settings.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::new()
    }

    /// Connects to one server, with default settings otherwise.
    ///
    /// # Errors
    ///
    /// As [`RedisBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).connect().await
    }
}

impl RedisBuilder {
    pub(super) fn new() -> Self {
        Self { servers: ServerConfig::default(), settings: Settings::new() }.url("redis://127.0.0.1:6379")
    }

    /// One server: `redis://`, `rediss://` (TLS) or `unix://`; the URL may
    /// contain user, password and database. Default: `redis://127.0.0.1:6379`.
    pub fn url(self, url: impl Into<String>) -> Self {
        self.at(Deployment::Single, [url])
    }

    /// A cluster, by the URLs of some of its nodes; they name the others.
    pub fn cluster(self, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.at(Deployment::Cluster, urls)
    }

    /// The primary of this name, by the URLs of its sentinels. Users and
    /// passwords in the URLs are for the sentinels; set those of the primary by
    /// [`username`](Self::username), [`password`](Self::password) and
    /// [`database`](Self::database).
    pub fn sentinel(self, master: impl Into<String>, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.at(Deployment::Sentinel(master.into()), urls)
    }

    /// The user. Overrides the one in the URL.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.servers.username = Some(username.into());
        self
    }

    /// The password. Overrides the one in the URL.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.servers.password = Some(password.into());
        self
    }

    /// The database. Overrides the one in the URL. A cluster has only 0.
    pub fn database(mut self, database: u32) -> Self {
        self.servers.database = Some(database);
        self
    }

    /// The prefix of all keys: limiters with the same prefix share their
    /// counters. Default: `rl`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// The number of connections, 1 to 1024. Default: 1, which carries many
    /// requests at once. A cluster has one to each node.
    pub fn connections(mut self, connections: usize) -> Self {
        self.settings.connections = connections;
        self
    }

    /// The longest time to connect, for each server. Default: 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// The longest time for a decision, queueing included. Beyond it the rule's
    /// failure mode decides. Default: 50 ms. In a cluster, a request that may
    /// wait and is charged in several hash slots takes up to four rounds, each
    /// with this deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// The circuit breaker. It opens after `failures` consecutive failures, at
    /// least 1, or one connection that is lost during a call. The first probe follows after `shortest`; the delay doubles
    /// up to `longest` while probes fail, and each is drawn from half of that
    /// to all of it. Default: 5 failures, 100 ms to 5 s.
    pub fn breaker(mut self, failures: u32, shortest: Duration, longest: Duration) -> Self {
        self.settings.breaker = BreakerSettings { failures, shortest, longest };
        self
    }

    /// The most decisions in one call, 1 to 65,536. Default: 256.
    pub fn max_batch(mut self, decisions: usize) -> Self {
        self.settings.max_batch = decisions;
        self
    }

    /// How long a rejection is cached in-process at most, up to 65,536 of them; zero turns the
    /// cache off. Default: 1 s.
    pub fn rejection_cache_ttl(mut self, ttl: Duration) -> Self {
        self.settings.rejection_cache_ttl = ttl;
        self
    }

    /// How long a unit in flight is held without renewal; leases are renewed at
    /// every third of that. The units of an instance that died return after one
    /// lease. An instance that is paused for longer may lose its units to
    /// others. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Trusts only this root certificate (PEM), instead of Mozilla's.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.servers.certificates().root_cert = Some(pem.into());
        self
    }

    /// Authenticates with this certificate and key (both PEM).
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        let client = redis::ClientTlsConfig { client_cert: certificate.into(), client_key: key.into() };
        self.servers.certificates().client_tls = Some(client);
        self
    }

    /// Decides by the limiter's clock instead of the server's: for tests that
    /// step time.
    #[cfg(feature = "test-util")]
    pub fn limiter_time(mut self) -> Self {
        self.settings.uses_limiter_time = true;
        self
    }

    /// Drives connections and calls on the runtime that the backend is created on, instead
    /// of on a thread of its own: for tests and simulations with a paused clock. The
    /// backend works only as long as that runtime.
    pub fn on_current_runtime(mut self) -> Self {
        self.settings.uses_current_runtime = true;
        self
    }

    /// Connects, loads the scripts and runs one.
    ///
    /// # Errors
    ///
    /// Names the address and the cause: an invalid setting, an unreachable
    /// server, a wrong password, no right to run scripts.
    pub async fn connect(self) -> Result<Redis, BackendError> {
        let settings = self.checked().map_err(BackendError::misconfigured)?;
        // Type-erased: with the driver's futures in it, the caller's future would
        // exceed the recursion limit of the caller's crate.
        let connecting: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(Link::connect(settings));
        Ok(Redis::new(connecting.await?))
    }

    /// Connects in the background. Until then, and while the server is
    /// unreachable, the rules' failure modes decide.
    ///
    /// # Errors
    ///
    /// An invalid setting, or a call outside a tokio runtime.
    pub fn connect_lazy(self) -> Result<Redis, ConfigError> {
        let link = Link::lazy(self.checked()?).map_err(|error| ConfigError::new("", error.to_string()))?;
        Ok(Redis::new(link))
    }

    fn at(mut self, deployment: Deployment, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.servers.deployment = deployment;
        self.servers.urls = urls.into_iter().map(Into::into).collect();
        self
    }

    fn checked(self) -> Result<Settings, ConfigError> {
        let settings = self.settings()?;
        match Handle::try_current() {
            Ok(_) => Ok(settings),
            Err(_) => Err(ConfigError::new("", "must be called inside a tokio runtime")),
        }
    }

    pub(super) fn settings(self) -> Result<Settings, ConfigError> {
        let settings = Settings {
            servers: self.servers.servers()?,
            #[cfg(feature = "tls")]
            certificates: self.servers.certificates,
            ..self.settings
        };
        settings.check()?;
        Ok(settings)
    }
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("urls", &self.servers.urls.iter().map(|url| without_secrets(url)).collect::<Vec<_>>())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
