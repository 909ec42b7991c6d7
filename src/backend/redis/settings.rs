//! All settings of the backend, checked: URLs, login and certificates, and the connection
//! settings that they make. They are what [`RedisBuilder`](super::RedisBuilder) has
//! gathered; nothing changes them afterwards. It connects to nothing.
//!
//! Invariant: printed, they show addresses only, since everything else may be
//! secret. No error contains a password.

use std::{fmt, time::Duration};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use super::transport::breaker::BreakerSettings;
use crate::error::ConfigError;

/// What the URLs name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Deployment {
    #[default]
    Single,
    /// Nodes of a cluster.
    Cluster,
    /// Sentinels, and the name of their primary.
    Sentinel(String),
}

/// The servers of the store.
#[derive(Clone, Default)]
pub(crate) struct Servers {
    pub(crate) deployment: Deployment,
    /// Those that the URLs name.
    pub(crate) named: Vec<ConnectionInfo>,
    /// How to log in where the counters are.
    pub(crate) login: RedisConnectionInfo,
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Deployment::Sentinel(primary) = &self.deployment {
            write!(f, "master `{}` of ", primary.escape_debug())?;
        }
        let addresses: Vec<_> = self.named.iter().map(|info| info.addr().to_string()).collect();
        f.write_str(&addresses.join(", "))
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) servers: Servers,
    #[cfg(feature = "tls")]
    pub(crate) certificates: Option<redis::TlsCertificates>,
    pub(crate) prefix: String,
    pub(crate) connections: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) deadline: Duration,
    pub(crate) breaker: BreakerSettings,
    pub(crate) max_batch: usize,
    pub(crate) rejection_cache_ttl: Duration,
    pub(crate) lease: Duration,
    pub(crate) uses_limiter_time: bool,
    /// Whether the caller's runtime drives the backend, instead of one of its own.
    pub(crate) uses_current_runtime: bool,
}

impl Settings {
    /// The defaults, without servers.
    pub(crate) fn new() -> Self {
        Self {
            servers: Servers::default(),
            #[cfg(feature = "tls")]
            certificates: None,
            prefix: "rl".into(),
            connections: 1,
            connect_timeout: Duration::from_secs(1),
            deadline: Duration::from_millis(50),
            breaker: BreakerSettings {
                failures: 5,
                shortest: Duration::from_millis(100),
                longest: Duration::from_secs(5),
            },
            max_batch: 256,
            rejection_cache_ttl: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            uses_limiter_time: false,
            uses_current_runtime: false,
        }
    }

    /// Rejects values out of range.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let durations = [
            ("connect_timeout", self.connect_timeout),
            ("deadline", self.deadline),
            ("lease", self.lease),
            ("breaker", self.breaker.shortest),
        ];
        if let Some((key, _)) = durations.into_iter().find(|(_, duration)| duration.is_zero()) {
            return Err(ConfigError::new(key, "must be longer than zero"));
        }
        let numbers = [
            ("connections", self.connections, 1..=1024),
            ("max_batch", self.max_batch, 1..=65_536),
            ("breaker", self.breaker.failures as usize, 1..=usize::MAX),
        ];
        if let Some((key, number, range)) = numbers.into_iter().find(|(_, number, range)| !range.contains(number)) {
            let reason = format!("must be at least {} and at most {}", range.start(), range.end());
            return Err(ConfigError::new(key, reason).with_value(number));
        }
        if self.breaker.longest < self.breaker.shortest {
            return Err(ConfigError::new("breaker", "the longest delay is shorter than the shortest"));
        }
        if self.is_cluster() && self.prefix.contains(['{', '}']) {
            let reason = "must have no braces in a cluster: what stands between them chooses the slot";
            return Err(ConfigError::new("prefix", reason).with_value(&self.prefix));
        }
        Ok(())
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.servers.deployment == Deployment::Cluster
    }

    /// Always 0 in a cluster.
    pub(crate) fn database(&self) -> i64 {
        self.servers.login.db()
    }
}

