use std::{fmt, time::Duration};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use tokio::runtime::Handle;

use super::{
    Redis,
    link::Link,
    settings::{Place, Settings},
};
use crate::{
    backend::breaker::BreakerSettings,
    error::{BackendError, ConfigError},
};

/// Sets up a [`Redis`].
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
    target: Target,
    username: Option<String>,
    password: Option<String>,
    database: Option<u32>,
    prefix: String,
    connections: usize,
    connect_timeout: Duration,
    deadline: Duration,
    breaker: BreakerSettings,
    max_batch: usize,
    rejection_cache_ttl: Duration,
    rejection_cache_size: usize,
    lease: Duration,
    limiter_time: bool,
    #[cfg(feature = "redis-tls")]
    root_certificate: Option<Vec<u8>>,
    #[cfg(feature = "redis-tls")]
    client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone)]
enum Target {
    Url(String),
    Cluster(Vec<String>),
    Sentinel(String, Vec<String>),
}

impl RedisBuilder {
    pub(super) fn new() -> Self {
        Self {
            target: Target::Url("redis://127.0.0.1:6379".into()),
            username: None,
            password: None,
            database: None,
            prefix: "rl".into(),
            connections: 1,
            connect_timeout: Duration::from_secs(1),
            deadline: Duration::from_millis(50),
            breaker: BreakerSettings::default(),
            max_batch: 256,
            rejection_cache_ttl: Duration::from_secs(1),
            rejection_cache_size: 65_536,
            lease: Duration::from_secs(30),
            limiter_time: false,
            #[cfg(feature = "redis-tls")]
            root_certificate: None,
            #[cfg(feature = "redis-tls")]
            client_certificate: None,
        }
    }

