//! All settings of the backend, checked. They are what
//! [`RedisBuilder`](super::RedisBuilder) has gathered; nothing changes them
//! afterwards.
//!
//! Invariant: printed, they show addresses only, since everything else may be
//! secret.

use std::{fmt, time::Duration};

use redis::{AsyncConnectionConfig, ConnectionInfo};

use super::transport::breaker::BreakerSettings;
use crate::error::ConfigError;

/// The servers of the store.
#[derive(Clone)]
pub(crate) enum Servers {
    Single(ConnectionInfo),
    Cluster(Vec<ConnectionInfo>),
    Sentinel { primary: String, sentinels: Vec<ConnectionInfo>, node: Box<redis::RedisConnectionInfo> },
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[ConnectionInfo]| {
            for (at, info) in all.iter().enumerate() {
                write!(f, "{}{}", if at == 0 { "" } else { ", " }, info.addr())?;
            }
            Ok(())
        };
        match self {
            Self::Single(info) => write!(f, "{}", info.addr()),
            Self::Cluster(nodes) => list(f, nodes),
            Self::Sentinel { primary, sentinels, .. } => {
                write!(f, "master `{}` of ", primary.escape_debug())?;
                list(f, sentinels)
            }
        }
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
    #[cfg(feature = "redis-tls")]
    pub(crate) certificates: Option<redis::TlsCertificates>,
    pub(crate) prefix: String,
    pub(crate) connections: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) deadline: Duration,
    pub(crate) breaker: BreakerSettings,
    pub(crate) max_batch: usize,
    pub(crate) rejection_cache_ttl: Duration,
    pub(crate) rejection_cache_size: usize,
    pub(crate) lease: Duration,
    pub(crate) uses_limiter_time: bool,
    /// Whether the caller's runtime drives the backend, instead of one of its own.
    pub(crate) uses_current_runtime: bool,
}

impl Settings {
    /// The defaults, without servers.
    pub(crate) fn new() -> Self {
        Self {
            servers: Servers::Cluster(Vec::new()),
            #[cfg(feature = "redis-tls")]
            certificates: None,
            prefix: "rl".into(),
            connections: 1,
            connect_timeout: Duration::from_secs(1),
            deadline: Duration::from_millis(50),
            breaker: BreakerSettings::default(),
            max_batch: 256,
            rejection_cache_ttl: Duration::from_secs(1),
            rejection_cache_size: 65_536,
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
            ("rejection_cache_size", self.rejection_cache_size, 0..=1 << 24),
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
        matches!(self.servers, Servers::Cluster(_))
    }

    /// Always 0 in a cluster.
    pub(crate) fn database(&self) -> i64 {
        match &self.servers {
            Servers::Single(info) => info.redis_settings().db(),
            Servers::Sentinel { node, .. } => node.db(),
            Servers::Cluster(_) => 0,
        }
    }

    /// Without a timeout for replies: a call has the deadline.
    pub(crate) fn connection_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new().set_connection_timeout(Some(self.connect_timeout)).set_response_timeout(None)
    }
}