/// Where the store is, and how to log in.
#[derive(Clone, Default)]
pub(crate) struct ServerConfig {
    pub(crate) deployment: Deployment,
    pub(crate) urls: Vec<String>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<u32>,
    #[cfg(feature = "tls")]
    pub(crate) certificates: Option<redis::TlsCertificates>,
}

impl ServerConfig {
    pub(crate) fn servers(&self) -> Result<Servers, ConfigError> {
        let key = match self.deployment {
            Deployment::Single => "url",
            Deployment::Cluster => "cluster",
            Deployment::Sentinel(_) => "sentinel",
        };
        let named = self.urls.iter().map(|url| self.info(key, url)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = named.first() else { return Err(ConfigError::new(key, "names no server")) };
        if self.deployment == Deployment::Cluster && named.iter().any(|node| node.redis_settings().db() != 0) {
            return Err(ConfigError::new("database", "a cluster has only database 0"));
        }
        let login = match self.deployment {
            Deployment::Sentinel(_) => self.login(RedisConnectionInfo::default()),
            _ => first.redis_settings().clone(),
        };
        Ok(Servers { deployment: self.deployment.clone(), login, named })
    }

    fn info(&self, key: &'static str, url: &str) -> Result<ConnectionInfo, ConfigError> {
        let invalid = |reason: String| ConfigError::new(key, reason).with_value(without_secrets(url));
        let info = url.into_connection_info().map_err(|error| {
            // The driver's detail may repeat a part of the URL.
            let text = error.to_string();
            invalid(text.split(" - ").next().unwrap_or("not a URL of a Redis server").to_owned())
        })?;
        if !info.addr().is_supported() {
            return Err(invalid("needs the feature `tls`".into()));
        }
        if key != "url" && matches!(info.addr(), ConnectionAddr::Unix(_)) {
            return Err(invalid("must be reached over TCP".into()));
        }
        let info = match self.deployment {
            // Users and passwords in their URLs are for the sentinels.
            Deployment::Sentinel(_) => info,
            _ => info.clone().set_redis_settings(self.login(info.redis_settings().clone())),
        };
        #[cfg(feature = "tls")]
        let info = self.with_certificates(info)?;
        Ok(info)
    }

    /// In RESP3 the driver tells when a connection has ended.
    fn login(&self, login: RedisConnectionInfo) -> RedisConnectionInfo {
        let mut login = login.set_protocol(ProtocolVersion::RESP3);
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

    #[cfg(feature = "tls")]
    pub(crate) fn certificates(&mut self) -> &mut redis::TlsCertificates {
        self.certificates.get_or_insert(redis::TlsCertificates { client_tls: None, root_cert: None })
    }

    #[cfg(feature = "tls")]
    fn with_certificates(&self, info: ConnectionInfo) -> Result<ConnectionInfo, ConfigError> {
        let invalid = |reason| ConfigError::new("certificate", reason);
        let Some(certificates) = &self.certificates else { return Ok(info) };
        let client = certificates.client_tls.iter().flat_map(|client| [&client.client_cert, &client.client_key]);
        let is_pem = |pem: &Vec<u8>| pem.windows(11).any(|part| part == b"-----BEGIN ");
        if !certificates.root_cert.iter().chain(client).all(is_pem) {
            return Err(invalid("not a certificate and key in PEM"));
        }
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Err(invalid("is of use with `rediss://` only"));
        }
        redis::Client::build_with_tls(info, certificates.clone())
            .map(|client| client.get_connection_info().clone())
            .map_err(|_| invalid("not a certificate and key in PEM"))
    }
}

/// A URL without what is before its `@` and after its `?`.
pub(crate) fn without_secrets(url: &str) -> String {
    let url = url.split('?').next().unwrap_or_default();
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        (None, Some((_, rest))) => rest.to_owned(),
        _ => url.to_owned(),
    }
}