    /// One server: `redis://`, `rediss://` (TLS) or `unix://`, with user,
    /// password and database in it as usual. Default:
    /// `redis://127.0.0.1:6379`.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.target = Target::Url(url.into());
        self
    }

    /// A cluster, by the URLs of some of its nodes; it tells of the others.
    pub fn cluster(mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.target = Target::Cluster(urls.into_iter().map(Into::into).collect());
        self
    }

    /// The master of this name, by the URLs of its sentinels. What the URLs
    /// say of users and passwords is for the sentinels; the master's are
    /// [`username`](Self::username), [`password`](Self::password) and
    /// [`database`](Self::database).
    pub fn sentinel(mut self, master: impl Into<String>, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.target = Target::Sentinel(master.into(), urls.into_iter().map(Into::into).collect());
        self
    }

    /// The user; stands above one in the URL.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.username = Some(username.into());
        self
    }

    /// The password; stands above one in the URL.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The database; stands above one in the URL. A cluster has only 0.
    pub fn database(mut self, database: u32) -> Self {
        self.database = Some(database);
        self
    }

    /// What all keys begin with: limiters with the same prefix share their
    /// counters. Default: `rl`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How many connections are kept, 1 to 1024. Default: 1, over which many
    /// requests go at once. A cluster has one to each node.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// How long connecting may take, to each server. Default: 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long an answer may take in all, queueing included. Beyond it the
    /// rule's failure mode decides. Default: 50 ms. A request that may wait and
    /// is charged in several slots of a cluster asks up to four times, each
    /// within it.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// After so many failures in a row, at least 1, or one lost connection (which
    /// in a cluster is one of those failures), the store is left alone: first for `shortest`, doubling up to `longest`
    /// while probes fail; each time for the half of it to all of it, at random.
    /// Default: 5 failures, 100 ms to 5 s.
    pub fn breaker(mut self, failures: u32, shortest: Duration, longest: Duration) -> Self {
        self.breaker = BreakerSettings { failures, shortest, longest };
        self
    }

    /// How many decisions go out in one call at most, 1 to 65,536. Default: 256.
    pub fn max_batch(mut self, decisions: usize) -> Self {
        self.max_batch = decisions;
        self
    }

    /// For how long at most a key that is over its limit is rejected without
    /// asking; zero: never. Default: 1 s.
    pub fn rejection_cache_ttl(mut self, longest: Duration) -> Self {
        self.rejection_cache_ttl = longest;
        self
    }

    /// How many such keys are remembered, at most 16,777,216. Default: 65,536.
    pub fn rejection_cache_size(mut self, most: usize) -> Self {
        self.rejection_cache_size = most;
        self
    }

    /// For how long a unit in flight is held without being renewed, which it is
    /// at every third of that: what an instance held that died comes back after
    /// it, and one that is paused for longer may lose what it holds to others.
    /// Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Trusts this root certificate (PEM) alone, instead of the usual ones.
    #[cfg(feature = "redis-tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// Shows this certificate with this key (both PEM) to the server.
    #[cfg(feature = "redis-tls")]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Decides by the limiter's clock instead of the server's: for tests that
    /// step time.
    #[cfg(feature = "test-util")]
    pub fn limiter_time(mut self) -> Self {
        self.limiter_time = true;
        self
    }

    /// Connects, loads the scripts and runs one.
    ///
    /// # Errors
    ///
    /// Names the address and the cause: a setting that cannot hold, a server
    /// out of reach, a wrong password, no right to run scripts.
    pub async fn connect(self) -> Result<Redis, BackendError> {
        let settings = self.settings().map_err(BackendError::misconfigured)?;
        if Handle::try_current().is_err() {
            return Err(BackendError::misconfigured(outside()));
        }
        let link = Link::connect(settings.clone()).await?;
        Ok(Redis::new(settings, link))
    }

    /// Connects in the background. Until then, and whenever the server is gone,
    /// the rules' failure modes decide.
    ///
    /// # Errors
    ///
    /// A setting that cannot hold, or no tokio runtime around.
    pub fn build(self) -> Result<Redis, ConfigError> {
        let settings = self.settings()?;
        if Handle::try_current().is_err() {
            return Err(outside());
        }
        let link = Link::lazy(settings.clone());
        Ok(Redis::new(settings, link))
    }

    pub(super) fn settings(self) -> Result<Settings, ConfigError> {
        self.check()?;
        #[cfg(feature = "redis-tls")]
        let certificates = self.certificates();
        let place = self.place()?;
        if matches!(place, Place::Cluster(_)) && self.prefix.contains(['{', '}']) {
            let reason = "must have no braces in a cluster: what stands between them chooses the slot";
            return Err(ConfigError::new("prefix", reason).with_value(&self.prefix));
        }
        #[cfg(feature = "redis-tls")]
        let place = with_certificates(place, certificates.as_ref())?;
        Ok(Settings {
            place,
            prefix: self.prefix,
            connections: self.connections,
            connect_timeout: self.connect_timeout,
            deadline: self.deadline,
            breaker: self.breaker,
            max_batch: self.max_batch,
            rejection_cache_ttl: self.rejection_cache_ttl,
            rejection_cache_size: self.rejection_cache_size,
            lease: self.lease,
            limiter_time: self.limiter_time,
            #[cfg(feature = "redis-tls")]
            certificates,
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let positive = [
            ("connect_timeout", self.connect_timeout),
            ("deadline", self.deadline),
            ("lease", self.lease),
            ("breaker", self.breaker.shortest),
        ];
        if let Some((key, _)) = positive.into_iter().find(|(_, duration)| duration.is_zero()) {
            return Err(ConfigError::new(key, "must be longer than zero"));
        }
        let counted = [
            ("connections", self.connections, 1, 1024),
            ("max_batch", self.max_batch, 1, 65_536),
            ("breaker", self.breaker.failures as usize, 1, usize::MAX),
            ("rejection_cache_size", self.rejection_cache_size, 0, 1 << 24),
        ];
        for (key, count, least, most) in counted {
            if count < least {
                return Err(ConfigError::new(key, format!("must be at least {least}")).with_value(count));
            }
            if count > most {
                return Err(ConfigError::new(key, format!("must be at most {most}")).with_value(count));
            }
        }
        if self.breaker.longest < self.breaker.shortest {
            return Err(ConfigError::new("breaker", "the longest delay is shorter than the shortest"));
        }
        Ok(())
    }

    fn place(&self) -> Result<Place, ConfigError> {
        let all = |key, urls: &[String], own: bool| {
            let infos: Vec<_> = urls.iter().map(|url| self.info(key, url, own)).collect::<Result<_, _>>()?;
            match infos.is_empty() {
                true => Err(ConfigError::new(key, "names no server")),
                false => Ok(infos),
            }
        };
        match &self.target {
            Target::Url(url) => self.info("url", url, true).map(Place::Alone),
            Target::Cluster(urls) => {
                let nodes: Vec<ConnectionInfo> = all("cluster", urls, true)?;
                match nodes.iter().all(|node| node.redis_settings().db() == 0) {
                    true => Ok(Place::Cluster(nodes)),
                    false => Err(ConfigError::new("database", "a cluster has only database 0")),
                }
            }
            Target::Sentinel(master, urls) => Ok(Place::Sentinel {
                master: master.clone(),
                sentinels: all("sentinel", urls, false)?,
                node: Box::new(self.login(redis::RedisConnectionInfo::default())),
            }),
        }
    }

    fn info(&self, key: &'static str, url: &str, own: bool) -> Result<ConnectionInfo, ConfigError> {
        let wrong = |reason: String| ConfigError::new(key, reason).with_value(without_secrets(url));
        let info = url.into_connection_info().map_err(|error| {
            // The driver's detail may repeat a part of the URL.
            let known = error.to_string();
            wrong(known.split(" - ").next().unwrap_or("not a URL of a Redis server").to_owned())
        })?;
        if !info.addr().is_supported() {
            return Err(wrong("needs the feature `redis-tls`".into()));
        }
        if key != "url" && matches!(info.addr(), ConnectionAddr::Unix(_)) {
            return Err(wrong("must be reached over TCP".into()));
        }
        let login = info.redis_settings().clone();
        Ok(if own { info.set_redis_settings(self.login(login)) } else { info })
    }

    fn login(&self, mut login: redis::RedisConnectionInfo) -> redis::RedisConnectionInfo {
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        match self.database {
            Some(database) => login.set_db(database.into()),
            None => login,
        }
    }

    #[cfg(feature = "redis-tls")]
    fn certificates(&self) -> Option<redis::TlsCertificates> {
        let client_tls = self.client_certificate.clone();
        let client_tls = client_tls.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
        let root_cert = self.root_certificate.clone();
        (client_tls.is_some() || root_cert.is_some()).then_some(redis::TlsCertificates { client_tls, root_cert })
    }
}

#[cfg(feature = "redis-tls")]
fn with_certificates(place: Place, certificates: Option<&redis::TlsCertificates>) -> Result<Place, ConfigError> {
    let Some(certificates) = certificates else { return Ok(place) };
    let readable = |pem: &[u8]| pem.windows(11).any(|part| part == b"-----BEGIN ");
    let client = certificates.client_tls.iter().flat_map(|client| [&client.client_cert, &client.client_key]);
    if !certificates.root_cert.iter().chain(client).all(|pem| readable(pem)) {
        return Err(ConfigError::new("certificate", "not a certificate and key in PEM"));
    }
    let add = |info: ConnectionInfo| match info.addr() {
        ConnectionAddr::TcpTls { .. } => redis::Client::build_with_tls(info, certificates.clone())
            .map(|client| client.get_connection_info().clone())
            .map_err(|_| ConfigError::new("certificate", "not a certificate and key in PEM")),
        _ => Err(ConfigError::new("certificate", "is of use with `rediss://` only")),
    };
    Ok(match place {
        Place::Alone(info) => Place::Alone(add(info)?),
        Place::Cluster(nodes) => Place::Cluster(nodes.into_iter().map(add).collect::<Result<_, _>>()?),
        Place::Sentinel { master, sentinels, node } => {
            let sentinels = sentinels.into_iter().map(add).collect::<Result<_, _>>()?;
            Place::Sentinel { master, sentinels, node }
        }
    })
}

fn outside() -> ConfigError {
    ConfigError::new("", "must be called inside a tokio runtime")
}

/// A URL without what stands before its `@` and after its `?`.
fn without_secrets(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        (None, Some((_, rest))) => rest.to_owned(),
        _ => url.to_owned(),
    }
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = match &self.target {
            Target::Url(url) => vec![without_secrets(url)],
            Target::Cluster(urls) | Target::Sentinel(_, urls) => urls.iter().map(|url| without_secrets(url)).collect(),
        };
        f.debug_struct("RedisBuilder")
            .field("urls", &urls)
            .field("prefix", &self.prefix)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
